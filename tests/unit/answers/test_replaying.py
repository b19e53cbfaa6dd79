"""A navigation again, with the replies that were recorded."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from service.domain.answers.replaying import NotReplayable, prompts_of
from service.domain.answers.trajectory import (
    Event,
)
from service.domain.prompting.flows import ModelRequest
from tests.support.properties import examples
from tests.unit.tree.navigating import Run, Tree, down, play, run, says, scripted, start
from tests.unit.tree.test_navigation_properties import runs

TREE = (("alpha", "beta"), ("gamma", "delta"))
REPLIES = (down(1, 0), down(0), "hm", says("The moon"), down(1), says("The sun"))


def recorded() -> Run:
    return run(Tree(TREE), scripted(*REPLIES), beam=2)


def replay(events: list[Event], **arguments: Any) -> tuple[tuple[Event, ModelRequest], ...]:
    tree = Tree(TREE)
    return play(prompts_of(start(tree, **{"beam": 2} | arguments), events), tree.look)


def test_each_call_is_given_with_its_prompt() -> None:
    got = recorded()
    again = replay(got.events)
    assert [ask for _, ask in again] == got.asks
    assert [event for event, _ in again] == [event for event in got.events if event.template]
    assert again[3][0].reply == says("The moon")


def test_events_of_something_else_are_refused() -> None:
    events = recorded().events
    other = replace(events[0], targets=("r.0",))
    for changed in ([other, *events[1:]], events[1:], events[:2], []):
        with pytest.raises(NotReplayable):
            replay(changed)
    newer = [replace(e, template=e.template.replace("/2", "/3")) for e in events]
    with pytest.raises(NotReplayable, match=r"no reply to tree\.triage/2"):
        replay(newer)


@settings(max_examples=examples(100))
@given(runs())
def test_any_navigation_can_be_replayed(given_run: tuple[Tree, Run, dict[str, Any]]) -> None:
    tree, got, settled = given_run
    again = play(prompts_of(start(tree, **settled), got.events), tree.look)
    assert [ask for _, ask in again] == got.asks
