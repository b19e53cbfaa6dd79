"""Dashboards are what their sources say, and what Grafana can show."""

import subprocess
import sys
from itertools import combinations
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.deployment.watched import GRAFANA, RUNBOOKS, alerts, dashboards, panels


def test_they_are_what_the_sources_make() -> None:
    done = subprocess.run(
        [sys.executable, str(GRAFANA / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_their_uids_and_titles_are_their_own() -> None:
    boards = dashboards().values()
    assert len(boards) == 5
    for name in ("uid", "title"):
        assert len({board[name] for board in boards}) == len(boards)
    assert all(board["schemaVersion"] == 42 for board in boards)


def test_panels_do_not_overlap_and_stay_in_the_grid() -> None:
    for board in dashboards().values():
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] >= 0
            assert place["x"] + place["w"] <= 24
        for one, other in combinations([panel["gridPos"] for panel in board["panels"]], 2):
            assert _apart(one, other), (board["title"], one, other)


def _apart(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    return beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_panel_says_what_is_good_and_what_to_do() -> None:
    known = {rule["alert"].lower() for rule in alerts()}
    for board, panel in panels():
        name = f"{board}: {panel['title']}"
        assert panel["description"].startswith("Good: "), name
        assert "\n\nOtherwise: " in panel["description"], name
        assert panel["fieldConfig"]["defaults"]["unit"], name
        assert panel["links"], name
        for link in panel["links"]:
            base, _, anchor = link["url"].partition("#")
            assert base == "${runbooks}"
            assert anchor in known, name
    assert RUNBOOKS.is_file()


def test_every_source_of_data_is_the_variable() -> None:
    for board in dashboards().values():
        found = list(_datasources(board))
        assert found
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in found)


def _datasources(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [one for part in value for one in _datasources(part)]
    if not isinstance(value, dict):
        return []
    own = [value["datasource"]] if "datasource" in value else []
    return own + [one for part in value.values() for one in _datasources(part)]


def test_every_variable_is_used() -> None:
    for board in dashboards().values():
        shown = str(board["panels"])
        for variable in board["templating"]["list"]:
            name = variable["name"]
            assert f"${name}" in shown or f"${{{name}}}" in shown, (board["title"], name)


def test_provisioning_finds_them() -> None:
    provisioning = GRAFANA / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    [provider] = yaml.safe_load((provisioning / "dashboards/palimpsest.yml").read_text())[
        "providers"
    ]
    assert source["type"] == "prometheus"
    assert provider["options"]["path"].endswith("/grafana/dashboards")
