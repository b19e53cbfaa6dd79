"""The offline model's state vectors: the goal, what was found, what came last; word for word."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.compressing import Compression, compress_steps, compress_vectors
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import VectorSource
from service.llm.offline.model import complete
from service.llm.splitter import first_piece
from tests.unit.state.making import KEY, answered, steps, vector

TASK = "Find out where the teacher of the author of Salt and Cedar was born. You must never guess."


def acted(observation: str, thought: str, action: str) -> str:
    return f"Thought: {thought}\nAction: {action}\nObservation: {observation}"


FOUND = acted(
    "Ravel Whitlam was a cartographer from Drumheller, where a museum keeps the maps. It is open"
    " in summer.",
    "The teacher Ravel Whitlam was born in Drumheller.",
    "Search[Salt and Cedar]",
)
IDLE = [
    acted(
        f"Page {number} of the list says that nothing was found in drawer {number * 7}. The"
        f" next drawer is on the {['left', 'right', 'top', 'floor'][number % 4]}. It was a"
        " long way there, and it rained all the time.",
        f"I look into drawer {number * 7 + 1}.",
        f"Open[{number * 7 + 1}]",
    )
    for number in range(60)
]


def compress(current: str, texts: Sequence[str], spec: StateSpec, first: int = 1) -> Compression:
    flow = compress_steps(current, steps(texts, first), spec=spec, **MODEL)
    return answered(flow, complete)[0]


MODEL: dict[str, Any] = {
    "marker_key": KEY,
    "count": estimate_tokens,
    "window_tokens": 1_000_000,
    "cut": first_piece,
}


def test_a_vector_has_the_goal_what_is_known_and_what_came_last() -> None:
    last = acted("The drawer is empty.", "I try the next one.", "Open[3]")
    made = compress(TASK, [FOUND, IDLE[0], last], StateSpec(task=TASK, state_tokens=160))
    assert (made.made, made.replies, made.appended) == (VectorSource.MODEL, 1, ())
    assert made.text.startswith(
        "Find out where the teacher of the author of Salt and Cedar was born."
    )
    assert "You must never guess." in made.text
    assert "Ravel Whitlam was a cartographer from Drumheller" in made.text
    assert made.text.endswith("Action: Open[3]. The drawer is empty.")
    assert "\n" not in made.text


def test_what_was_found_early_is_there_after_three_compressions() -> None:
    spec = StateSpec(task=TASK, state_tokens=128)
    texts = [FOUND, *IDLE]
    current = TASK
    for number in range(3):
        made = compress(current, texts[10 * number : 10 * number + 10], spec)
        current = made.text
        assert made.made is VectorSource.MODEL
        assert current.startswith("Find out where the teacher")
        assert "Drumheller" in current
    assert current.endswith("It was a long way there, and it rained all the time.")
    history = "\n".join(texts[:30]).encode()
    assert b"Drumheller" not in history[-4 * spec.state_tokens :], "the tail has forgotten it"


def test_of_what_is_said_again_the_later_stays() -> None:
    texts = ["The door is open.", "The door is shut.", "The door is open.", "I wait."]
    made = compress("", texts, StateSpec(state_tokens=64))
    assert made.text.rfind("door is open") > made.text.rfind("door is shut")


def test_without_a_task_the_goal_is_what_was_said_first() -> None:
    texts = ["user: Book a table for four. It is urgent.", "assistant: For when?", "user: Friday."]
    made = compress("", texts, StateSpec(state_tokens=64))
    assert made.text.startswith("user: Book a table for four.")
    assert made.text.endswith("user: Friday.")


def test_it_goes_on_from_another_model_s_vector() -> None:
    said = "The agent looks for a wolf. It found tracks near the mill. The bridge is closed."
    made = compress(said, ["The tracks end at the river."], StateSpec(state_tokens=64))
    assert made.text.startswith("The agent looks for a wolf.")
    assert "It found tracks near the mill. The bridge is closed." in made.text


def test_pinned_strings_follow_it_once() -> None:
    spec = StateSpec(task=TASK, state_tokens=96, pinned=("order 66", "a\nb", "cartographer"))
    current = TASK
    for _ in range(4):
        made = compress(current, [FOUND, *IDLE[:5]], spec)
        current = made.text
        assert (made.made, made.appended) == (VectorSource.MODEL, ())
        assert current.count("order 66") == current.count("a\nb") == 1
        assert "cartographer" in current


def test_vectors_become_one_of_the_goal_the_time_before_and_the_last_of_them() -> None:
    run = [
        vector(1, "Find the wolf. It is grey. Action: Look[mill]."),
        vector(2, "Find the wolf. It is grey. It limps. Action: Look[wood]."),
    ]
    spec = StateSpec(state_tokens=64)
    first, _ = answered(compress_vectors("", run, spec=spec, **MODEL), complete)
    assert first.text == (
        "Find the wolf. Action: Look[mill]. It is grey. It limps. Action: Look[wood]."
    )
    above = "Find the wolf of Arvid. It came in May. Action: Ask[Arvid]."
    second, _ = answered(compress_vectors(above, run, spec=spec, **MODEL), complete)
    assert second.text.startswith("Find the wolf of Arvid. It came in May.")
    assert "It limps." in second.text


def test_a_long_task_prompt_keeps_its_first_sentences() -> None:
    task = TASK + " Example: " + "a search is a search of pages. " * 300
    made = compress(task, [FOUND, *IDLE[:9]], StateSpec(task=task, state_tokens=128))
    assert made.text.startswith("Find out where the teacher of the author of Salt and Cedar")
    assert "Drumheller" in made.text


SAID = st.text(max_size=300) | st.sampled_from([FOUND, *IDLE[:3], "市場。" * 90, "x" * 900, "a\0b"])


@pytest.mark.parametrize("is_task", [True, False])
@given(
    current=SAID,
    texts=st.lists(SAID, min_size=1, max_size=6),
    most=st.integers(32, 400),
    pinned=st.lists(st.text("ab \n", min_size=1, max_size=8), max_size=3),
)
def test_a_vector_is_never_too_long_and_always_the_same(
    is_task: bool, current: str, texts: list[str], most: int, pinned: list[str]
) -> None:
    spec = StateSpec(task=current if is_task else "", state_tokens=most, pinned=tuple(pinned))
    # No model is asked about steps without content.
    assume(any(step.logged.is_read for step in steps(texts)))
    asks = [next(compress_steps(current, steps(texts), spec=spec, **MODEL))[0]]
    run = [vector(number, text) for number, text in enumerate(texts, 1)]
    asks += next(compress_vectors(current, run, spec=spec, **MODEL))
    for ask in asks:
        said = complete(ask)
        assert estimate_tokens(said) <= most
        assert all(string in said for string in pinned)
        assert said == complete(ask)
