"""Runs the browse of DCISO (arXiv 2405.15318, algorithm 1 and the options of section 4.2).

Which calls each option takes, for n pieces of which k are retrieved, when every reply can be
read; task understanding, where it is allowed, is one more:

- DYNAMIC: one a piece until one answers; else those, and those of the answer.
- RANK: one when the retrieved pieces fit into one prompt; else k and those of the answer.
  Where they may only be passed or answered from: up to k, and those of the answer.
- CARRY, INDEPENDENT: n and those of the answer. SCAN: one a piece until one answers.
- The answer: one, and where the notes do not fit one for each group of them; one more for
  a guess, where the question has options and there is no answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from service.domain.answers.browse.closing import close, close_from, fail
from service.domain.answers.browse.pieces import Browsed, Frame
from service.domain.answers.browse.prompts import CLOSING, prompts_within, usable
from service.domain.answers.browse.reading import MAX_BATCH, BrowseRun
from service.domain.answers.browse.sequential import carry, dynamic, scan
from service.domain.answers.browse.spec import (
    EXTRACTING,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
    QuerySubject,
    ReadingOrder,
    without_understanding,
)
from service.domain.answers.browse.understanding import choosable, understand
from service.domain.answers.trajectory import Action, EventKind, NoAnswer
from service.domain.prompting.asking import MAX_TRIES
from service.domain.prompting.fitting import PromptTerms
from service.domain.prompting.flows import FetchingFlow

#: Calls that understanding must leave: less is of no use to a reader that reads piece by piece.
LEFT_CALLS = 2

_OF_THE_WHOLE = (BrowseOption.CARRY, BrowseOption.INDEPENDENT)


def browse(
    query: str,
    frames: Sequence[Frame],
    *,
    request: BrowseRequest,
    **terms: Unpack[PromptTerms],
) -> FetchingFlow[Browsed]:
    """Answers a query from the pieces of a log, of at most `piece_tokens` each.

    Asks models, fetches `ReadPiece` and `RankPieces`, and emits each event. Raises TextTooLong
    when the query leaves no room.
    """
    prompts = prompts_within(query, request, **terms)
    reading = BrowseRun(prompts=prompts, request=request, frames=frames)
    if request.order is not ReadingOrder.AUTO:
        reading.order = request.order
    prompts.check_room()
    if not frames:
        return (yield from fail(reading, NoAnswer.EMPTY))
    if request.rewritten_query:
        _look_for(reading, request.rewritten_query)
    option = yield from _understand(reading)
    if request.rewritten_query:
        # The rewritten query was made together with the choice of the option.
        reading.subject = QuerySubject.OVERVIEW if option in _OF_THE_WHOLE else QuerySubject.FACT
    return (yield from _OPTIONS[option](reading))


def _look_for(reading: BrowseRun, words: str) -> None:
    reading.prompts = replace(reading.prompts, look_for=usable(words, reading.prompts))


def _understand(reading: BrowseRun) -> FetchingFlow[BrowseOption]:
    """Runs task understanding (algorithm 1, line 5) if it is allowed and not done already."""
    request = reading.request
    wanted = BrowseAction.TASK_UNDERSTANDING in request.actions and not request.rewritten_query
    allowed = choosable(request)
    attempts = min(MAX_TRIES, reading.calls_left - LEFT_CALLS)
    if not wanted or not allowed or attempts < 1:
        return without_understanding(request)
    understood = yield from understand(reading.prompts, allowed, attempts)
    reading.calls += len(understood.exchanges)
    result = understood.result
    for one in understood.exchanges:
        said: dict[str, Any] = {"text": one.fault}
        if not one.fault:
            why = f"{result.subject.value}, {result.order.value}"
            said = {"text": result.query, "reasoning": why}
        yield from reading.tell(
            EventKind.UNDERSTANDING,
            Action.INVALID if one.fault else Action.NONE,
            targets=() if one.fault else (result.option.value,),
            ask=one.ask,
            reply=one.reply,
            **said,
        )
    reading.subject = result.subject
    if request.order is ReadingOrder.AUTO:
        reading.order = result.order
    _look_for(reading, result.query)
    return result.option


def _rank(reading: BrowseRun) -> FetchingFlow[Browsed]:
    """Runs option 1: the retriever ranks all pieces, the best are read.

    Together in one prompt where they fit. Where not, each is extracted from by itself. Where
    they may be passed and nothing may be extracted, the seventh setting of section 4.4, they
    are read one after the other until one ends it.
    """
    query = reading.searched
    found = yield from reading.retrieve(query)
    yield from reading.tell(EventKind.RETRIEVAL, Action.NONE, text=query, shown=reading.ids(found))
    # A retriever that finds nothing ranks all alike.
    numbers = found or tuple(reading.numbers[: reading.request.pieces])
    actions = reading.request.actions
    if BrowseAction.MOVE in actions and not actions & EXTRACTING:
        return (yield from scan(reading, numbers, [one for one in CLOSING if one in actions]))
    fitting = reading.fitting(numbers, reading.prompts.closing_free)
    if len(fitting) < len(numbers):
        if BrowseAction.APPEND in actions:
            return (yield from _independent(reading, numbers))
        if BrowseAction.MERGE in actions:
            return (yield from carry(reading, numbers))
    pieces = yield from reading.pieces(fitting)
    return (yield from close_from(reading, pieces))


def _independent(reading: BrowseRun, numbers: Sequence[int]) -> FetchingFlow[Browsed]:
    """Runs option 3: each by itself, as many at once as the driver allows."""
    offers = reading.offers(BrowseAction.APPEND)
    for start in range(0, len(numbers), MAX_BATCH):
        pieces = yield from reading.pieces(numbers[start : start + MAX_BATCH])
        found = yield from reading.read(pieces, offers)
        reading.notes += [reading.note(one) for one in found if one.reply.text]
        if reading.stopped:
            break
    return (yield from close(reading))


_OPTIONS: dict[BrowseOption, Callable[[BrowseRun], FetchingFlow[Browsed]]] = {
    BrowseOption.DYNAMIC: dynamic,
    BrowseOption.RANK: _rank,
    BrowseOption.CARRY: lambda reading: carry(reading, reading.numbers),
    BrowseOption.INDEPENDENT: lambda reading: _independent(reading, reading.numbers),
    BrowseOption.SCAN: lambda reading: scan(reading, reading.numbers),
}
