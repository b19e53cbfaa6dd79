"""Selects chunks to be redacted, page by page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from storage.engine.database import Transaction
from storage.log.chunks import CHUNK_COLUMNS, stored_of

#: Chunks of a page: with the largest texts they have 64 MB.
PAGE_CHUNKS = 256

Page = Sequence[LoggedChunk]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which chunks are meant; one field is set."""

    #: First and last positions.
    ranges: Sequence[tuple[int, int]] = ()
    thread: str = ""
    source: str = ""
    #: Every chunk whose content contains it, which the caller compares.
    text: str = ""
    #: Whether the case of the text counts.
    is_exact: bool = False


_PAGE = f"""
SELECT {CHUNK_COLUMNS} FROM chunk c
WHERE c.session_key = %(session)s AND c.position > %(after)s AND c.position <= %(upto)s
    AND c.redaction_id IS NULL AND {{which}}
ORDER BY c.position LIMIT {PAGE_CHUNKS}
"""  # noqa: S608 - all of it is ours


async def select(
    tx: Transaction, session_key: UUID, selection: Selection, *, after: int, upto: int
) -> tuple[Page, int]:
    """Returns chunks after a position that may be meant, and up to where they are complete."""
    if selection.ranges:
        # Named ones: what is between them is not read.
        wanted = list(islice(_positions(selection.ranges, after, upto), PAGE_CHUNKS))
        complete = wanted[-1] if len(wanted) == PAGE_CHUNKS else upto
    else:
        wanted, complete = [], None
    values = {
        "session": session_key,
        "after": after,
        "upto": upto,
        "positions": wanted,
        "thread": selection.thread,
        "source": selection.source,
    }
    statement = _PAGE.format(which=_which(selection))
    page = [stored_of(row) for row in await tx.fetch(statement, values, prepare=False)]
    if complete is None:
        complete = page[-1].position if len(page) == PAGE_CHUNKS else upto
    return page, complete


def _positions(ranges: Sequence[tuple[int, int]], after: int, upto: int) -> Iterator[int]:
    """Yields each position of the ranges once, in ascending order."""
    for first, last in sorted(ranges):
        for position in range(max(first, after + 1), min(last, upto) + 1):
            yield position
            after = position


_WITH_CONTENT = """
SELECT c.position FROM chunk c
WHERE c.session_key = %(session)s AND c.position = ANY(%(positions)s::bigint[])
    AND c.redaction_id IS NULL
ORDER BY c.position
"""


async def with_content(
    tx: Transaction, session_key: UUID, positions: Sequence[int]
) -> Sequence[int]:
    """Returns those of these positions, in order, that are not tombstones."""
    if not positions:
        return ()
    values = {"session": session_key, "positions": list(positions)}
    return [row[0] for row in await tx.fetch(_WITH_CONTENT, values, prepare=False)]


def _which(selection: Selection) -> str:
    if selection.ranges:
        return "c.position = ANY(%(positions)s::bigint[])"
    if selection.thread:
        return "c.thread = %(thread)s"
    return "c.source = %(source)s" if selection.source else "true"
