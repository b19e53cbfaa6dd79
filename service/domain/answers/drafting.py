"""Asks a model for an answer in one prompt, which has all that the reader shows of its source."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from service.domain.answers.trajectory import NoAnswer
from service.domain.prompting.asking import NoUse, SaidAnswer, Unusable, free_tokens, usable_or_cut
from service.domain.prompting.cutting import ELLIPSIS
from service.domain.prompting.fitting import MARGIN_TOKENS, Count
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest, Purpose, Segment

#: Tokens of an answer, thoughts before it included; a reply that uses them up gets more once.
ANSWER_OUTPUT_TOKENS = 2048

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDraft(SaidAnswer[T]):
    """An answer, and what it rests on: quotes, paths or positions."""

    #: None when there is an answer.
    no_answer: NoAnswer | None = None
    #: In their order; none where no model was asked.
    replies: tuple[ModelReply, ...] = field(default=(), compare=False)


def answer_tokens(window_tokens: int) -> int:
    """Returns the tokens of an answer: never more than a quarter of the window."""
    return max(min(ANSWER_OUTPUT_TOKENS, window_tokens // 4), 1)


def room_for(window_tokens: int) -> int:
    """Returns how many tokens a prompt may have."""
    return window_tokens - answer_tokens(window_tokens) - MARGIN_TOKENS


def draft(
    template: str,
    segments: tuple[Segment, ...],
    read: Callable[[str, bool], SaidAnswer[T] | None],
    *,
    find_text: Callable[[str], str],
    window_tokens: int,
    count: Count,
    must_answer: bool = False,
) -> Flow[AnswerDraft[T]]:
    """Asks for an answer until a reply has one, or says that there is none.

    `read` gets a reply and whether it was cut off, and returns None where it has no answer.
    `count` and `window_tokens` are the model's. Raises NoUse when the model refuses the text;
    with `must_answer` also when no reply has an answer.
    """
    ask = ModelRequest(
        purpose=Purpose.ANSWER,
        template=template,
        segments=segments,
        max_output_tokens=answer_tokens(window_tokens),
        find_text=find_text,
    )
    replies: list[ModelReply] = []

    def reading(reply: str, is_cut: bool) -> SaidAnswer[T]:
        said = read(reply, is_cut)
        if said is None:
            raise Unusable("it has no answer")
        return replace(said, text=said.text + ELLIPSIS) if said.is_cut else said

    most = free_tokens(ask, window_tokens, count)
    try:
        said = yield from usable_or_cut(ask, reading, what="answer", most_tokens=most, seen=replies)
    except NoUse as error:
        if must_answer or error.end.is_refused:
            raise
        return AnswerDraft(text="", no_answer=NoAnswer.UNREADABLE, replies=tuple(replies))
    return AnswerDraft(
        text=said.text,
        sources=said.sources,
        is_cut=said.is_cut,
        no_answer=None if said.text else NoAnswer.NOT_FOUND,
        replies=tuple(replies),
    )
