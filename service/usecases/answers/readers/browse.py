"""Answers a question in a worker from the log itself, piece by piece (DCISO)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import structlog

from service.domain.answers.browse.flow import browse
from service.domain.answers.browse.packing import PiecePacker
from service.domain.answers.browse.pieces import Browsed, Frame, Span
from service.domain.answers.browse.prompts import piece_tokens
from service.domain.answers.browse.spec import BrowseRequest, options_of
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.prompting.flows import FetchingFlow
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive, within
from service.llm.providers.facts import ModelFacts
from service.llm.splitter import first_piece
from service.usecases.answers.readers.answering import (
    EXCERPT_CHARACTERS,
    MadeAnswer,
    ReaderKit,
    ReadingKit,
    ReadingReplies,
)
from service.usecases.answers.readers.browsed_log import BrowsedLog, Pack, Ranks
from service.usecases.answers.readers.log_range import empty_text, wanted_log_of
from storage.answers import trajectories
from storage.answers.answers import StoredAnswer, StoredCitation

_log = structlog.get_logger("palimpsest.browse")

#: Why there is no answer from a log that has text.
NO_ANSWER_TEXTS = {
    NoAnswer.UNREADABLE: "There is no answer: no reply of the model could be read.",
    NoAnswer.NOT_FOUND: "There is no answer in the log.",
    NoAnswer.STEP_LIMIT: "There is no answer yet: the model calls that it might cost are used up.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseTerms:
    """What decides how the prompts of browsing look besides the log."""

    request: BrowseRequest
    #: The model that reads.
    model: str
    facts: ModelFacts
    marker_key: bytes

    @classmethod
    def of(cls, asked: StoredAnswer, model: str, kit: ReadingKit) -> "BrowseTerms":
        """Returns the terms of an answer."""
        chosen = None if asked.chosen is None else asked.chosen.browsing
        request = chosen or asked.browsing or BrowseRequest()
        options = asked.options or options_of(asked.response_schema)
        request = replace(request, options=options or request.options)
        return cls(request=request, model=model, facts=kit.facts(model), marker_key=kit.marker_key)

    @property
    def window_tokens(self) -> int:
        """Returns the most tokens of a prompt with its reply."""
        return min(self.request.window_tokens, self.facts.window_tokens)

    def pack(self, query: str) -> Pack:
        """Returns what cuts a log into pieces, for this question. Raises TextTooLong."""
        terms = self.facts.terms(self.marker_key)
        tokens = piece_tokens(query, request=self.request, **terms)
        return partial(PiecePacker, tokens, count=self.facts.count, cut=first_piece)

    def flow(self, query: str, pieces: Sequence[Frame]) -> FetchingFlow[Browsed]:
        """Returns the browsing of a question, which is the same whenever it is made."""
        terms = self.facts.terms(self.marker_key)
        return browse(query, pieces, request=self.request, **terms)


def ranked_in(events: Sequence[Event]) -> Sequence[tuple[int, ...]]:
    """Returns the pieces that retrieval named, each time it was asked, as the events have it.

    Of a retrieval on the way only those that were still to be read, which does not change
    what is read. A choice ends them: another reader's retrieval names leaves.
    """
    found: list[tuple[str, ...]] = []
    for event in takewhile(lambda one: one.kind is not EventKind.CHOICE, events):
        if event.kind is EventKind.RETRIEVAL:
            found.append(event.shown)
        elif event.kind is EventKind.PIECE and event.action is Action.RETRIEVE:
            found.append(event.targets)
    return [tuple(int(one.removeprefix("p.")) for one in ids) for ids in found]


#: Opens retrieval over the chunks that an answer may read, paid for by its occasion.
OpensRanks = Callable[[WorkItem, StoredAnswer, BrowseTerms], Ranks]


class Browser:
    """Browses logs in one worker process."""

    def __init__(self, kit: ReaderKit, ranks: OpensRanks) -> None:
        self._kit = kit
        self._ranks = ranks

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Finds the answer to a question in the log, and what it rests on.

        Each event is stored before the next move. Made again after a failure, it gets the pieces
        that retrieval named, and stores the same events up to where it stopped. Raises
        ModelFailure, TextTooLong, WindowPassed.
        """
        model = asked.wanted_model or self._kit.config.model
        terms = BrowseTerms.of(asked, model, self._kit)
        log = await BrowsedLog.open(
            wanted_log_of(self._kit.database, item.tenant_id, asked),
            terms.pack(asked.worded),
            self._ranks(item, asked, terms),
            await self._ranked(item, asked),
            max_bytes=self._kit.config.limits.max_browsed_bytes,
        )
        replies = ReadingReplies(self._kit.calls, item, asked, log.fetch, terms.model)
        flow = within(terms.flow(asked.worded, log.frames), terms.window_tokens, terms.facts.count)
        browsed = await drive(flow, replies.to, limit=self._kit.config.browse_concurrency)
        return await _made(log, asked, browsed, terms.model)

    async def _ranked(self, item: WorkItem, asked: StoredAnswer) -> Sequence[tuple[int, ...]]:
        # After the choice: another reader may have looked before.
        after = 0 if asked.chosen is None else asked.chosen.events
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            key = asked.session_key, asked.answer_id
            return ranked_in(await trajectories.list_events(tx, key, after))


async def _made(log: BrowsedLog, asked: StoredAnswer, browsed: Browsed, model: str) -> MadeAnswer:
    why = browsed.no_answer
    if why is not None:
        made = MadeAnswer.none(model, why, _no_answer_text(asked, why, browsed))
        return replace(made, left_out=log.left_out)
    spans = await log.true_spans(browsed.spans)
    if len(spans) < len(browsed.spans):
        _log.error(
            "citations left out that the log does not have",
            answer=str(asked.answer_id),
            left_out=len(browsed.spans) - len(spans),
        )
    return MadeAnswer(
        text=browsed.text,
        citations=[
            _cited(span, log.frame_of(span.position, span.from_character)) for span in spans
        ],
        model=model,
        guessed=browsed.guessed,
        left_out=log.left_out,
    )


def _no_answer_text(asked: StoredAnswer, why: NoAnswer, browsed: Browsed) -> str:
    """Says what was not found, and what could not be read."""
    text = NO_ANSWER_TEXTS.get(why) or empty_text(asked)
    if browsed.cause:
        return f"{text.removesuffix('.')}; {browsed.cause}."
    if browsed.passed:
        return f"{text} Not read, for no reply was of use: pieces {browsed.passed}."
    return text


def _cited(span: Span, frame: Frame) -> StoredCitation:
    return StoredCitation(
        position=span.position,
        excerpt=span.text[:EXCERPT_CHARACTERS],
        node_id=frame.piece_id,
        from_position=frame.from_position,
        to_position=frame.to_position,
        from_character=span.from_character,
        to_character=span.to_character,
    )
