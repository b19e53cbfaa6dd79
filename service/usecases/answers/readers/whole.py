"""The whole reader: answers from all of a log in one prompt."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.answers import whole
from service.domain.answers.citations import best_excerpt, best_position
from service.domain.answers.drafting import AnswerDraft, room_for
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer, reply_fields
from service.domain.answers.whole import BYTES_PER_TOKEN, WHOLE, PositionQuote
from service.domain.log.chunks import LoggedChunk
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.offloading import beside
from service.llm.providers.facts import ModelFacts
from service.usecases.answers.readers.answering import EXCERPT_CHARACTERS, MadeAnswer, ReaderKit
from service.usecases.answers.readers.log_range import PAGE_CHUNKS, empty_text, filter_of
from service.usecases.answers.readers.spans import located, quoted, spanned
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.engine.database import Transaction
from storage.log import chunks as log
from storage.log import pages
from storage.log.ranges import Range

#: Characters of a quote that is looked for in other texts than the one that it is said to
#: be of; fewer may stand anywhere.
TELLING_CHARACTERS = 16
#: Why there is no answer from a log that has text.
NO_ANSWER_TEXTS = {
    NoAnswer.UNREADABLE: "There is no answer: three replies of the model in a row had none.",
    NoAnswer.NOT_FOUND: "There is no answer in the log.",
}

Chunks = Sequence[tuple[int, str]]
Draft = AnswerDraft[PositionQuote]


class WholeReader:
    """Answers from whole logs in one worker process."""

    def __init__(self, kit: ReaderKit) -> None:
        self._kit = kit

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Answers from the log as it was when the question came.

        Raises ModelFailure, TextTooLong.
        """
        model = asked.wanted_model or self._kit.config.model
        facts = self._kit.facts(model)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            read = await read_log(tx, asked, facts)
        if read is None:
            most = facts.window_tokens * BYTES_PER_TOKEN
            raise whole.too_long(f"more than {most} bytes", room_for(facts.window_tokens))
        chunks, unverified = read
        flow = whole.answer(
            chunks, asked.worded, unverified=unverified, **facts.terms(self._kit.marker_key)
        )
        draft = await drive(flow, lambda ask: self._kit.calls.call(item, asked, ask, model))
        await self._kit.calls.tell(item, asked, _end(draft, asked.applied_position))
        if draft.no_answer is not None:
            why = NO_ANSWER_TEXTS.get(draft.no_answer) or empty_text(asked)
            return MadeAnswer.none(model, draft.no_answer, why)
        # Quotes are looked for in all of the log.
        citations = await beside(_cited_in, draft, chunks, asked.query)
        return MadeAnswer(text=draft.text, citations=citations, model=model, truncated=draft.is_cut)


async def read_log(
    tx: Transaction, asked: StoredAnswer, facts: ModelFacts
) -> tuple[Chunks, Collection[int]] | None:
    """Returns position and text of the chunks of a log that a question reads.

    Besides, the positions of those that are not verified. Leaves out what is withheld.
    None when they have so many bytes that no prompt has room for them; then few of them are read.
    """
    most = facts.window_tokens * BYTES_PER_TOKEN
    session_key, upto = asked.session_key, asked.applied_position
    if (wanted := filter_of(asked)) is not None:
        return await _read_wanted(tx, session_key, wanted.range(upto), most)
    found = (await log.read_ranges(tx, session_key, [(0, upto)], most)).get(0, ())
    if len(found) < upto:
        return None
    return _texts(found)


def _texts(found: Iterable[LoggedChunk]) -> tuple[Chunks, Collection[int]]:
    read = [one for one in found if one.is_read]
    unverified = {one.position for one in read if one.trust is not Trust.TRUSTED}
    return [(one.position, one.chunk.as_text()) for one in read], unverified


async def _read_wanted(
    tx: Transaction, session_key: UUID, within: Range, most: int
) -> tuple[Chunks, Collection[int]] | None:
    chunks: list[LoggedChunk] = []
    following = within.from_position
    while following:
        within = replace(within, from_position=following)
        page, following = await pages.read_wanted(tx, session_key, within, PAGE_CHUNKS, most)
        chunks += page
        most -= sum(one.chunk.content_bytes() for one in page)
        if most < 0 or (most == 0 and following):
            return None
    return _texts(chunks)


def _end(draft: Draft, upto: int) -> Event:
    return Event(
        ordinal=1,
        kind=EventKind.END,
        action=Action.NONE if draft.no_answer else Action.ANSWER,
        from_position=min(upto, 1),
        to_position=upto,
        attempt=max(len(draft.replies), 1),
        text=draft.no_answer or draft.text,
        template=WHOLE if draft.replies else "",
        **reply_fields(draft.replies),
    )


def _cited_in(draft: Draft, chunks: Chunks, query: str) -> Sequence[StoredCitation]:
    return list(_citations(draft, dict(chunks))) or _likely(draft, chunks, query)


def _citations(draft: Draft, texts: Mapping[int, str]) -> Iterator[StoredCitation]:
    """Yields the place of each quote in the log; a quote that is nowhere is dropped."""
    seen: set[tuple[int, int]] = set()
    for quote in draft.sources:
        found = _place(quote, texts)
        if found is not None and found[:2] not in seen:
            position, start, end = found
            seen.add((position, start))
            yield _cited(position, texts[position][start:end], texts[position])


def _place(quote: PositionQuote, texts: Mapping[int, str]) -> tuple[int, int, int] | None:
    """Returns position and characters of a quote; if its number is wrong, those of the newest
    text that has its very words."""
    span = quoted(texts.get(quote.position, ""), quote.text)
    if span is not None:
        return quote.position, *span
    if len(quote.text) < TELLING_CHARACTERS:
        return None
    for position in sorted(texts, reverse=True):
        span = located(texts[position], quote.text)
        if span is not None:
            return position, *span
    return None


def _likely(draft: Draft, chunks: Chunks, query: str) -> Sequence[StoredCitation]:
    """Cites the chunk whose words fit the answer best, where no quote of the model is there."""
    position = best_position(draft.text, chunks, around=query)
    text = dict(chunks)[position]
    return [
        _cited(position, best_excerpt(draft.text, text, EXCERPT_CHARACTERS, around=query), text)
    ]


def _cited(position: int, excerpt: str, text: str) -> StoredCitation:
    excerpt = excerpt[:EXCERPT_CHARACTERS]
    citation = StoredCitation(
        position=position,
        excerpt=excerpt,
        from_position=position,
        to_position=position,
    )
    return spanned(citation, text)
