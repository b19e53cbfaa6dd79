"""Every alert has its runbook and its unit tests, and runbooks name commands that there are."""

import re
import shlex
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped, unused-ignore]

from service.cli.commands import app
from tests.deployment.watched import PROMETHEUS, RUNBOOKS, alerts, metrics_of

PAGE = RUNBOOKS.read_text()
SECTIONS = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
COMMANDS = sorted(
    {
        *re.findall(r"^    (palimpsest .+)$", PAGE, re.MULTILINE),
        *re.findall(r"`(palimpsest [^`]+)`", PAGE),
    }
)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) >= 25
    assert sorted(names) == sorted(set(SECTIONS)) == sorted(SECTIONS)


def test_every_alert_has_its_labels_and_words() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        told = rule["annotations"]
        assert told["summary"]
        assert told["description"]
        assert told["runbook_url"] == f"docs/reference/alerts.md#{rule['alert'].lower()}"


def test_every_runbook_says_what_it_means_and_when_it_ends() -> None:
    for section in PAGE.split("\n## ")[1:]:
        for words in ("**For users:**", "**Look", "**Ends** "):
            assert words in section, section.partition("\n")[0]
        assert "**Do:**" in section or "**Look and do:**" in section


def test_links_within_the_page_and_beside_it_lead_somewhere() -> None:
    anchors = {name.lower() for name in SECTIONS}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        page, _, anchor = target.partition("#")
        other = RUNBOOKS.parent / page if page else RUNBOOKS
        headings = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
        found = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
        assert not anchor or anchor in (found | anchors if not page else found), target


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_taken(line: str) -> None:
    command: Any = typer.main.get_command(app)
    words, context = shlex.split(line)[1:], None
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no {name}"
        context = command.make_context(name, [name], parent=context)
        command = command.commands[name]
    command.make_context(command.name, words, parent=context)


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    fires: set[str] = set()
    quiet: set[str] = set()
    for path in sorted((PROMETHEUS / "tests").glob("*.yml")):
        for test in yaml.safe_load(path.read_text())["tests"]:
            alert = test["name"].partition(" ")[0]
            shown = [bool(one["exp_samples"]) for one in test["promql_expr_test"]]
            assert all(f'"{alert}"' in one["expr"] for one in test["promql_expr_test"])
            if any(shown):
                fires.add(alert)
            else:
                quiet.add(alert)
    names = {rule["alert"] for rule in alerts()}
    assert fires == quiet == names


def test_names_are_read_off_queries() -> None:
    query = 'max by (a) (x_total{b="c or d"}[5m] offset 1h) / on (e) sum(y:z) > 0.5 or vector(0)'
    assert metrics_of(query) == {"x_total", "y:z"}
