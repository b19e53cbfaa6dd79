"""What watches a deployment: dashboards and rules, as files and as queries."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from tests import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"
ALERTS = PROMETHEUS / "alerts.yml"
RUNBOOKS = ROOT / "docs" / "reference" / "alerts.md"
#: Words that name nothing that is measured: functions, keywords and labels after `by`.
_WORDS = re.compile(
    r'"(?:[^"\\]|\\.)*"|\{[^}]*\}|\[[^]]*\]|\b(?:by|on|without|ignoring)\s*\([^)]*\)'
)
_NAME = re.compile(r"(?<![\w:.$])([a-z_][\w:]*)(?!\w|\s*\()")
_KEYWORDS = {"and", "or", "unless", "offset", "bool"}


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query of a panel."""

    panel: str
    expr: str


def dashboards() -> dict[str, dict[str, Any]]:
    """Returns the dashboards that Grafana reads, by the names of their files."""
    paths = sorted((GRAFANA / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each panel with its dashboard's name; rows are none."""
    for name, board in dashboards().items():
        yield from ((name, panel) for panel in board["panels"] if panel["type"] != "row")


def queries(window: str) -> list[Query]:
    """Returns each query, with everything chosen, and rates of so long a time."""
    found = []
    for board, panel in panels():
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", window)
            expr = re.sub(r"\$(method|model)\b", ".*", expr)
            assert "$" not in expr, expr
            found.append(Query(panel=f"{board}: {panel['title']}", expr=expr))
    return found


def rules() -> list[dict[str, Any]]:
    """Returns every rule."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Returns the rules that raise an alert."""
    return [rule for rule in rules() if "alert" in rule]


def metrics_of(expr: str) -> set[str]:
    """Returns the names of what a query asks for."""
    while (bare := _WORDS.sub(" ", expr)) != expr:
        expr = bare
    return set(_NAME.findall(expr)) - _KEYWORDS
