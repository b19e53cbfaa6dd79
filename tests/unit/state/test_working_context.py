"""The working context as a text, as messages and as a value."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.access.trust import Trust
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import State, StateVector, VectorLevels, VectorSource, first_state
from service.domain.state.working_context import (
    Message,
    WorkingContext,
    as_messages,
    as_text,
    as_value,
    by_level,
    is_due,
)
from tests.unit.support.logged import logged_chunk

START = datetime(2026, 11, 1, tzinfo=UTC)


def step(position: int, chunk: Chunk) -> SizedStep:
    """Returns a step of the log, one a second."""
    return SizedStep.of(logged_chunk(position, chunk, START + timedelta(seconds=position)))


def vector(level: int, text: str, *, revision: int = 1) -> StateVector:
    return StateVector(
        revision=revision,
        level=level,
        text=text,
        tokens=level * 10,
        made=VectorSource.MODEL,
        to_position=4,
        children=(7,) if level > 1 else (),
    )


def context(
    stack: Sequence[StateVector], chunks: Sequence[Chunk], applied: int = 4
) -> WorkingContext:
    return WorkingContext(
        state=State(
            revision=9, applied_position=applied, levels=VectorLevels(), stack=tuple(stack)
        ),
        recent=[step(applied + n, chunk) for n, chunk in enumerate(chunks, 1)],
    )


#: Characters that no heading has, and some that others would escape.
ALPHABET = "qxzé<&\\'\"€"
WORDS = st.text(ALPHABET, max_size=30)
SAID = st.text(ALPHABET, min_size=1, max_size=30)
CHUNKS = st.one_of(
    st.builds(Chunk, kind=st.just(ChunkKind.TEXT), text=SAID),
    st.builds(Chunk, kind=st.just(ChunkKind.MESSAGE), role=SAID, text=SAID),
    st.builds(
        Chunk,
        kind=st.just(ChunkKind.STEP),
        observation=WORDS,
        thought=WORDS,
        action=WORDS,
        observed_first=st.booleans(),
    ).filter(lambda chunk: not chunk.is_empty()),
)
STACKS = st.lists(WORDS, min_size=1, max_size=4).map(
    lambda texts: [vector(len(texts) - n, text) for n, text in enumerate(texts)]
)
LOGS = st.lists(CHUNKS, max_size=6)


@given(STACKS, LOGS)
def test_until_the_next_compression_a_context_only_grows_at_its_end(
    stack: list[StateVector], chunks: list[Chunk]
) -> None:
    contexts = [context(stack, chunks[:n]) for n in range(len(chunks) + 1)]
    for before, after in pairwise(contexts):
        assert as_text(after).startswith(as_text(before))
        told = as_messages(before)
        assert list(as_messages(after))[: len(told)] == list(told)


@given(STACKS, LOGS)
def test_every_vector_and_every_chunk_stands_in_it_word_for_word(
    stack: list[StateVector], chunks: list[Chunk]
) -> None:
    one = context(stack, chunks)
    texts = [vector.text for vector in stack]
    walk(as_text(one), [*texts, *(chunk.as_text() for chunk in chunks)])
    messages = as_messages(one)
    assert all(message.content for message in messages)
    parts = [part for chunk in chunks for part in in_order(chunk)]
    walk("".join(message.content for message in messages), [*texts, *parts])


def in_order(chunk: Chunk) -> Sequence[str]:
    """Returns the parts of a chunk as a text and as messages have them."""
    done = (chunk.text, chunk.thought, chunk.action)
    return (chunk.observation, *done) if chunk.observed_first else (*done, chunk.observation)


def walk(text: str, parts: Sequence[str]) -> None:
    """All of the parts are in the text, in order, with no more than headings between."""
    for part in filter(None, parts):
        before, found, text = text.partition(part)
        assert found == part
        assert len(before) < 40
    assert text == ""


def test_the_parts_stand_in_their_order_below_short_headings() -> None:
    one = context(
        [vector(3, "the year"), vector(2, "the week"), vector(1, "today")],
        [
            Chunk(kind=ChunkKind.STEP, observation="a door", thought="open it", action="open"),
            Chunk(kind=ChunkKind.MESSAGE, role="tool", text="It is open."),
            Chunk(kind=ChunkKind.TEXT, text="a note"),
            Chunk(kind=ChunkKind.STEP, action="wait"),
            Chunk(kind=ChunkKind.STEP, observation="dark"),
            Chunk(kind=ChunkKind.STEP, observation="a cat", action="pat", observed_first=True),
        ],
    )
    assert as_text(one) == (
        "Memory, level 3:\nthe year\n\nMemory, level 2:\nthe week\n\nMemory:\ntoday\n\n"
        "Recent steps:\n\nThought: open it\nAction: open\nObservation: a door\n\n"
        "tool: It is open.\n\na note\n\nAction: wait\n\nObservation: dark\n\n"
        "Observation: a cat\nAction: pat"
    )
    assert as_messages(one) == [
        Message(
            role="system",
            content="Memory, level 3:\nthe year\n\nMemory, level 2:\nthe week\n\nMemory:\ntoday",
        ),
        Message(role="assistant", content="Thought: open it\nAction: open"),
        Message(role="user", content="Observation: a door"),
        Message(role="tool", content="It is open."),
        Message(role="user", content="a note"),
        Message(role="assistant", content="Action: wait"),
        Message(role="user", content="Observation: dark"),
        Message(role="user", content="Observation: a cat"),
        Message(role="assistant", content="Action: pat"),
    ]
    assert (one.head, one.memory_tokens, one.recent_tokens) == (
        10,
        60,
        sum(estimate_tokens(step.text) for step in one.recent),
    )


def test_a_step_of_a_release_that_did_not_say_reads_as_it_did() -> None:
    old = Chunk(kind=ChunkKind.STEP, observation="a", thought="b", action="c", observed_first=None)
    one = context([vector(1, "")], [old])
    assert as_text(one) == "Recent steps:\n\nObservation: a\nThought: b\nAction: c"
    assert as_messages(one) == [
        Message(role="assistant", content="Thought: b\nAction: c"),
        Message(role="user", content="Observation: a"),
    ]


def test_a_task_has_its_own_heading_and_empty_parts_have_none() -> None:
    asked = WorkingContext(state=first_state(StateSpec(task="Find the key.")), recent=[])
    assert as_text(asked) == "Task:\nFind the key."
    assert as_messages(asked) == [Message(role="system", content="Task:\nFind the key.")]
    nothing = WorkingContext(state=first_state(StateSpec()), recent=[])
    assert (as_text(nothing), as_messages(nothing), nothing.head) == ("", [], 0)
    only = context([vector(1, "")], [Chunk(kind=ChunkKind.TEXT, text="a note")])
    assert as_text(only) == "Recent steps:\n\na note"
    assert as_messages(only) == [Message(role="user", content="a note")]


def test_a_value_has_the_vectors_and_the_recent_chunks() -> None:
    one = context(
        [vector(2, "the week", revision=8), vector(1, "today", revision=9)],
        [Chunk(kind=ChunkKind.MESSAGE, role="user", text="hello")],
    )
    there = {"from_position": 0, "to_position": 4}
    assert as_value(one) == {
        "vectors": [
            {"revision": 8, "level": 2, "text": "the week", **there},
            {"revision": 9, "level": 1, "text": "today", **there},
        ],
        "recent": [{"position": 5, "text": "user: hello"}],
    }
    assert by_level(one.state) == {"levels": {"2": "the week", "1": "today"}}


@pytest.mark.parametrize(
    ("steps", "flushed", "idle", "wanted"),
    [(2, 0, 0, False), (3, 0, 0, True), (2, 6, 0, True), (2, 4, 0, False), (2, 0, 60, True)],
)
def test_a_compression_is_due_as_the_triggers_say(
    steps: int, flushed: int, idle: int, wanted: bool
) -> None:
    one = context([vector(1, "today")], [Chunk(kind=ChunkKind.TEXT, text="a note")] * steps)
    now = one.recent[-1].logged.created_at + timedelta(seconds=idle)
    spec = StateSpec(period=3, idle_ms=60_000)
    assert is_due(spec, one, flush_position=flushed, now=now) is wanted


def test_a_full_level_is_due_without_a_step() -> None:
    stack = (vector(1, "today", revision=2),)
    full = State(revision=2, applied_position=4, levels=VectorLevels(((1, 2),)), stack=stack)
    one = WorkingContext(state=full, recent=[])
    assert is_due(StateSpec(episode_vectors=2), one)
    assert not is_due(StateSpec(episode_vectors=3), one)
    assert not is_due(StateSpec(), one)


def test_a_source_that_is_not_verified_is_named() -> None:
    said = [step(1, Chunk(kind=ChunkKind.TEXT, text=text)) for text in ("a", "b")]
    recent = [
        replace(one, logged=replace(one.logged, trust=level))
        for one, level in zip(said, (Trust.TRUSTED, Trust.UNVERIFIED), strict=True)
    ]
    (task,) = first_state(StateSpec(task="Find it.")).stack
    state = State(revision=0, applied_position=0, levels=VectorLevels(), stack=(task,))
    context = WorkingContext(state=state, recent=recent)
    assert as_text(context).endswith("\n\na\n\n(unverified source)\nb")
    assert [one.content for one in as_messages(context)][1:] == ["a", "(unverified source)\nb"]
    value = as_value(context)
    assert isinstance(value, dict)
    assert value["recent"] == [
        {"position": 1, "text": "a"},
        {"position": 1, "text": "b", "trust": "unverified"},
    ]
