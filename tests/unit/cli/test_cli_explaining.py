"""The drawing of a navigation, and what its figures say."""

import io
from typing import Any

import pytest
from rich.console import Console

from palimpsest import NavigationStatistics, PositionRange, TrajectoryEvent
from service.cli.drawing import (
    NO_ANSWER,
    LiveDrawing,
    draw,
    named,
    statistics_json,
    summary,
)
from service.domain.answers.trajectory import (
    NoAnswer,
)

NOTHING = NavigationStatistics(
    navigations=1,
    answered=0,
    stray=0,
    stray_answered=0,
    valid_actions=0,
    invalid_actions=0,
    reverts=0,
    leaves_read=0,
    calls=0,
    tokens=0,
    text_tokens=0,
)


def event(kind: Any, action: Any, node: str = "", **said: Any) -> TrajectoryEvent:
    return TrajectoryEvent(
        **{
            "ordinal": 1,
            "kind": kind,
            "action": action,
            "node": node,
            "level": 0,
            "positions": PositionRange(first=1, last=9) if node else None,
            "depth": 0,
            "attempt": 1,
            "shown": (),
            "targets": (),
            "reasoning": "",
            "text": "",
            "input_tokens": 0,
            "cached_tokens": None,
            "output_tokens": 0,
            **said,
        }
    )


WALK = [
    event("triage", "enter", "root", shown=("1.1", "t.1"), targets=("1.1",)),
    event("triage", "invalid", "1.1", shown=("0.1", "0.2"), text="it has no number"),
    event(
        "triage",
        "enter",
        "1.1",
        shown=("0.1", "0.2"),
        targets=("0.2",),
        attempt=2,
        reasoning="the  giant\nis there",
        input_tokens=1204,
        output_tokens=31,
        cached_tokens=1000,
    ),
    event("leaf", "revert", "0.2", positions=PositionRange(first=4, last=4)),
    event("triage", "enter", "1.1", shown=("0.1", "0.2"), targets=("0.1",)),
    event("leaf", "answer", "0.1", text="A mouse."),
    event("end", "answer", text="A mouse.", targets=("0.1",)),
]


def drawn(events: list[TrajectoryEvent], query: str = "Who?") -> list[str]:
    file = io.StringIO()
    Console(file=file, width=200, highlight=False).print(draw(query, events))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_nodes_stand_below_those_that_showed_them_and_moves_in_their_order() -> None:
    assert drawn(WALK) == [
        "Who?",
        "└── root [1-9]",
        "    ├── sees 1.1, t.1",
        "    ├── → 1.1",
        "    └── 1.1 [1-9]",
        "        ├── sees 0.1, 0.2",
        "        ├── ? no action (try 1), it has no number",
        "        ├── → 0.2 — the giant is there (1,204 + 31 tokens, 1,000 cached)",
        "        ├── 0.2 [4]",
        "        │   └── ↑ back",
        "        ├── → 0.1",
        "        └── 0.1 [1-9]",
        "            └── = A mouse.",
    ]


def test_retrieved_leaves_stand_below_retrieval() -> None:
    events = [
        event("retrieval", "none", shown=("0.7", "t.1")),
        event("leaf", "answer", "0.7", text="a cat"),
        event("leaf", "answer", "t.1", text="a dog"),
        event("merge", "answer", shown=("0.7", "t.1"), targets=("0.7",), text="a cat"),
    ]
    assert drawn(events) == [
        "Who?",
        "├── retrieval names 0.7, t.1",
        "│   ├── 0.7 [1-9]",
        "│   │   └── = a cat",
        "│   └── t.1 [1-9]",
        "│       └── = a dog",
        "└── = of the answers of 0.7, t.1: a cat",
    ]
    assert drawn([event("retrieval", "none")]) == ["Who?", "└── retrieval names no leaf"]


def test_other_events_have_lines_too() -> None:
    events = [
        event("triage", "none", "root", shown=("1.1",), targets=("1.1",)),
        event("working_memory", "none", "1.1", text="the king and his cat"),
        event("unknown", "unknown", "1.1"),
        event("end", "none", text="step_limit"),
    ]
    assert drawn(events) == [
        "Who?",
        "├── root [1-9]",
        "│   ├── sees 1.1",
        "│   ├── → 1.1, the only way",
        "│   └── 1.1 [1-9]",
        "│       ├── remembers: the king and his cat",
        "│       └── unknown unknown",
        "└── no answer: the model calls are used up",
    ]


def test_texts_from_outside_are_neither_markup_nor_commands() -> None:
    lines = drawn([event("leaf", "answer", "0.1", text="[red]x[/red] \x1b[2J")], "[b]Who?\x07")
    assert lines[0] == r"[b]Who?\x07"
    assert lines[-1].endswith(r"= [red]x[/red] \x1b[2J")


def test_every_reason_is_said_in_words() -> None:
    assert set(NO_ANSWER) == {why.value for why in NoAnswer}
    assert drawn([event("end", "none", text="newer")])[-1] == "└── no answer: newer"


def test_a_long_list_is_cut() -> None:
    assert named([f"0.{n}" for n in range(1, 15)]).endswith("0.11, 0.12 and 2 more")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "0 calls, 0 leaves read, went back 0 times; 0 tokens"),
        (
            {"calls": 1, "leaves_read": 1, "reverts": 1, "tokens": 1500, "text_tokens": 3000},
            "1 call, 1 leaf read, went back 1 time; 1,500 tokens, 50% of the text",
        ),
    ],
)
def test_a_navigation_is_summed_up_on_a_line(changes: dict[str, int], said: str) -> None:
    figures = {**event_json_of(NOTHING), **changes}
    assert summary(NavigationStatistics(**figures)) == said


def event_json_of(statistics: NavigationStatistics) -> dict[str, Any]:
    told = statistics_json(statistics)
    return {
        name: value
        for name, value in told.items()
        if not name.endswith(("ratio", "_rate")) and name != "read_share"
    }


def test_ratios_of_nothing_are_null() -> None:
    told = statistics_json(NOTHING)
    assert told["stray_ratio"] == 0
    assert (told["valid_action_rate"], told["read_share"]) == (None, None)


def test_without_a_terminal_it_is_drawn_once() -> None:
    file = io.StringIO()
    with LiveDrawing("Who?", Console(file=file, width=100)) as drawing:
        for one in WALK:
            drawing.hear(one)
        assert not file.getvalue()
    assert file.getvalue().count("Who?") == 1
    assert file.getvalue().splitlines()[-1].strip() == "└── = A mouse."


def test_on_a_terminal_it_grows_with_each_event() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, height=5, force_terminal=True)
    with LiveDrawing("Who?", console) as drawing:
        sizes = []
        for one in WALK:
            drawing.hear(one)
            sizes.append(len(file.getvalue()))
        assert sizes == sorted(set(sizes)), "each event is drawn when it comes"
    # All of it in the end, though the terminal has five lines.
    assert "= A mouse." in file.getvalue()


def test_an_error_before_the_first_event_draws_nothing() -> None:
    file = io.StringIO()
    with (
        pytest.raises(ValueError, match="no"),
        LiveDrawing("Who?", Console(file=file, width=100)),
    ):
        raise ValueError("no")
    assert not file.getvalue()
