"""What the guide to browsing says is what the code has."""

import re

import typer
from typer.testing import CliRunner

from palimpsest.v1 import answer_service_pb2
from service.cli import ask
from service.cli.ask import MAX_PIECES, BrowseOptions
from service.domain.answers.browse.spec import (
    DEFAULT_CALLS,
    DEFAULT_PIECES,
    DEFAULT_WINDOW_TOKENS,
    LEAST_WINDOW_TOKENS,
    MAX_CALLS,
    MAX_WINDOW_TOKENS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
)
from service.settings.config import Config
from tests.support.guides import section

PAGE = section("asking", "Browsing the log")


def rows() -> dict[str, list[str]]:
    found = (re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line[:2] == "| ")
    return {name.strip("`"): rest for name, *rest in found}


def test_the_ways_are_those_of_the_code() -> None:
    said = rows()
    assert {one.value for one in BrowseOption} <= set(said)
    assert len(answer_service_pb2.BrowsingOptions.Strategy.keys()) == len(BrowseOption)


def test_the_limits_are_those_of_the_code() -> None:
    said = rows()
    window, pieces, calls = said["--window N"], said["--pieces N"], said["--max-calls N"]
    assert f"{LEAST_WINDOW_TOKENS} to {MAX_WINDOW_TOKENS:,}" in window[0]
    assert window[1] == f"{DEFAULT_WINDOW_TOKENS:,}"
    assert f"up to {MAX_PIECES}" in pieces[0]
    assert pieces[1] == f"{DEFAULT_PIECES}"
    assert f"up to {MAX_CALLS:,}" in calls[0]
    assert calls[1] == f"{DEFAULT_CALLS:,}"
    assert f"at once ({Config().browse_concurrency})" in PAGE


def test_each_set_of_actions_can_be_asked_for() -> None:
    found = re.findall(r"`--actions (\S+)`", PAGE)
    assert len(found) == 7, "six bars, and the option itself"
    for said in found[1:]:
        settings = BrowseOptions(actions=said).settings()
        assert settings is not None
        actions = frozenset(BrowseAction(one) for one in settings.actions)
        assert BrowseRequest(actions=actions).problem() == ""


def test_the_options_are_those_of_the_command() -> None:
    app = typer.Typer()
    ask.register(app)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for name in set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--verdict"}:
        assert name in shown, name
