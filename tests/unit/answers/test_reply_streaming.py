"""The pieces in which an unfinished reply is streamed."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.answers.answer_updates import (
    PIECE_CHARACTERS,
    TextPiece,
    following,
    text_of,
)
from service.domain.prompting.replies import json_text_so_far
from service.domain.prompting.sections import header, section_so_far

ANSWER, NEXT = header("ANSWER"), header("NEXT")


def section(reply: str) -> str:
    return section_so_far(reply, ANSWER, NEXT)


def all_of(reply: str, find_text) -> list[str]:  # type: ignore[no-untyped-def]
    """Returns the text streamed for every beginning of a reply."""
    return [find_text(reply[:end]) for end in range(len(reply) + 1)]


def grows(told: list[str]) -> bool:
    return all(after.startswith(before) for before, after in pairwise(told))


#: Replies of what matters, in any order.
_PARTS = st.lists(
    st.sampled_from(
        [
            "[ANSWER]", "[NEXT]", "[answer]", "**[ NEXT ]**:", "\n", " ", "[", "]", "*", "text",
            "[1] is a reference", "<think>", "</think>", "</thinking>\n", "</", "\t", "# ", ":",
        ]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(_PARTS)
@example("[ANSWER]\na\n[NEXT]\nb\n[NEXT]\nc")
@example("<think>\n[ANSWER]\nno\n</think>\n[ANSWER]\nyes\n</think>\n[ANSWER]\nthird")
def test_a_section_only_grows(reply: str) -> None:
    assert grows(all_of(reply, section))


@given(st.text(st.sampled_from("ab c\n.[]*1")), st.text(st.sampled_from("ab c\n.")))
def test_of_a_reply_as_asked_for_the_answer_is_told_and_nothing_else(
    answer: str, behind: str
) -> None:
    reply = f"[ANSWER]\n{answer}\n[NEXT]\n{behind}"
    assert section(reply) == answer.strip()
    assert all("[NEXT" not in told and "[ANS" not in told for told in all_of(reply, section))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("", ""),
        ("The answer is 4.", ""),
        ("[ANSWER]", ""),
        ("[ANSWER]\nIn May", "In May"),
        ("[ANSWER]\nIn May\n", "In May"),
        ("[ANSWER]\nIn May\n[NE", "In May"),
        ("[ANSWER]\nIn May\n**[NEXT]**", "In May"),
        ("[ANSWER]\nIn May\n[1]", "In May"),
        ("[ANSWER]\nIn May\n[1] says so", "In May\n[1] says so"),
        ("**[Answer]**: In May", "In May"),
        ("Let me see.\n[ANSWER] In May [NEXT]", "In May [NEXT]"),
        ("<think>\n[ANSWER]\nIn June", ""),
        ("<think>\n[ANSWER]\nIn June\n</think>\n[ANSWER]\nIn May", "In May"),
        ("<think>\n.\n</think>\n[ANSWER]\nIn May</th", "In May"),
    ],
)
def test_what_is_streamed_of_a_section(reply: str, told: str) -> None:
    assert section(reply) == told


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("", ""),
        ("{", ""),
        ('{"answer"', ""),
        ('{"answer": ', ""),
        ('{"answer": "', ""),
        ('{"answer": "In M', "In M"),
        ('{"answer": "In May \\', "In May"),
        ('{"answer": "a\\n', "a"),
        ('{"answer": "a\\nb', "a\nb"),
        ('{"answer": "a\\u00e', "a"),
        ('{"answer": "a\\u00e9', "aé"),
        ('{"answer": "\\ud83d', ""),
        ('{"answer": "\\ud83d\\ude00', "😀"),
        ('{"answer": "\\ud83d and', "? and"),
        ('{"answer": "a", "sources": ["b"]}', "a"),
        ('```json\n{"why": "{\\"answer\\": 1}", "answer": "a"', "a"),
        ('{"why": {"answer": "b"}, "answer": "a"', "a"),
        ('{"answer": {"answer": "b"}}', ""),
        ('{"answer": null, "x": "b"}', ""),
        ('A set {a, b}: {"answer": "a"', "a"),
        ('{"why": "answer", "answer": "a"', "a"),
        ('<think>\n{"answer": "b"}\n</think>\n{"answer": "a', "a"),
    ],
)
def test_what_is_streamed_of_json(reply: str, told: str) -> None:
    assert json_text_so_far(reply) == told


@pytest.mark.prove
@given(
    st.dictionaries(st.sampled_from(["why", "n", "x"]), st.recursive(
        st.none() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("answer"), inner),
            max_leaves=3,
    )),
    st.text(max_size=40),
    st.booleans(),
    st.sampled_from([None, 2]),
)  # fmt: skip
def test_the_answer_in_json_is_told_while_it_grows(
    before: dict[str, object], answer: str, ascii_only: bool, indent: int | None
) -> None:
    value = {**before, "answer": answer, "behind": ["answer"]}
    reply = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    told = all_of(reply, json_text_so_far)
    assert grows(told)
    assert told[-1] == answer.replace("\0", "").strip()


@given(st.text(st.sampled_from('{}[]:,"\\ua0 answer'), max_size=60))
def test_json_that_is_none_only_grows(reply: str) -> None:
    assert grows(all_of('{"answer"' + reply, json_text_so_far))


@given(
    st.lists(
        st.text(max_size=5) | st.integers(0, 3 * PIECE_CHARACTERS).map("x".__mul__), max_size=6
    )
)
def test_pieces_bring_who_hears_them_to_each_text(texts: list[str]) -> None:
    heard: list[TextPiece] = []
    for wanted in texts:
        heard += following(len(heard), text_of(heard), wanted)
        assert text_of(heard) == wanted
    assert [piece.ordinal for piece in heard] == list(range(1, len(heard) + 1))
    assert all(len(piece.text) <= PIECE_CHARACTERS for piece in heard)


def test_text_that_goes_on_does_not_begin_anew() -> None:
    assert following(2, "In", "In May") == (TextPiece(ordinal=3, text=" May"),)
    assert following(2, "In", "At") == (TextPiece(ordinal=3, text="At", restarts=True),)
    assert following(2, "In", "") == (TextPiece(ordinal=3, text="", restarts=True),)
    assert following(2, "In", "In") == ()
