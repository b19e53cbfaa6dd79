"""Shaping reads replies, requests bad ones again, and stays within the window."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.shaping import MAX_TRIES, ShapeContent, Shaped, read_value, shape
from service.domain.prompting.asking import FAULTS
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import TextTooLong, prompt_tokens
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.usecases.answers.response_forms import checker

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
CONTENT = ShapeContent(
    query="Who wrote the first program, and how old was she?",
    answer="Ada, at 27.",
    excerpts=("Ada wrote it when she was 27.",),
    schema=PERSON,
)


def flow_of(content: ShapeContent = CONTENT, **changes: Any) -> Flow[Shaped]:
    values: dict[str, Any] = {
        "check": checker(content.schema),
        "marker_key": b"key",
        "window_tokens": 32_768,
        "count": estimate_tokens,
        **changes,
    }
    return shape(content, **values)


def run(flow: Flow[Shaped], *replies: str | ModelReply) -> tuple[Shaped, list[ModelRequest]]:
    asks = list(next(flow))
    try:
        for text in replies:
            said = ModelReply(text=text, model="m") if isinstance(text, str) else text
            asks += flow.send([said])
    except StopIteration as end:
        return end.value, asks
    raise AssertionError("it asks for more")


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "Ada", "age": 27}',
        '```json\n{"name": "Ada", "age": 27}\n```',
        'Here it is:\n\n{"name": "Ada", "age": 27}\nI hope that helps.',
        '<think>{"name": 1}</think>\n{"name": "Ada", "age": 27}',
        'Not {"name": "Ada"} but {"name": "Ada", "age": 27}.',
    ],
)
def test_a_value_is_found_in_what_models_write(reply: str) -> None:
    assert read_value(reply, checker(PERSON)) == ({"name": "Ada", "age": 27}, "")


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("", "the reply has no value"),
        ("<think>hm", "the reply has no value"),
        ("I do not know.", "the reply is no JSON"),
        ('{"name": "Ada", "age": 2', "the reply is no JSON"),
        ('{"name": "Ada"}', "'age' is a required property"),
        ('{"name": "Ada", "age": NaN}', "the reply is no JSON"),
    ],
)
def test_what_does_not_fit_is_reported(reply: str, fault: str) -> None:
    assert read_value(reply, checker(PERSON)) == (None, fault)


@pytest.mark.parametrize(
    ("schema", "reply", "value"),
    [
        ({"type": "string"}, "Box 7.", "Box 7."),
        ({"type": "string"}, '"Box 7."', "Box 7."),
        ({"type": "integer"}, "7", 7),
        ({"type": "boolean"}, "true", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "array", "items": {"type": "integer"}}, "They are [1, 2].", [1, 2]),
        ({"enum": ["red", "blue"]}, "red", "red"),
    ],
)
def test_forms_that_are_no_objects(schema: Any, reply: str, value: Any) -> None:
    assert read_value(reply, checker(schema)) == (value, "")


def test_the_second_prompt_says_what_was_wrong_with_the_first_reply() -> None:
    shaped, (first, second) = run(flow_of(), '{"name": "Ada"}', '{"name": "Ada", "age": 27}')
    assert (shaped.fits, shaped.value) == (True, {"name": "Ada", "age": 27})
    assert [one.fault for one in shaped.tries] == ["'age' is a required property", ""]
    assert second.text.startswith(first.text)
    assert '{"name": "Ada"}' in second.text
    assert "'age' is a required property" in second.text
    assert (first.attempt, second.attempt) == (0, 1)


def test_after_three_replies_that_do_not_fit_there_is_no_value() -> None:
    shaped, asks = run(flow_of(), "?", "{}", "[]")
    assert (shaped.fits, shaped.value, len(asks)) == (False, None, MAX_TRIES)
    assert all(one.fault for one in shaped.tries)


def test_the_schema_goes_with_the_prompt_when_it_is_of_an_object() -> None:
    _, (asked,) = run(flow_of(), '{"name": "Ada", "age": 27}')
    assert asked.reply_schema == PERSON
    content = ShapeContent(query="?", answer="7", excerpts=(), schema={"type": "integer"})
    _, (asked,) = run(flow_of(content), "7")
    assert asked.reply_schema is None


def test_a_value_that_was_cut_off_is_asked_for_with_more_room() -> None:
    cut = ModelReply(text='{"name": "Ada"}, {"name": ', model="m", end=End.LENGTH)
    shaped, (first, second) = run(flow_of(), cut, '{"name": "Ada", "age": 27}')
    assert shaped.fits
    assert shaped.tries[0].fault == "it was too long, and was cut off before its end"
    assert shaped.tries[0].fault in second.text
    assert second.max_output_tokens == 2 * first.max_output_tokens


@pytest.mark.parametrize("end", [End.THINKING, End.EMPTY, End.TOOL_CALL, End.UNKNOWN])
def test_a_reply_that_says_nothing_is_asked_for_again(end: End) -> None:
    none = ModelReply(text="", model="m", end=end)
    shaped, (_, second) = run(flow_of(), none, '{"name": "Ada", "age": 27}')
    assert shaped.fits
    assert FAULTS[end] in second.text
    assert "\n[EARLIER REPLY]\n" not in second.text


def test_no_prompt_is_asked_twice() -> None:
    for reply in ("Ada", ModelReply(text="", model="m", end=End.EMPTY)):
        shaped, asks = run(flow_of(), reply, reply, '{"name": "Ada", "age": 27}')
        assert shaped.fits
        assert len({ask.text for ask in asks}) == 3, "the same prompt brings the same reply"


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refusal_ends_it_with_its_words(end: End) -> None:
    shaped, asks = run(flow_of(), ModelReply(text="", model="m", end=end, said="not that"))
    assert (shaped.fits, len(asks)) == (False, 1)
    assert "not that" in shaped.tries[0].fault


@given(
    answer=st.text(max_size=6000),
    excerpts=st.lists(st.text(max_size=2000), max_size=6),
    window=st.integers(min_value=1500, max_value=8000),
    reply=st.text(max_size=9000),
)
def test_no_prompt_passes_the_window(
    answer: str, excerpts: list[str], window: int, reply: str
) -> None:
    content = ShapeContent(query="Who?", answer=answer, excerpts=tuple(excerpts), schema=PERSON)
    flow = flow_of(content, window_tokens=window, check=lambda _: "it does not fit")
    asks = list(next(flow))
    asks += flow.send([ModelReply(text=reply, model="m")])
    flow.close()
    for ask in asks:
        tokens = prompt_tokens(ask.segments, estimate_tokens)
        assert tokens + ask.max_output_tokens <= window


def test_a_schema_that_leaves_no_room_is_refused() -> None:
    schema = {**PERSON, "description": "a person " * 1000}
    content = ShapeContent(query="Who?", answer="Ada.", excerpts=(), schema=schema)
    with pytest.raises(TextTooLong, match="tokens too long for a prompt of"):
        next(flow_of(content, window_tokens=2000))
