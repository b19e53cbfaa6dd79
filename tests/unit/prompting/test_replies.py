"""What every method tolerates in replies: the same, wherever it is read."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers import whole
from service.domain.answers.browse.replies import split_reply
from service.domain.answers.shaping import read_value
from service.domain.prism import replies as prism
from service.domain.prompting.literals import MAX_LEVELS
from service.domain.prompting.replies import (
    MAX_REPLY_CHARACTERS,
    MAX_VALUES_IN_TEXT,
    fenced,
    json_objects,
    json_values,
    prose,
    storable,
    unmarked,
    written,
)
from service.domain.state import asking as state
from service.domain.tree.moves import Enter, read_triage
from verification.fuzz.runs import count_calls


@pytest.mark.parametrize(
    "reply",
    [
        '{"action": 2, "reasoning": "r"}',
        '{"action": 2, "reasoning": "r",}',
        "{'action': 2, 'reasoning': 'r'}",
        '{action: 2, reasoning: "r"}',
        '{\n  "action": 2, // the second\n  "reasoning": "r"\n}',
        'So:\n```json\n{"action": 2, "reasoning": "r", "sure": NaN}\n```',
        '<think>{"action": 1}</think> {"action": 2, "reasoning": "r"}',
    ],
)
def test_json_is_read_as_models_write_it(reply: str) -> None:
    move = read_triage(reply, shown=3, closed=(), may_revert=True, beam=1)
    assert move == Enter(targets=(2,), reasoning="r")


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ('{"action": "answer", "text": "Ben",}', "Ben"),
        ("{'action': 'answer', 'text': 'Ben\\'s'}", "Ben's"),
        ('{"action": "answer", "text": null}', ""),
        ('{"action": "answer", "text": None}', ""),
    ],
)
def test_browsing_reads_the_same_json(reply: str, text: str) -> None:
    assert (split_reply(reply).action, split_reply(reply).text) == ("answer", text)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ('{"name": "Ada",}', {"name": "Ada"}),
        ("Here: {'name': 'Ada'}", {"name": "Ada"}),
        ("```\n7\n```", 7),
        ("```7```", 7),
        # By itself it is a word as well.
        ("None", "None"),
        ("True", "True"),
        ("<think>7</think> 8", 8),
    ],
)
def test_shaping_reads_the_same_json(reply: str, value: Any) -> None:
    assert read_value(reply, lambda _: "") == (value, "")


def of_prism(reply: str) -> str | None:
    said = prism.read_answer(reply)
    return None if said is None else said.text


def of_whole(reply: str) -> str | None:
    said = whole.read_answer(reply)
    return None if said is None else said.text


def of_state(reply: str) -> str | None:
    said = state.read_answer(reply, ())
    return None if said is None else said.text


@pytest.mark.parametrize("read", [of_prism, of_whole, of_state])
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("[ANSWER]\nBox 7.", "Box 7."),
        ("## [Answer]:\nBox 7.", "Box 7."),
        ("`[ ANSWER ]` Box 7.", "Box 7."),
        ("**Answer:** Box 7.", "Box 7."),
        ("Well.\nThe final answer: Box 7.", "Box 7."),
        ("answer: Box 6?\n[ANSWER]\nBox 7.", "Box 7."),
        ("<think>Box 6?</think> Box 7.", "Box 7."),
        ("Box 7.", "Box 7."),
        ("**No answer.**", ""),
        ("[ANSWER]\n**", None),
        ("<think>Box 7.", None),
    ],
)
def test_every_answer_is_found_below_every_heading(
    read: Callable[[str], str | None], reply: str, answer: str | None
) -> None:
    assert read(reply) == answer


@pytest.mark.parametrize("read", [of_prism, of_whole, of_state])
def test_of_an_answer_without_end_the_beginning_is_read(read: Callable[[str], str | None]) -> None:
    assert len(read("x" * (2 * MAX_REPLY_CHARACTERS)) or "") == MAX_REPLY_CHARACTERS


def test_the_last_header_of_sources_ends_the_answer() -> None:
    reply = "[ANSWER]\nIt has\n[PATHS]\nand\n[PATHS]\n$.a"
    said = prism.read_answer(reply)
    assert said is not None
    assert (said.text, said.sources) == ("It has\n[PATHS]\nand", ("$.a",))
    assert prism.answer_so_far(reply) == said.text


@pytest.mark.parametrize(
    ("name", "read", "so_far"),
    [
        ("PATHS", of_prism, prism.answer_so_far),
        ("QUOTES", of_whole, whole.answer_so_far),
        ("STEPS", of_state, state.answer_so_far),
    ],
)
def test_of_a_reply_that_is_written_twice_the_first_counts(
    name: str, read: Callable[[str], str | None], so_far: Callable[[str], str]
) -> None:
    twice = 2 * f"[ANSWER]\nBox 7.\n[{name}]\n1: x\n"
    assert (read(twice), so_far(twice)) == ("Box 7.", "Box 7.")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (' "the sun" ', "the sun"),
        ("**the sun**", "the sun"),
        # The first half was before the name of the part.
        ("the sun**", "the sun"),
        ("```the sun```", "the sun"),
        ('the "sun"', 'the "sun"'),
        ('5"', '5"'),
        ('"a" or "b"', '"a" or "b"'),
        ("__init__", "__init__"),
        ("**kwargs", "**kwargs"),
    ],
)
def test_signs_around_a_text_are_taken_off(text: str, bare: str) -> None:
    assert unmarked(text) == bare


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Summary: A ship.", "A ship."),
        ("**Summary:** A ship.", "A ship."),
        ("### Summary\nA ship.", "A ship."),
        ("<think>hm</think> [SUMMARY]: A ship.", "A ship."),
        ("Summary", "Summary"),
        ("Summaries are short.", "Summaries are short."),
        ("<think>hm", ""),
    ],
)
def test_prose_has_no_heading(reply: str, text: str) -> None:
    assert prose(reply, "summary") == text


def test_fences_are_found_and_one_without_end_as_well() -> None:
    lines = ["```python", "a", "```", "b", "~~~", "c"]
    assert list(fenced(lines)) == [range(1, 2), range(5, 6)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a\0b", "ab"),
        ([1, 2.0, None, "x"], "1, 2, , x"),
        ({"a": [True, "\ud800"]}, '{"a": [true, "?"]}'),
        (2.5, "2.5"),
    ],
)
def test_values_are_written_as_text(value: Any, text: str) -> None:
    assert written(value, ", ") == text


def test_what_is_looked_for_in_a_reply_is_bounded() -> None:
    assert len(list(json_values("{} " * 100))) == MAX_VALUES_IN_TEXT
    assert list(json_values('{"a": ' + "[" * (MAX_LEVELS + 1))) == []
    text = '{"a": [' * 14_000
    assert count_calls(lambda: list(json_values(text))) < 40 * len(text)


@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(["{", "}", '"a"', ":", ",", "[", "]", "1", "NaN", "'b'", "\\ud800", "\0"])
    ).map("".join)
)
def test_any_text_is_looked_through(text: str) -> None:
    for pairs in json_objects(text):
        for name, value in pairs:
            assert name == name.lower()
            assert storable(written(value)) == written(value)
