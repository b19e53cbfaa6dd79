"""A session's log as readers go through it: page by page, each in a transaction of its own."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database
from storage.log import chunks

#: Chunks that one look at the log brings at most, and bytes of their content; a longer
#: chunk comes by itself.
PAGE_CHUNKS = 512
PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRange:
    """A session's log up to a position."""

    database: Database
    tenant_id: UUID
    session_key: UUID
    #: The last position that counts; 0: there is nothing.
    up_to: int

    async def pages(
        self, after: int = 0, up_to: int | None = None
    ) -> AsyncIterator[Sequence[LoggedChunk]]:
        """The chunks at positions (after, up_to], as many at a time as a page has."""
        last = self.up_to if up_to is None else min(up_to, self.up_to)
        while after < last:
            wanted = (after, min(after + PAGE_CHUNKS, last))
            async with self.database.transaction(self.tenant_id, name="answer") as tx:
                found = await chunks.read_ranges(tx, self.session_key, [wanted], PAGE_BYTES)
            page = found[after]
            yield page
            after = page[-1].position

    async def texts(
        self, after: int = 0, up_to: int | None = None
    ) -> AsyncIterator[Sequence[tuple[int, str]]]:
        """The same as positions and texts."""
        async for page in self.pages(after, up_to):
            yield [(one.position, one.chunk.as_text()) for one in page]


def log_of(database: Database, tenant_id: UUID, asked: StoredAnswer) -> LogRange:
    """What a question reads: the log as it was when the question came."""
    return LogRange(
        database=database,
        tenant_id=tenant_id,
        session_key=asked.session_key,
        up_to=asked.applied_position,
    )
