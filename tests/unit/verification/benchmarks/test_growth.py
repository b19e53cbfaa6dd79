"""The benchmark of growing memories: its conversation, and its model."""

from typing import Any

import pytest

from verification.benchmarks import growth
from verification.benchmarks.talk import Talk, judged


@pytest.fixture(scope="module")
def ways() -> dict[str, Any]:
    rows: dict[str, Any] = growth.run(6, budget=800, seed=3)["ways"]
    return rows


@pytest.mark.prove
def test_focused_steps_stay_flat_where_whole_ones_grow(ways: dict[str, Any]) -> None:
    assert ways["focused"]["growth"] <= growth.GOAL
    assert ways["in place"]["growth"] > growth.GOAL
    assert ways["focused"]["memory_tokens_at_last"] > 800
    assert ways["focused"]["missing"] == 0, "nothing that was told is lost"


@pytest.mark.prove
def test_a_model_that_sees_everything_is_the_measure(ways: dict[str, Any]) -> None:
    assert ways["in place"]["repeated"] == ways["amendments"]["repeated"]
    assert ways["in place"]["repeated"] <= ways["focused"]["repeated"]
    assert ways["adaptive, consolidated"]["missing"] > 0, "its budget does not hold all facts"


def test_a_conversation_is_the_same_each_time() -> None:
    one, other = Talk(50, seed=5), Talk(50, seed=5)
    assert one.turns == other.turns
    assert one.turns != Talk(50, seed=6).turns
    assert judged(one, {})["missing"] == len(one.truth) > 10
