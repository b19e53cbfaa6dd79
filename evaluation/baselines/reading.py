"""The baselines of section 4.3 (arXiv 2310.05029) as flows.

Full context cut at either end, retrieval, and recurrence, which carries a summary from one
part of the text to the next. Each keeps to one window, the reply included. They ask once, as
they were published: a reply that was cut off counts as far as it goes, a useless one does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from evaluation.baselines.prompts import (
    BaselineQuestion,
    NextPart,
    carry_ask,
    read_answer,
    read_ask,
)
from evaluation.baselines.texts import Count, Part, Text, beginning, ending, parts
from service.domain.prompting.asking import FAULTS, NoUse, check_refused, fault_of_end
from service.domain.prompting.ends import End
from service.domain.prompting.flows import NO_USE, Flow, ModelReply, ModelRequest
from service.domain.prompting.thoughts import is_thought, spoken
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import ranked

#: Tokens of an answer at most.
ANSWER_TOKENS = 256
#: Tokens of a segment that retrieval ranks, and of one that recurrence reads (section 4.3).
RETRIEVED_TOKENS = 1000
RECURRENT_TOKENS = 2500
#: Tokens of the summary that is carried on at most.
CARRIED_TOKENS = 500
#: For what a count does not see: the marks about texts, and a model's own template.
MARGIN_TOKENS = 96
#: The part of it for the marks around each further text.
MARKS_TOKENS = 48
#: Room for questions is kept in steps of this many tokens, so that most questions of a
#: document get the same text and an engine's cache has it.
QUESTION_STEP_TOKENS = 64
#: Tokens of text that a prompt must have room for, and that a part is cut to at least.
LEAST_TEXT_TOKENS = 64
#: The smallest window that leaves this room beside a short question.
LEAST_WINDOW_TOKENS = 2048


class NoRoom(Exception):
    """The window has no room for a text beside the question; the message is one sentence."""


class Baseline(StrEnum):
    """A way to answer without a memory."""

    #: Full context, the end cut off.
    FULL_LEFT = "full-left"
    #: Full context, the beginning cut off.
    FULL_RIGHT = "full-right"
    RETRIEVAL = "retrieval"
    RECURRENCE = "recurrence"


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What a prompt may have."""

    #: Prompt and reply together; LEAST_WINDOW_TOKENS or more.
    tokens: int
    #: Tokens of a text.
    count: Count
    #: Derives the marks about texts from outside.
    marker_key: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What came of reading."""

    #: Empty when there is no answer.
    text: str
    #: Positions of the chunks that the prompt showed, at least in part.
    positions: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """A document as recurrence has read it: all but its last part, as a summary."""

    summary: str
    #: The last part, which is read as it is.
    last: str
    positions: frozenset[int]


def read_full(
    baseline: Baseline, text: Text, query: str, options: Sequence[str], window: Window
) -> Flow[Found]:
    """Answers from as much of the text as the window holds. Raises NoRoom."""
    room = _room(query, options, window)
    take = beginning if baseline is Baseline.FULL_LEFT else ending
    part = take(text.whole, room, window.count)
    return (yield from _read([part], text, query, options, window))


def read_retrieved(text: Text, query: str, options: Sequence[str], window: Window) -> Flow[Found]:
    """Answers from the segments that fit the question best, in the order of the text.

    The last one that there is room for is cut. Raises NoRoom.
    """
    room = _room(query, options, window)
    segments = parts(text.whole, RETRIEVED_TOKENS, estimate_tokens)
    chosen: list[Part] = []
    wanted = " ".join((query, *options))
    for number in ranked(wanted, [one.text for one in segments]):
        if room < LEAST_TEXT_TOKENS:
            break
        segment = segments[number]
        fitting = beginning(segment.text, room, window.count)
        chosen.append(Part(start=segment.start, text=fitting.text))
        room -= window.count(fitting.text) + MARKS_TOKENS
    chosen.sort(key=_start)
    return (yield from _read(chosen, text, query, options, window))


def carry(text: Text, window: Window) -> Flow[Carried]:
    """Reads a document up to its last part, which no question is needed for.

    Raises NoRoom, and NoUse when a reply has no summary: what was read would be lost.
    """
    bare = NextPart(carried="", text="", max_tokens=CARRIED_TOKENS)
    overhead = _tokens(carry_ask(bare, marker_key=window.marker_key), window)
    room = window.tokens - overhead - 2 * CARRIED_TOKENS - MARGIN_TOKENS
    if room < LEAST_TEXT_TOKENS:
        raise NoRoom(f"a window of {window.tokens} tokens has no room to carry a summary on")
    read = parts(text.whole, min(RECURRENT_TOKENS, room), window.count)
    summary = ""
    for part in read[:-1]:
        content = NextPart(carried=summary, text=part.text, max_tokens=CARRIED_TOKENS)
        reply = (yield [carry_ask(content, marker_key=window.marker_key)])[0]
        # A model may write more than the prompt allows.
        summary = beginning(_summary(reply), CARRIED_TOKENS, window.count).text
    last = read[-1] if read else Part(start=0, text="")
    return Carried(summary=summary, last=last.text, positions=text.positions(last.start, last.end))


def read_carried(
    carried: Carried, query: str, options: Sequence[str], window: Window
) -> Flow[Found]:
    """Answers from the summary of what went before, and the last part. Raises NoRoom."""
    room = _room(query, options, window) - window.count(carried.summary) - MARKS_TOKENS
    if room < LEAST_TEXT_TOKENS:
        raise _no_room(window)
    last = ending(carried.last, room, window.count)
    texts = tuple(one for one in (carried.summary, last.text) if one)
    content = BaselineQuestion(query=query, options=tuple(options), texts=texts)
    reply = (yield [_ask(content, window)])[0]
    return Found(text=_answer(reply, options), positions=carried.positions)


def _read(
    chosen: Sequence[Part], text: Text, query: str, options: Sequence[str], window: Window
) -> Flow[Found]:
    content = BaselineQuestion(
        query=query, options=tuple(options), texts=tuple(part.text for part in chosen)
    )
    reply = (yield [_ask(content, window)])[0]
    shown = (text.positions(part.start, part.end) for part in chosen)
    return Found(text=_answer(reply, options), positions=frozenset().union(*shown))


def _summary(reply: ModelReply) -> str:
    """Returns the summary of a reply, as far as it goes. Raises NoUse."""
    check_refused(reply)
    text = spoken(reply.text).strip()
    fault = fault_of_end(reply) if reply.end is not End.LENGTH else None
    if fault is None and (is_thought(text) or not text):
        fault = FAULTS[End.THINKING if text else End.EMPTY]
    if fault is not None:
        raise NoUse(f"{NO_USE} summary to carry on: {fault}", end=reply.end)
    return text


def _answer(reply: ModelReply, options: Sequence[str]) -> str:
    """Returns the answer of a reply, as far as it goes; empty for none, and for a useless reply."""
    is_read = reply.end in (End.COMPLETE, End.LENGTH)
    return read_answer(reply.text, options) if is_read else ""


def _ask(content: BaselineQuestion, window: Window) -> ModelRequest:
    return read_ask(content, marker_key=window.marker_key, max_output_tokens=ANSWER_TOKENS)


def _room(query: str, options: Sequence[str], window: Window) -> int:
    """Tokens that are left for text."""
    bare = BaselineQuestion(query=query, options=tuple(options), texts=())
    overhead = _tokens(_ask(bare, window), window)
    overhead += -overhead % QUESTION_STEP_TOKENS
    room = window.tokens - overhead - ANSWER_TOKENS - MARGIN_TOKENS
    if room < LEAST_TEXT_TOKENS:
        raise _no_room(window)
    return room


def _no_room(window: Window) -> NoRoom:
    return NoRoom(f"a window of {window.tokens} tokens has no room for a text and this question")


def _tokens(ask: ModelRequest, window: Window) -> int:
    return sum(window.count(segment.text) for segment in ask.segments)


def _start(part: Part) -> int:
    return part.start
