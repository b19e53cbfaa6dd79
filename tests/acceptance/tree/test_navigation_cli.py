"""Questions to trees on the command line, answered with the offline model."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.integration.tree.test_tree_questions import TEXTS


@pytest.fixture(scope="module")
def at(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the environment of commands, for a session with a tree `t` and a PRISM memory `m`."""
    file: Path = tmp_path_factory.mktemp("text") / "town.txt"
    file.write_text("".join(TEXTS))
    environment = {"PALIMPSEST_ADDRESS": address, "SESSION": f"cli-{uuid4().hex}"}
    named = ("-s", environment["SESSION"])
    succeed("session", "create", environment["SESSION"], **environment)
    small = ("--segment-tokens", "72", "--max-children", "2")
    succeed("memory", "create", "tree", "t", *named, *small, **environment)
    succeed("ingest", str(file), *named, "-m", "t", **environment)
    succeed("ingest", str(file), *named, "-m", "m", **environment)
    return environment


def named(at: dict[str, str], memory: str = "t") -> tuple[str, ...]:
    return ("-s", at["SESSION"], "-m", memory)


QUERY = "What is the owner called?"


def test_the_way_to_an_answer_is_drawn_in_front_of_it(at: dict[str, str]) -> None:
    shown = succeed("ask", QUERY, *named(at), "--explain", "--hybrid", "2", "--beam", "2", **at)
    lines = shown.splitlines()
    assert lines[0] == QUERY
    assert lines[1].startswith(("├── retrieval names ", "└── retrieval names "))
    assert any("= " in line and "Amaranta" in line for line in lines[2:])
    cited = next(line for line in lines if line.startswith("  [1] leaf "))
    assert "Amaranta" in cited
    assert lines[-2].endswith("no language model: sentences of the text, word for word")
    assert " leaves read, " in lines[-1] or " leaf read, " in lines[-1]
    assert "of the text" in lines[-1]
    plain = succeed("ask", QUERY, *named(at), "--hybrid", "2", **at)
    assert "├──" not in plain
    assert "retrieval" not in plain


def test_events_are_in_the_json(at: dict[str, str]) -> None:
    told = json.loads(succeed("ask", QUERY, *named(at), "--explain", "--json", **at))
    assert [event["ordinal"] for event in told["events"]] == list(range(1, len(told["events"]) + 1))
    assert told["events"][-1]["kind"] == "end"
    assert told["statistics"]["calls"] == len(told["events"]) - 1
    assert told["no_answer"] is None
    assert told["citations"][0]["node"].startswith(("0.", "t."))
    plain = json.loads(succeed("ask", QUERY, *named(at), "--json", **at))
    assert "events" not in plain
    stored = succeed("trajectory", "show", told["id"], "-s", at["SESSION"], **at)
    assert stored.splitlines()[0] == QUERY
    assert stored.splitlines()[-1] == told["text"]
    listed = succeed("trajectory", "show", told["id"], "-s", at["SESSION"], "--json", **at)
    assert [json.loads(line) for line in listed.splitlines()] == told["events"]


def test_options_and_bounds_reach_the_tree(at: dict[str, str]) -> None:
    options = ("--option", "a dog", "--option", "a parrot that can count to nine")
    asked = ("ask", "What does the captain keep?", *named(at), "--json")
    told = json.loads(succeed(*asked, *options, "--hybrid", "2", **at))
    assert told["text"] == "a parrot that can count to nine"
    stopped = json.loads(succeed(*asked, "--max-calls", "1", **at))
    assert (stopped["no_answer"], stopped["statistics"]["calls"]) == ("step_limit", 1)


def test_the_results_of_navigations_are_shown_and_exported(at: dict[str, str]) -> None:
    told = json.loads(succeed("ask", QUERY, *named(at), "--json", **at))
    figures = json.loads(succeed("trajectory", "stats", *named(at), "--json", **at))
    assert figures["navigations"] >= 1
    assert figures["valid_action_rate"] == 1
    shown = succeed("trajectory", "stats", *named(at), **at)
    assert f"{figures['calls']:,}" in shown
    assert "100.0% of replies" in shown
    exported = succeed(
        "trajectory", "export", *named(at), "--answer", told["id"], **at
    ).splitlines()
    examples = [json.loads(line) for line in exported]
    assert len(examples) == told["statistics"]["calls"]
    for example in examples:
        assert example["answer"] == told["id"]
        assert [one["role"] for one in example["messages"]] == ["user", "assistant"]
        assert QUERY in example["messages"][0]["content"]
        assert example["template"].startswith("tree.")


def test_a_memory_that_is_no_tree_has_no_way_to_explain(at: dict[str, str]) -> None:
    done = run("ask", QUERY, *named(at, "m"), "--explain", **at)
    assert done.returncode == 0
    assert "memory 'm' was not navigated" in done.stderr
    for command in (
        ("ask", QUERY, *named(at, "m"), "--beam", "2"),
        ("trajectory", "stats", *named(at, "m")),
        ("trajectory", "export", *named(at, "m")),
    ):
        assert_one_clear_line(run(*command, **at), "is for tree or state memories")


def test_an_answer_that_does_not_fit_the_schema_says_so(at: dict[str, str], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    # No sentence of the text is so long, and the offline model makes nothing up.
    schema.write_text('{"type": "string", "minLength": 5000}')
    shaped = ("--reader", "whole", "--schema", str(schema))
    done = run("ask", QUERY, "-s", at["SESSION"], *shaped, **at)
    assert done.returncode == 0, done.stderr
    assert "there is no JSON: what the model wrote does not fit the schema" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--option", ""), "options[0]: "),
        (("--memory", "none"), "no memory 'none'"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line(
    at: dict[str, str], wrong: tuple[str, str], said: str
) -> None:
    assert_one_clear_line(run("ask", "?", *named(at), *wrong, **at), said)


def test_wrong_ids_and_numbers_are_reported(at: dict[str, str]) -> None:
    done = run("trajectory", "show", "x", "-s", at["SESSION"], **at)
    assert_one_clear_line(done, "answer: must be a valid UUID")
    done = run("ask", "?", *named(at), "--max-calls", "1001", **at)
    assert_one_clear_line(done, "navigation.max_calls")
    for wrong in (("--beam", "9"), ("--hybrid", "33"), ("--max-calls", "10001")):
        done = run("ask", "?", *named(at), *wrong, **at)
        assert done.returncode == 2
        assert wrong[0] in done.stderr
