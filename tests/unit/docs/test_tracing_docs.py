"""The guide to traces has a row of each span, and of none that is not."""

import re

from service.telemetry.names import Attribute, GenAiOperation, SpanName
from tests import ROOT

GUIDE = ROOT / "docs" / "reference" / "tracing.md"
#: Named by the conventions; nothing is deleted yet, and `chat` has its model beside it.
OPERATIONS = {
    GenAiOperation.UPDATE_MEMORY,
    GenAiOperation.SEARCH_MEMORY,
    GenAiOperation.CREATE_MEMORY_STORE,
    GenAiOperation.CHAT,
}


def rows() -> list[list[str]]:
    section = GUIDE.read_text().partition("## Spans")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def constants(holder: type) -> set[str]:
    return {value for name, value in vars(holder).items() if name.isupper()}


def test_every_span_has_its_row_and_no_other_has() -> None:
    told = {name for row in rows()[1:] for name in re.findall(r"`([^`]+)`", row[0])}
    taken = {name for name in told if name.startswith("process ")}
    assert taken == {f"process {kind}" for kind in ("prism", "tree", "state", "answer", "schema")}
    # Whatever it is of.
    told -= {"transaction append"}
    assert told - taken == constants(SpanName) | OPERATIONS


def test_every_attribute_of_the_table_is_one_of_ours() -> None:
    for _, _, _, attributes in rows():
        told = {one for one in re.findall(r"`([a-z_.]+)`", attributes) if "." in one}
        assert told <= constants(Attribute), told - constants(Attribute)


def test_the_trace_that_is_shown_has_spans_of_the_table() -> None:
    shown = GUIDE.read_text().partition("<!-- from tests/trace.py -->")[2].split("```")[1]
    names = [line[18:64].strip() for line in shown.strip().splitlines()[1:]]
    table = " ".join(row[0] for row in rows())
    for name in names:
        is_prefix = name.startswith(("chat ", "transaction "))
        assert "/" in name or f"`{name}`" in table or is_prefix
