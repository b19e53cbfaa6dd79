"""Questions that read the log: their options, and what was done in words."""

from typing import Any

import pytest

from palimpsest import BrowseSettings, TrajectoryEvent
from palimpsest.v1 import answer_service_pb2
from service.cli.ask import ACTIONS, BrowseOptions, question_options
from service.cli.drawing import browse_line
from service.cli.output import CommandError
from service.domain.answers.browse.spec import BrowseAction
from tests.unit.cli.test_cli_explaining import drawn, event


def test_what_is_not_said_is_not_sent() -> None:
    assert BrowseOptions().settings() is None
    said = BrowseOptions(actions=" merge,append ,merge", window=512).settings()
    assert said == BrowseSettings(actions=("append", "merge"), window_tokens=512)
    with pytest.raises(CommandError, match=r"^--actions: 'fly' is none of task_understanding,"):
        BrowseOptions(actions="merge,fly").settings()
    with pytest.raises(CommandError, match=r"^--actions names none$"):
        BrowseOptions(actions=" ,").settings()
    assert set(ACTIONS) == {one.value for one in BrowseAction}
    assert len(ACTIONS) == len(answer_service_pb2.BrowsingOptions.Action.keys()) - 1


def test_readers_of_the_log_need_no_memory() -> None:
    assert question_options(None, "pcc", "", None)["memory"] == "default"
    assert question_options("m", None, "", None) == {
        "memory": "m",
        "reader": None,
        "model": "",
        "browsing": None,
    }
    assert question_options(None, "dciso", "", None)["memory"] == ""
    assert question_options("m", "auto", "a/b", BrowseSettings())["memory"] == "m"
    with pytest.raises(CommandError, match="--reader dciso or auto"):
        question_options("m", None, "", BrowseSettings())
    with pytest.raises(CommandError, match="--model needs"):
        question_options("m", "prism", "a/b", None)


def test_without_a_memory_or_reader_the_service_chooses() -> None:
    asked = question_options(None, None, "a/b", BrowseSettings(pieces=3))
    assert (asked["memory"], asked["reader"], asked["model"]) == ("", "auto", "a/b")


def piece(action: Any, **said: Any) -> TrajectoryEvent:
    return event("piece", action, "p.3", **said)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (event("choice", "none", text="dciso", reasoning="no memory"), "chose dciso — no memory"),
        (
            event("understanding", "none", text="the mill", targets=("scan",)),
            "reads by scan, looks for: the mill",
        ),
        (
            event("understanding", "invalid", text="no option", attempt=2),
            "? not understood (try 2), no option",
        ),
        (piece("append", text="a mill"), "piece 3 [1-9]: append: a mill"),
        (piece("merge", text="a mill"), "piece 3 [1-9]: merge: a mill"),
        (piece("move"), "piece 3 [1-9]: move"),
        (
            piece("retrieve", text="mill", targets=("p.4", "p.1")),
            "piece 3 [1-9]: retrieve p.4, p.1 for: mill",
        ),
        (piece("retrieve", text="mill"), "piece 3 [1-9]: retrieve nothing for: mill"),
        (piece("answer", text="a mill", reasoning="so"), "piece 3 [1-9]: = a mill — so"),
        (piece("aggregate"), "piece 3 [1-9]: aggregate"),
        (piece("invalid", text="empty"), "piece 3 [1-9]: ? no action (try 1), empty"),
        (
            event("aggregation", "answer", text="two", shown=("p.1", "p.3")),
            "of p.1, p.3: = two",
        ),
        (event("aggregation", "none", shown=("p.1",)), "of p.1: nothing"),
        (event("shaping", "none"), "brought into the form"),
        (event("triage", "enter"), ""),
    ],
)
def test_each_event_has_a_line(told: TrajectoryEvent, line: str) -> None:
    assert browse_line(told) == line


def test_a_browsing_is_drawn_line_by_line() -> None:
    events = [
        event("retrieval", "none", shown=("p.3", "p.1"), text="mill"),
        piece("append", text="[bold]a mill", input_tokens=9, output_tokens=3),
        event("end", "answer", text="a mill"),
    ]
    assert [one.rstrip() for one in drawn(events)[1:]] == [
        "├── retrieval names p.3, p.1",
        "└── piece 3 [1-9]: append: [bold]a mill (9 + 3 tokens)",
    ]
