"""Reads a session's log page by page, each in a transaction of its own.

A question's filter says which of its chunks readers of the log see, and which any answer cites.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.log.chunks import LoggedChunk
from service.usecases.log.chunk_filter import ChunkFilter
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.engine.database import Database, Transaction
from storage.log import chunks, pages
from storage.log.ranges import Range

#: Chunks that one query of the log reads at most, and bytes of their content; a longer chunk is
#: read by itself.
PAGE_CHUNKS = 512
PAGE_BYTES = 1024 * 1024
#: No chunk has a later one.
LAST_POSITION = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRange:
    """A session's log up to a position."""

    database: Database
    tenant_id: UUID
    session_key: UUID
    #: The last position that counts; 0: there is nothing.
    up_to: int
    #: Which of the chunks are read; None: all.
    wanted: ChunkFilter | None = None

    def within(self, after: int = 0, up_to: int | None = None) -> Range | None:
        """Returns the chunks at positions (after, up_to] that are read; None: all."""
        if self.wanted is None:
            return None
        within = self.wanted.range(self.up_to if up_to is None else min(up_to, self.up_to))
        return replace(within, from_position=max(within.from_position, after + 1))

    async def pages(
        self, after: int = 0, up_to: int | None = None
    ) -> AsyncIterator[Sequence[LoggedChunk]]:
        """Yields the chunks at positions (after, up_to], page by page."""
        within = self.within(after, up_to)
        if within is not None:
            async for page in self._wanted_pages(within):
                yield page
            return
        last = self.up_to if up_to is None else min(up_to, self.up_to)
        while after < last:
            wanted = (after, min(after + PAGE_CHUNKS, last))
            async with self.database.transaction(self.tenant_id, name="answer") as tx:
                found = await chunks.read_ranges(tx, self.session_key, [wanted], PAGE_BYTES)
            page = found[after]
            yield page
            after = page[-1].position

    async def _wanted_pages(self, within: Range) -> AsyncIterator[Sequence[LoggedChunk]]:
        while within.from_position <= within.to_position:
            async with self.database.transaction(self.tenant_id, name="answer") as tx:
                page, following = await pages.read_wanted(
                    tx, self.session_key, within, PAGE_CHUNKS, PAGE_BYTES
                )
            if page:
                yield page
            if not following:
                return
            within = replace(within, from_position=following)

    async def texts(
        self, after: int = 0, up_to: int | None = None, unverified: set[int] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, str]]]:
        """Yields the same as positions and texts.

        Adds the positions of those whose sources are not verified to `unverified`.
        """
        async for page in self.pages(after, up_to):
            if unverified is not None:
                unverified.update(one.position for one in page if one.trust is Trust.UNVERIFIED)
            yield [(one.position, one.chunk.as_text()) for one in page if one.is_read]


def log_of(database: Database, tenant_id: UUID, asked: StoredAnswer) -> LogRange:
    """Returns what a question reads: the log as it was when the question came."""
    return LogRange(
        database=database,
        tenant_id=tenant_id,
        session_key=asked.session_key,
        up_to=asked.applied_position,
    )


def wanted_log_of(database: Database, tenant_id: UUID, asked: StoredAnswer) -> LogRange:
    """Returns the same for readers of the log itself: only what fits the question's filter."""
    return replace(log_of(database, tenant_id, asked), wanted=filter_of(asked))


def filter_of(asked: StoredAnswer) -> ChunkFilter | None:
    """Returns which chunks a question reads and cites; None: all."""
    return None if asked.chunk_filter is None else ChunkFilter.from_json(asked.chunk_filter)


def empty_text(asked: StoredAnswer) -> str:
    """Says why a question found nothing to read in the log."""
    if filter_of(asked) is None:
        return "There is no answer: the log has no text yet."
    return "There is no answer: no text of the log fits the question's filter."


async def citable(
    tx: Transaction, asked: StoredAnswer, citations: Sequence[StoredCitation]
) -> Sequence[StoredCitation]:
    """Returns the citations that the question's filter allows.

    One of a node or a vector as a whole, if the filter allows all of its chunks.
    """
    wanted = filter_of(asked)
    if wanted is None or not citations:
        return citations
    spans = [
        (one.position, one.position) if one.position else (one.from_position, one.to_position)
        for one in citations
    ]
    kept = await pages.wholly_within(tx, asked.session_key, wanted.range(LAST_POSITION), spans)
    return [one for number, one in enumerate(citations) if number in kept]
