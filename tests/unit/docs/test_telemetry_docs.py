"""The guide to telemetry has a row of each metric, and of none that is not."""

import re

from service.telemetry.names import Attribute, Metric
from tests import ROOT

GUIDE = ROOT / "docs" / "reference" / "telemetry.md"
#: How Prometheus writes units.
UNITS = {"s": "_seconds", "usd": "_usd"}


def rows() -> list[list[str]]:
    section = GUIDE.read_text().partition("## Metrics")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def constants(holder: type) -> set[str]:
    return {value for name, value in vars(holder).items() if name.isupper()}


def test_every_metric_has_its_row_and_no_other_has() -> None:
    told = [row[0].strip("`") for row in rows()]
    assert len(told) == len(set(told))
    assert set(told) == constants(Metric)


def test_names_in_prometheus_follow_from_those_in_opentelemetry() -> None:
    for name, prometheus, kind, _, _ in rows():
        plain = name.strip("`").replace(".", "_")
        unit = UNITS.get(kind.partition(", ")[2], "")
        total = "_total" if kind.startswith("counter") else ""
        expected = plain.removesuffix(unit) + unit + total
        assert prometheus == f"`{expected}`"


def test_every_attribute_of_the_table_is_one_of_ours() -> None:
    # A value follows a colon, or another value.
    values = re.compile(r": `[^`]+`(, `[a-z0-9_]+`(?!:))*")
    for _, _, _, attributes, _ in rows():
        told = set(re.findall(r"`([a-z_.]+)`", values.sub("", attributes)))
        assert told <= constants(Attribute)
