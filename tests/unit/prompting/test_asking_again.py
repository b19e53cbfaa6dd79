"""What every flow does about a reply, by how it ended."""

from collections.abc import Sequence

import pytest

from service.domain.prompting.asking import (
    MAX_TRIES,
    THEN,
    NoUse,
    Then,
    Unusable,
    usable,
)
from service.domain.prompting.ends import End
from service.domain.prompting.flows import (
    NO_USE,
    Flow,
    ModelReply,
    ModelRequest,
    Purpose,
    Segment,
    SegmentKind,
)

ASK = ModelRequest(
    purpose=Purpose.REVISE,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="Say a number."),),
    max_output_tokens=100,
)


def number(text: str) -> int:
    if not text.isdigit():
        raise Unusable("it is no number")
    return int(text)


def reply(text: str, end: End = End.COMPLETE, said: str = "") -> ModelReply:
    return ModelReply(text=text, model="m/x", end=end, said=said)


def run(flow: Flow[object], replies: Sequence[ModelReply]) -> tuple[object, list[ModelRequest]]:
    """Returns the result of a flow that is given these replies, and what it asked."""
    asks: list[ModelRequest] = []
    left = list(replies)
    try:
        batch = next(flow)
        while True:
            asks += batch
            said, left = left[: len(batch)], left[len(batch) :]
            batch = flow.send(said)
    except StopIteration as end:
        return end.value, asks


def test_each_end_has_its_answer_and_only_a_complete_reply_is_read() -> None:
    assert set(THEN) == set(End)
    assert [end for end in End if THEN[end] is Then.READ] == [End.COMPLETE]


def test_a_reply_of_use_is_asked_for_once() -> None:
    found, asks = run(usable(ASK, number, what="number"), [reply("7")])
    assert found == 7
    assert asks == [ASK]


@pytest.mark.parametrize(
    ("end", "text", "fault", "tokens"),
    [
        (End.COMPLETE, "seven", "it is no number", 100),
        (End.EMPTY, "", "it was empty", 100),
        (End.TOOL_CALL, "", "it called a tool", 100),
        (End.UNKNOWN, "7", "it was broken off", 100),
        (End.LENGTH, "7", "it was too long", 200),
        (End.THINKING, "", "all of it was thinking", 200),
    ],
)
def test_what_was_wrong_is_said_when_it_is_asked_for_again(
    end: End, text: str, fault: str, tokens: int
) -> None:
    found, asks = run(usable(ASK, number, what="number"), [reply(text, end), reply("7")])
    assert found == 7
    first, second = asks
    assert first == ASK
    assert second.text.startswith(ASK.text)
    assert fault in second.text[len(ASK.text) :]
    assert (second.attempt, second.max_output_tokens) == (1, tokens)


@pytest.mark.parametrize("end", [end for end in End if not end.is_refused])
def test_no_prompt_is_asked_twice(end: End) -> None:
    _, asks = run(usable(ASK, number, what="number"), [reply("seven", end)] * 2 + [reply("7")])
    assert len({ask.text for ask in asks}) == 3, "the same prompt brings the same reply"
    assert "2 replies to this were no use; of the last one: " in asks[2].text


def test_more_room_has_a_bound() -> None:
    replies = [reply("7", End.LENGTH)] * 2 + [reply("7")]
    _, asks = run(usable(ASK, number, what="number", most_tokens=150), replies)
    assert [ask.max_output_tokens for ask in asks] == [100, 150, 150]
    _, asks = run(usable(ASK, number, what="number", most_tokens=50), replies)
    assert [ask.max_output_tokens for ask in asks] == [100, 100, 100]


@pytest.mark.parametrize("end", [end for end in End if not end.is_refused])
def test_it_ends_with_what_was_wrong(end: End) -> None:
    with pytest.raises(NoUse, match="no number in 3 replies") as caught:
        run(usable(ASK, number, what="number"), [reply("seven", end)] * MAX_TRIES)
    assert caught.value.end is end
    assert not caught.value.retryable


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refused_text_is_not_asked_about_again(end: End) -> None:
    with pytest.raises(NoUse, match="refused the text: I cannot; skip the text") as caught:
        run(usable(ASK, number, what="number"), [reply("7", end, "I cannot")])
    assert caught.value.end is end


@pytest.mark.parametrize("end", [End.LENGTH, End.THINKING])
def test_who_can_ask_for_less_ends_it_at_the_second_reply_that_is_cut(end: End) -> None:
    flow = usable(ASK, number, what="number", cut_tries=2)
    with pytest.raises(NoUse, match="in 2 replies") as caught:
        run(flow, [reply("7", end)] * 2)
    assert caught.value.end is end
    found, asks = run(
        usable(ASK, number, what="number", cut_tries=2),
        [reply("7", end), reply("seven"), reply("8")],
    )
    assert (found, len(asks)) == (8, 3), "others are asked for as often as ever"


def test_words_of_a_model_are_reported_and_not_logged() -> None:
    with pytest.raises(NoUse, match="it begins: seven words") as caught:
        run(usable(ASK, number, what="number"), [reply("seven\nwords")] * 3)
    assert "seven" not in caught.value.plain
    with pytest.raises(NoUse, match="refused the text: I cannot; ") as refused:
        run(usable(ASK, number, what="number"), [reply("", End.REFUSAL, said="I\ncannot")])
    assert "cannot" not in refused.value.plain
    assert str(refused.value).startswith(NO_USE), "a retry asks anew"
