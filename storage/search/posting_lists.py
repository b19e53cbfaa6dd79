"""Posting lists of long sessions: which chunks have a word, in blocks of chunks.

`chunk_word` has the words of each chunk. A search by it visits all chunks with a word, and for a
common word these are many. So each full block of chunks is inverted, once and for all: each word
with its groups and places, as `service.domain.search.postings` reads them. Words of few chunks
share rows.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import UUID

from service.domain.search.fusing import ScoredChunk
from storage.engine.database import Transaction, value
from storage.log.chunks import CONTENT_BYTES

if TYPE_CHECKING:
    from service.domain.search.postings import Best, Lists, PostingBlock, WordPostings

#: Chunks of a block; a search visits those after the last block one by one. A place in a block has
#: two bytes, so that no block may be longer than 65,535 chunks.
BLOCK_CHUNKS = 8192
#: Words of a block's chunks, which one statement lists within seconds.
BLOCK_WORDS = 250_000
#: Bytes of their content, so that very long words do not use up a server's memory.
BLOCK_BYTES = 8 * 1024 * 1024
#: A block that may be full by words or bytes is looked for after so many new chunks.
LOOK_CHUNKS = 1024
#: Words in so many chunks of a block get a row of their own.
OWN_HOLDERS = 64
#: Longer chunks count as this long, in words.
MAX_LENGTH = 65_535
#: Blocks that are read first; then twice as many each time …
READ_BLOCKS = 4
#: … that have so many places together at most, or one.
READ_HOLDERS = 2_000_000
#: Words in no more chunks together are read first: they may decide alone.
RARE_HOLDERS = 20_000
#: The other words are looked up for so many chunks at most.
LOOKED_UP = 500

# A redaction waits for it, or is seen by the statements after it.
_KEEP_CONTENT = "SELECT true FROM session WHERE session_key = %(session)s FOR KEY SHARE"
# No two workers list the same block, and none waits for the other.
_LOCK = "SELECT pg_try_advisory_xact_lock(%(lock)s)"
_END = f"""
SELECT max(position) AS last, max(position) FILTER (
    WHERE (words <= %(words)s AND bytes <= %(bytes)s) OR position = %(after)s + 1) AS fitting
FROM (
    SELECT w.position, sum(w.length) OVER upto AS words, sum({CONTENT_BYTES}) OVER upto AS bytes
    FROM chunk_word w JOIN chunk c USING (session_key, position)
    WHERE w.session_key = %(session)s AND w.position > %(after)s
        AND w.position <= least(%(after)s + %(chunks)s, %(indexed)s)
    WINDOW upto AS (ORDER BY w.position)
) AS sized
"""  # noqa: S608 - all of it is ours
_BLOCK = """
INSERT INTO posting_block (session_key, last_position, tenant_id, first_position, words)
SELECT %(session)s, %(last)s, %(tenant)s, %(first)s, coalesce(sum(length), 0)
FROM chunk_word
WHERE session_key = %(session)s AND position BETWEEN %(first)s AND %(last)s
ON CONFLICT DO NOTHING
"""
#: Reads the lists that a block should have: a group has one byte of how often, two of how long and
#: two of how many; a place has two.
LISTS = f"""
SELECT CASE WHEN holders >= %(own)s THEN lexeme
        ELSE chr(1) || get_byte(sha256(convert_to(lexeme, 'UTF8')), 0) END AS key,
    array_agg(lexeme ORDER BY lexeme) AS words,
    array_agg(groups ORDER BY lexeme) AS groups, array_agg(places ORDER BY lexeme) AS places
FROM (
    SELECT lexeme, sum(holders) AS holders,
        string_agg(substring(int8send((kind << 16) + holders) FROM 4), ''::bytea ORDER BY kind)
            AS groups,
        string_agg(places, ''::bytea ORDER BY kind) AS places
    FROM (
        SELECT held.lexeme COLLATE "C" AS lexeme,
            (cardinality(held.positions)::bigint << 16) + least(w.length, {MAX_LENGTH}) AS kind,
            count(*) AS holders, string_agg(w.place, ''::bytea ORDER BY w.place) AS places
        FROM (
            SELECT words, length,
                substring(int4send((position - %(first)s)::integer) FROM 3) AS place
            FROM chunk_word
            WHERE session_key = %(session)s AND position BETWEEN %(first)s AND %(last)s
            OFFSET 0
        ) AS w, unnest(w.words) AS held
        GROUP BY 1, 2
    ) AS grouped
    GROUP BY lexeme
) AS listed
GROUP BY 1
"""  # noqa: S608 - all of it is ours
_WRITE = f"""
INSERT INTO posting_list (session_key, key, last_position, tenant_id, words, groups, places)
SELECT %(session)s, key, %(last)s, %(tenant)s, words, groups, places FROM ({LISTS}) AS made
"""  # noqa: S608 - all of it is ours


async def write_block(
    tx: Transaction, session_key: UUID, after_position: int, indexed_position: int
) -> int | None:
    """Writes the lists of the block after a position; returns its last position.

    None when there are not enough chunks with words yet, or another worker writes it.
    """
    values = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "lock": _lock_of(session_key),
        "after": after_position,
        "indexed": indexed_position,
        "chunks": BLOCK_CHUNKS,
        "words": BLOCK_WORDS,
        "bytes": BLOCK_BYTES,
        "own": OWN_HOLDERS,
    }
    if not value(await tx.fetch(_LOCK, values, prepare=None)):
        return None
    await tx.fetch(_KEEP_CONTENT, values)
    ((last, fitting),) = await tx.fetch(_END, values, prepare=None)
    if fitting is None or (fitting == last and fitting < after_position + BLOCK_CHUNKS):
        return None
    values |= {"first": after_position + 1, "last": fitting}
    if await tx.execute(_BLOCK, values, prepare=None) != 1:
        return None
    await tx.execute(_WRITE, values, prepare=None)
    return int(fitting)


_FIND_BLOCK = """
SELECT first_position, last_position FROM posting_block
WHERE session_key = %(session)s AND last_position >= %(position)s
ORDER BY last_position LIMIT 1
"""
_DROP = """
WITH lists AS (
    DELETE FROM posting_list WHERE session_key = %(session)s AND last_position = %(last)s
)
SELECT pg_advisory_xact_lock(%(lock)s)
"""
_DROP_BLOCK = (
    "DELETE FROM posting_block WHERE session_key = %(session)s AND last_position = %(last)s"
)


async def find_block(tx: Transaction, session_key: UUID, position: int) -> tuple[int, int] | None:
    """Returns first and last position of the block that has a chunk; None: there is none yet."""
    values = {"session": session_key, "position": position}
    rows = await tx.fetch(_FIND_BLOCK, values, prepare=False)
    return (rows[0][0], rows[0][1]) if rows else None


async def rewrite_block(tx: Transaction, session_key: UUID, first: int, last: int) -> None:
    """Writes the lists of a block again, from the words that its chunks have now.

    The caller has rows of the session in `removal`.
    """
    values = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "lock": _lock_of(session_key),
        "own": OWN_HOLDERS,
        "first": first,
        "last": last,
    }
    await tx.fetch(_DROP, values, prepare=None)
    await tx.execute(_DROP_BLOCK, values, prepare=None)
    await tx.execute(_BLOCK, values, prepare=None)
    await tx.execute(_WRITE, values, prepare=None)


def _lock_of(session_key: UUID) -> int:
    return int.from_bytes(session_key.bytes[:8], signed=True)


def is_due(after_position: int, indexed_position: int, before: int | None = None) -> bool:
    """Returns whether to look for a block after `after_position`.

    `before`: the indexed position before the words that were written now.
    """
    unlisted = indexed_position - after_position
    if before is not None and (before - after_position) // LOOK_CHUNKS < unlisted // LOOK_CHUNKS:
        return True
    return unlisted >= BLOCK_CHUNKS


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPostings:
    """The lists of a query's words, without most places."""

    #: In order, without gaps.
    blocks: "Sequence[PostingBlock]" = ()
    #: Words of all chunks of the blocks.
    words: int = 0
    #: One for each word of the query.
    lists: "Sequence[Lists]" = ()
    #: Places by index of the word and of the block, where they were read with the lists.
    places: Mapping[tuple[int, int], bytes] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        """The number of chunks of all blocks."""
        return self.blocks[-1].last - self.blocks[0].first + 1 if self.blocks else 0


_BLOCKS = """
SELECT first_position, last_position, words FROM posting_block
WHERE session_key = %(session)s AND first_position >= %(low)s AND last_position <= %(high)s
ORDER BY last_position
"""
# With the places of words that share a row, which are few.
_GROUPS = """
SELECT asked.at, found.last_position, found.groups[found.at],
    CASE WHEN asked.key <> asked.word THEN found.places[found.at] END
FROM unnest(%(ats)s::integer[], %(words)s::text[], %(keys)s::text[]) AS asked (at, word, key)
CROSS JOIN LATERAL (
    SELECT p.last_position, p.groups, p.places, array_position(p.words, asked.word) AS at
    FROM posting_list p
    WHERE p.session_key = %(session)s AND p.key = asked.key
        AND p.last_position BETWEEN %(low)s AND %(high)s
    OFFSET 0
) AS found
WHERE found.at IS NOT NULL
"""


async def read_listed(
    tx: Transaction, session_key: UUID, words: Sequence[str], low: int, high: int
) -> ListedPostings:
    """Returns the blocks between two positions, and the words of a query in them."""
    asked = [(at, word, key) for at, word in enumerate(words) for key in (word, _shared(word))]
    values = {
        "session": session_key,
        "low": low,
        "high": high,
        "ats": [at for at, _, _ in asked],
        "words": [word for _, word, _ in asked],
        "keys": [key for _, _, key in asked],
    }
    blocks, found = await tx.pipeline((_BLOCKS, _GROUPS), values, snapshot=True, prepare=False)
    if not blocks:
        return ListedPostings()
    return await asyncio.to_thread(_listed, blocks, found, len(words))


def _shared(word: str) -> str:
    """Returns the key of a word's row if few chunks have it: no word begins so."""
    return f"\x01{hashlib.sha256(word.encode()).digest()[0]}"


def _listed(
    blocks: Sequence[tuple[int, int, int]],
    found: Sequence[tuple[int, int, bytes, bytes | None]],
    count: int,
) -> ListedPostings:
    # numpy loads slowly, and few sessions are so long.
    from service.domain.search.postings import PostingBlock, lists_of

    numbers = {last: number for number, (_, last, _) in enumerate(blocks)}
    groups: list[dict[int, bytes]] = [{} for _ in range(count)]
    places: dict[tuple[int, int], bytes] = {}
    for word, last, held, at in found:
        if last in numbers:
            groups[word][numbers[last]] = held
            if at is not None:
                places[word, numbers[last]] = at
    return ListedPostings(
        blocks=[PostingBlock(first=first, last=last) for first, last, _ in blocks],
        words=sum(words for *_, words in blocks),
        lists=[lists_of(one) for one in groups],
        places=places,
    )


_PLACES = """
SELECT asked.at, asked.block, found.places[1]
FROM unnest(%(ats)s::integer[], %(blocks)s::integer[], %(words)s::text[], %(lasts)s::bigint[])
    AS asked (at, block, word, last)
CROSS JOIN LATERAL (
    SELECT p.places FROM posting_list p
    WHERE p.session_key = %(session)s AND p.key = asked.word AND p.last_position = asked.last
    OFFSET 0
) AS found
"""


async def rank(
    tx: Transaction,
    session_key: UUID,
    words: Sequence[str],
    listed: ListedPostings,
    best: "Best",
    look_up: Callable[[Sequence[int]], Awaitable[Sequence[ScoredChunk]]],
) -> None:
    """Adds the best chunks of the blocks to `best`.

    `look_up` returns the scores of chunks by all words of the query.
    """

    async def read(wanted: Sequence[tuple[int, int]]) -> "Sequence[WordPostings]":
        return await _read(tx, session_key, words, listed, wanted)

    of_blocks, of_words = await asyncio.to_thread(best.bounds, listed.lists, len(listed.blocks))
    rare, others = _rare(listed.lists)
    if rare and others:
        parts = await read([(word, at) for word in rare for at in listed.lists[word].blocks])
        rest = sum(of_words[word] for word in others)
        positions = (
            await asyncio.to_thread(best.deciding, parts, rest, LOOKED_UP) if parts else None
        )
        if positions is not None:
            best.add(await look_up(positions))
            return
    left = sorted(
        (at for at, most in enumerate(of_blocks) if most > 0),
        key=lambda at: (-of_blocks[at], at),
    )
    count = READ_BLOCKS
    while left := [at for at in left if best.admits(of_blocks[at], listed.blocks[at].first)]:
        wanted = [
            [(word, at) for word, lists in enumerate(listed.lists) if at in lists.holders]
            for at in left[:count]
        ]
        taken = _fitting([sum(listed.lists[w].holders[at] for w, at in one) for one in wanted])
        parts = await read([one for each in wanted[:taken] for one in each])
        await asyncio.to_thread(best.rank, parts)
        left, count = left[taken:], 2 * count


def _rare(lists: "Sequence[Lists]") -> tuple[list[int], list[int]]:
    """Returns the rarest words, as many as may be read whole, and the other ones that occur."""
    there = sorted((one.total, word) for word, one in enumerate(lists) if one.total)
    totals = accumulate(total for total, _ in there)
    rare = [word for (_, word), upto in zip(there, totals, strict=True) if upto <= RARE_HOLDERS]
    return sorted(rare), sorted(word for _, word in there[len(rare) :])


def _fitting(holders: Sequence[int]) -> int:
    """Returns how many of these are read at once: at least one."""
    return max(1, sum(upto <= READ_HOLDERS for upto in accumulate(holders)))


async def _read(
    tx: Transaction,
    session_key: UUID,
    words: Sequence[str],
    listed: ListedPostings,
    wanted: Sequence[tuple[int, int]],
) -> "Sequence[WordPostings]":
    """Returns the lists of words in blocks, by the indexes of both, with their places.

    Without those that were deleted since `listed` was read.
    """
    missing = [one for one in wanted if one not in listed.places]
    places = dict(listed.places)
    if missing:
        values = {
            "session": session_key,
            "ats": [word for word, _ in missing],
            "blocks": [at for _, at in missing],
            "words": [words[word] for word, _ in missing],
            "lasts": [listed.blocks[at].last for _, at in missing],
        }
        for word, at, held in await tx.fetch(_PLACES, values, prepare=False):
            places[word, at] = held
    from service.domain.search.postings import WordPostings

    return [
        WordPostings(
            word=word,
            block=listed.blocks[at],
            groups=listed.lists[word].groups[at],
            places=places[word, at],
        )
        for word, at in wanted
        if (word, at) in places
    ]
