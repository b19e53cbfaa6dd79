"""Finds chunks by their words (BM25).

A search reads the lists of `storage.search.posting_lists` in a long session, and the words of later
chunks. For the newest chunks that are not indexed yet it computes the words, and ranks them
together with the others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from service.domain.search.fusing import ScoredChunk
from service.domain.search.ranking import K1, B
from storage.engine.database import Transaction
from storage.engine.text_search import length_of
from storage.log.chunks import CONTENT_BYTES
from storage.log.ranges import Range
from storage.search import posting_lists
from storage.search.chunk_text import AS_TEXT, words_of
from storage.search.finding import SearchPlace
from storage.search.posting_lists import BLOCK_CHUNKS, ListedPostings
from storage.tree.word_counts import quoted

if TYPE_CHECKING:
    from service.domain.search.postings import Best

#: Chunks whose lengths are read; of more, a sample of so many. BM25 needs only their mean, and how
#: many pass a filter.
SAMPLE_CHUNKS = 10_000
#: The same beside posting lists, which have the mean of most chunks.
LISTED_SAMPLE_CHUNKS = 1000
#: Chunks after the index, and bytes of their content, whose words a search computes: the newest
#: ones. It takes about a second on a slow machine.
TAIL_CHUNKS = 2000
TAIL_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class UnindexedChunks:
    """The words of chunks after the index."""

    #: Chunks of the range that are not searched, since there are too many.
    unread: int = 0
    #: Totals of those that are searched.
    chunks: int = 0
    words: int = 0
    #: Chunks with a word of the query: position, length in words, and how often each word of the
    #: query occurs.
    holders: Sequence[tuple[float, ...]] = ()


# How often a word occurs, without unpacking the text's other words, which takes five times as long.
# With all weights 1, ts_rank of one word that occurs n times is the sum of 1/i² for i up to n, over
# π²/6; the difference to 1 is nearly 1/(n + 1/2), over the same. The nearest integer is n for every
# n that positions are kept for (255), and 0 for a word that does not occur.
_OCCURRENCES = """round(1 / (1.6449340668482264
    * (1 - ts_rank('{{1,1,1,1}}', {words}, %(word{at})s::tsquery))) - 0.5) AS n{at}"""


def occurrences(words: str, count: int) -> str:
    """Returns SQL of how often each word of a query occurs: n0, n1 …, from SQL of the words."""
    return ", ".join(_OCCURRENCES.format(words=words, at=at) for at in range(count))


_TAIL_BEGIN = f"""
SELECT min(position) FROM (
    SELECT c.position, sum({CONTENT_BYTES}) OVER (ORDER BY c.position DESC) AS total
    FROM chunk c
    WHERE c.session_key = %(session)s AND c.position <= %(high)s AND c.position > %(after)s
) AS sized
WHERE total <= {TAIL_BYTES} OR position = %(high)s
"""  # noqa: S608 - all of it is ours


def _tail(count: int, conditions: str) -> str:
    return f"""
SELECT made.position, {length_of("made.words")} AS length, {occurrences("made.words", count)}
FROM (
    SELECT said.position, {words_of("said.text", "%(language)s")} AS words
    FROM (
        SELECT c.position, {AS_TEXT} AS text FROM chunk c
        WHERE c.session_key = %(session)s AND c.position >= ({_TAIL_BEGIN})
            AND c.position <= %(high)s {_and(conditions)}
        OFFSET 0
    ) AS said
    OFFSET 0
) AS made
"""  # noqa: S608 - all of it is ours


def _and(conditions: str) -> str:
    return f"AND {conditions}" if conditions else ""


async def read_tail(
    tx: Transaction, session_key: UUID, place: SearchPlace, within: Range
) -> UnindexedChunks:
    """Returns the newest chunks of a range after the index: at most TAIL_CHUNKS of TAIL_BYTES.

    Takes a round trip, and at most a second: a search waits for no index.
    """
    indexed = max(place.indexed_position, within.from_position - 1)
    if not place.words or indexed >= within.to_position:
        return UnindexedChunks()
    after = max(indexed, within.to_position - TAIL_CHUNKS)
    values = {"session": session_key, "language": place.language, **within.values(), "after": after}
    values |= word_values(place.words)
    queries = _TAIL_BEGIN, _tail(len(place.words), within.conditions())
    ((begin,),), rows = await tx.pipeline(queries, values, snapshot=True, prepare=False)
    if begin is None:
        # They were deleted since `place` was read.
        return UnindexedChunks()
    return UnindexedChunks(
        unread=begin - 1 - indexed,
        chunks=len(rows),
        words=sum(row[1] for row in rows),
        holders=tuple(row for row in rows if any(row[2:])),
    )


async def read_by_words(
    tx: Transaction,
    session_key: UUID,
    place: SearchPlace,
    within: Range,
    tail: UnindexedChunks,
    depth: int,
) -> Sequence[ScoredChunk]:
    """Returns the `depth` best chunks of a range by the query's words and BM25.

    Documents and their frequencies are those of the range.
    """
    if not place.words:
        return ()
    listed = ListedPostings()
    # The lists know no other conditions.
    if within.from_position <= place.listed_position and not within.conditions():
        low, high = within.from_position, min(within.to_position, place.indexed_position)
        listed = await posting_lists.read_listed(tx, session_key, place.words, low, high)
    query = words_query(place, within, tail, listed)
    values = {"session": session_key, "depth": depth, **within.values()}
    values |= word_values(place.words) | _tail_values(tail, len(place.words))
    rows = await tx.fetch(query, values, prepare=False)
    hits = [ScoredChunk(position=row[0], score=row[1]) for row in rows if row[0] is not None]
    if not listed.blocks:
        return hits
    _, _, mean, *weights = rows[0]

    async def look_up(positions: Sequence[int]) -> Sequence[ScoredChunk]:
        looked = _looked_up(place.words, mean, weights)
        found = await tx.fetch(looked, {**values, "positions": list(positions)}, prepare=False)
        return [ScoredChunk(position=position, score=score) for position, score in found]

    best = await asyncio.to_thread(_best, mean, weights, depth, hits)
    await posting_lists.rank(tx, session_key, place.words, listed, best, look_up)
    return best.hits()


def _best(mean: float, weights: Sequence[float], depth: int, hits: Sequence[ScoredChunk]) -> "Best":
    # numpy loads slowly, and few sessions are so long.
    from service.domain.search.postings import Best, Weights

    return Best(Weights(mean_length=mean, of_words=weights), depth, hits)


def words_query(
    place: SearchPlace, within: Range, tail: UnindexedChunks, listed: ListedPostings | None = None
) -> str:
    """Returns the statement that ranks by words the chunks that are not in posting lists.

    With lists the first row has the mean length and the weights of the words after its hit, even
    where there is no hit.
    """
    listed = listed or ListedPostings()
    count = len(place.words)
    parts = _unlisted(place, within, listed)
    held = ", ".join(f"count(*) FILTER (WHERE n{at} > 0) AS h{at}" for at in range(count))
    totals = [one.total for one in listed.lists] or [0] * count
    counts = ", ".join(f"h{at} + {total} AS h{at}" for at, total in enumerate(totals))
    weights = ", ".join(
        f"ln(1 + (chunks - h{at} + 0.5) / (h{at} + 0.5))::float8 AS w{at}" for at in range(count)
    )
    known = ", ".join(f"w{at}" for at in range(count))
    ranked = f"""SELECT position, {score_of(count)} AS score
    FROM (SELECT holder.*, {BACK} AS back, weighing.* FROM holder, weighing) AS ranked
    ORDER BY score DESC, position LIMIT %(depth)s"""  # noqa: S608 - all of it is ours
    if listed.blocks:
        ranked = f"""SELECT position, score, mean, {known}
    FROM weighing LEFT JOIN ({ranked}) AS best ON true"""  # noqa: S608 - all of it is ours
    return f"""
WITH measured AS MATERIALIZED ({_measured(within, parts, listed)}),
holder AS MATERIALIZED ({_holders(count, within, parts, listed)}{_tail_holders(tail, count)}),
weighing AS MATERIALIZED (
    SELECT greatest(words, 1) / greatest(chunks, 1) AS mean, {weights}
    FROM (
        SELECT words, greatest(chunks, held + {listed.chunks}) AS chunks, {counts}
        FROM measured, (SELECT count(*) AS held, {held} FROM holder) AS counted
    ) AS known
)
{ranked}
"""  # noqa: S608 - all of it is ours


#: SQL of how much a text's length holds it back, from `length` and the mean of all.
BACK = f"length / mean * {K1 * B} + {K1 * (1 - B)}"


def score_of(count: int) -> str:
    """Returns SQL of a text's score, from n0 …, the weights w0 …, and BACK."""
    return " + ".join(f"w{at} * n{at} * {K1 + 1} / (n{at} + back)" for at in range(count))


def _looked_up(words: Sequence[str], mean: float, weights: Sequence[float]) -> str:
    """Returns the statement that scores chunks of the index."""
    known = ", ".join(f"{weight!r}::float8 AS w{at}" for at, weight in enumerate(weights))
    return f"""
SELECT position, {score_of(len(words))} AS score
FROM (
    SELECT position, {occurrences("words", len(words))}, {BACK} AS back, {known}
    FROM (
        SELECT w.position, w.length::float8 AS length, setweight(w.words, 'D') AS words,
            {mean!r}::float8 AS mean
        FROM chunk_word w
        WHERE w.session_key = %(session)s AND w.position = ANY(%(positions)s::bigint[])
        OFFSET 0
    ) AS found
) AS ranked
"""  # noqa: S608 - all of it is ours


def _unlisted(
    place: SearchPlace, within: Range, listed: ListedPostings
) -> Sequence[tuple[int, int]]:
    """Returns first and last positions of chunks in the index but not in the lists."""
    low, last = within.from_position, min(within.to_position, place.indexed_position)
    if not listed.blocks:
        return [(low, last)]
    first, end = listed.blocks[0].first, listed.blocks[-1].last
    return [(low, first - 1), (end + 1, last)] if low < first else [(end + 1, last)]


def _measured(within: Range, parts: Sequence[tuple[int, int]], listed: ListedPostings) -> str:
    """Returns SQL that counts chunks and their words, in the index and after it."""
    sample = LISTED_SAMPLE_CHUNKS if listed.blocks else SAMPLE_CHUNKS
    step = max(1, -(-sum(last - low + 1 for low, last in parts) // sample))
    if within.positions is not None:
        step = 1
    conditions = within.exists("w")
    source = " UNION ALL ".join(
        f"SELECT w.length FROM {_sampled(within, low, last, step)} {conditions}"  # noqa: S608 - ours
        for low, last in parts
    )
    return f"""
    SELECT (count(*) * {step} + %(tail_chunks)s + {listed.chunks})::float8 AS chunks,
        (coalesce(sum(length), 0) * {step} + %(tail_words)s + {listed.words})::float8 AS words
    FROM ({source}) AS sampled"""  # noqa: S608 - all of it is ours


def _sampled(within: Range, low: int, last: int, step: int) -> str:
    if step == 1:
        return within.rows("chunk_word", "w", low, last)
    # Each by its key: the planner would otherwise read all words of the session for a join.
    return f"""generate_series({low}, {last}, {step}) AS at (position), LATERAL (
        SELECT * FROM chunk_word w
        WHERE w.session_key = %(session)s AND w.position BETWEEN at.position AND at.position
        ORDER BY w.position LIMIT 1
    ) AS w WHERE true"""  # noqa: S608 - all of it is ours


def _holders(
    count: int, within: Range, parts: Sequence[tuple[int, int]], listed: ListedPostings
) -> str:
    # Chunks that were indexed since are in the tail, and count once. Stored words are unpacked
    # once, and not for each word of the query.
    source = " UNION ALL ".join(
        f"""
        SELECT w.position, w.length, setweight(w.words, 'D') AS words
        FROM {_within(within, low, last, listed)}
            AND w.words @@ %(any_word)s::tsquery {within.exists("w")}"""  # noqa: S608
        for low, last in parts
    )
    return f"""
    SELECT position, length::float8 AS length, {occurrences("words", count)}
    FROM ({source} OFFSET 0) AS found"""  # noqa: S608 - all of it is ours


def _within(within: Range, low: int, last: int, listed: ListedPostings) -> str:
    chunks = within.rows("chunk_word", "w", low, last)
    if not listed.blocks or last - low >= 2 * BLOCK_CHUNKS:
        return chunks
    # For few of the session's chunks: the index over words would return those of the whole session.
    return f"(SELECT w.* FROM {chunks} OFFSET 0) AS w WHERE true"  # noqa: S608 - all of it is ours


def _tail_holders(tail: UnindexedChunks, count: int) -> str:
    if not tail.holders:
        return ""
    arrays = ", ".join(f"%(tail{at})s::float8[]" for at in range(count + 1))
    return f" UNION ALL SELECT * FROM unnest(%(tail_positions)s::bigint[], {arrays})"  # noqa: S608


def _tail_values(tail: UnindexedChunks, count: int) -> dict[str, object]:
    columns = list(zip(*tail.holders, strict=True)) or [()] * (count + 2)
    return {
        "tail_chunks": tail.chunks,
        "tail_words": tail.words,
        "tail_positions": list(columns[0]),
        **{f"tail{at}": list(column) for at, column in enumerate(columns[1:])},
    }


def word_values(words: Sequence[str]) -> dict[str, object]:
    """Returns the values of a query's words for the statements here."""
    each = [quoted(word) for word in words]
    return {
        "any_word": " | ".join(each),
        **{f"word{at}": word for at, word in enumerate(each)},
    }
