"""Finding chunks: by their words (BM25) and by their vectors, each in one round trip.

What is in the index is read from it. The words of chunks behind it are made on the fly,
page by page, and ranked together with the others as if they were in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from service.domain.chunks import LoggedChunk
from service.domain.fusing import Hit
from service.domain.ranking import K1, B
from storage.chunk_text import AS_TEXT, length_of, words_of
from storage.database import DirectTransaction
from storage.log import CHUNK_COLUMNS, CONTENT_BYTES, logged_of
from storage.log_pages import CHUNK_BYTES

#: Distinct words of a query that count: its first ones.
MAX_WORDS = 64
#: Chunks whose lengths are read at most; of more, so many spread over all. BM25 needs their
#: mean only, and how many pass a filter.
SAMPLE_CHUNKS = 10_000
#: Chunks, and bytes of their content, behind the index whose words are made by one
#: statement: it takes about a second on a slow machine.
TAIL_CHUNKS = 500
TAIL_BYTES = 2 * 1024 * 1024
#: Up to so many vectors are compared one by one, which beats an index behind a filter.
EXACT_VECTORS = 20_000
#: Of a chunk more than one part may be near; so many times more parts than chunks are
#: taken from an index over vectors.
_PARTS_A_CHUNK = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlace:
    """What a search has to know before it begins."""

    #: Position of the newest chunk.
    head: int
    #: Up to here words are in the index, and vectors of `embedding_model`.
    indexed_position: int
    embedded_position: int
    embedding_model: str
    #: A configuration of PostgreSQL's text search.
    language: str
    #: Why the last try to write words failed, or else to embed; empty when neither did.
    failure: str
    #: Of the query, as the index has them: at most MAX_WORDS.
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The chunks that are searched: all that fit everything that is set."""

    #: Both included.
    from_position: int
    to_position: int
    #: When they were committed: from `from_time` to before `to_time`.
    from_time: datetime | None = None
    to_time: datetime | None = None
    #: As `chunk.kind`; empty: all.
    kinds: tuple[str, ...] = ()
    #: Keys with their values.
    metadata: Mapping[str, str] = field(default_factory=dict)

    def conditions(self) -> str:
        """In SQL, of a chunk c, beside its position; empty when there are none."""
        parts = (
            (self.from_time is not None, "c.created_at >= %(from_time)s"),
            (self.to_time is not None, "c.created_at < %(to_time)s"),
            (bool(self.kinds), "c.kind = ANY(%(kinds)s)"),
            (bool(self.metadata), "c.metadata @> %(metadata)s"),
        )
        return " AND ".join(sql for used, sql in parts if used)

    def values(self) -> dict[str, object]:
        """Of the conditions, and of the positions."""
        return {
            "low": self.from_position,
            "high": self.to_position,
            "from_time": self.from_time,
            "to_time": self.to_time,
            "kinds": list(self.kinds),
            "metadata": Jsonb(dict(self.metadata)),
        }


_PLACE = f"""
SELECT s.head, s.indexed_position, s.embedded_position, s.embedding_model, s.language,
    coalesce(nullif(s.words_failure, ''), s.index_failure),
    ARRAY(SELECT lexeme FROM unnest(to_tsvector(s.language::regconfig, %(query)s))
          ORDER BY positions[1], lexeme LIMIT {MAX_WORDS})
FROM session s WHERE s.session_key = %(session)s
"""  # noqa: S608 - all of it is ours


async def read_place(tx: DirectTransaction, session_key: UUID, query: str) -> SearchPlace | None:
    """How far the index is, and the words of a query; None when there is no such session."""
    rows = await tx.read(_PLACE, {"session": session_key, "query": query}, keep=False)
    if not rows:
        return None
    head, indexed, embedded, model, language, failure, words = rows[0]
    return SearchPlace(
        head=head,
        indexed_position=indexed,
        embedded_position=embedded,
        embedding_model=model,
        language=language,
        failure=failure,
        words=tuple(words),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Chunks behind the index, by their words."""

    #: Of all of them that are searched.
    chunks: int = 0
    words: int = 0
    #: Those that have a word of the query: position, length in words, and how often each
    #: word of the query occurs.
    holders: Sequence[tuple[float, ...]] = ()


# How often a word occurs, without taking the text's other words apart, which takes five
# times as long. With all weights 1, ts_rank of one word that occurs n times is the sum of
# 1/i² for i up to n, over π²/6; what is missing to 1 is very nearly 1/(n + 1/2), over the
# same. The next whole number is n for every n that positions are kept for (255), and 0 for
# a word that does not occur.
_OCCURRENCES = """round(1 / (1.6449340668482264
    * (1 - ts_rank('{{1,1,1,1}}', {words}, %(word{at})s::tsquery))) - 0.5) AS n{at}"""


def _occurrences(words: str, count: int) -> str:
    return ", ".join(_OCCURRENCES.format(words=words, at=at) for at in range(count))


_PAGE_END = f"""
SELECT max(position) FROM (
    SELECT c.position, sum({CONTENT_BYTES}) OVER (ORDER BY c.position) AS total
    FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > %(after)s AND c.position <= %(high)s
        AND c.position <= %(after)s + {TAIL_CHUNKS}
) AS sized
WHERE total <= {TAIL_BYTES} OR position = %(after)s + 1
"""  # noqa: S608 - all of it is ours


def _page(count: int, conditions: str) -> str:
    return f"""
SELECT made.position, {length_of("made.words")} AS length, {_occurrences("made.words", count)}
FROM (
    SELECT said.position, {words_of("said.text", "%(language)s")} AS words
    FROM (
        SELECT c.position, {AS_TEXT} AS text FROM chunk c
        WHERE c.session_key = %(session)s AND c.position > %(after)s
            AND c.position <= ({_PAGE_END}) {_behind_and(conditions)}
        OFFSET 0
    ) AS said
    OFFSET 0
) AS made
"""  # noqa: S608 - all of it is ours


def _behind_and(conditions: str) -> str:
    return f"AND {conditions}" if conditions else ""


async def read_tail(
    tx: DirectTransaction, session_key: UUID, place: SearchPlace, within: Range
) -> Tail:
    """The chunks of a range that are behind the index.

    Takes a round trip, and about a second, for each 2 MB; the index is seldom so far behind.
    """
    if not place.words:
        return Tail()
    after = max(place.indexed_position, within.from_position - 1)
    values = {"session": session_key, "language": place.language, **within.values()}
    values |= word_values(place.words)
    page = _page(len(place.words), within.conditions())
    chunks = words = 0
    holders: list[tuple[float, ...]] = []
    while after < within.to_position:
        ((end,),), rows = await tx.read_all(
            (_PAGE_END, page), {**values, "after": after}, keep=False
        )
        chunks += len(rows)
        words += sum(row[1] for row in rows)
        holders += [row for row in rows if any(row[2:])]
        after = end
    return Tail(chunks=chunks, words=words, holders=tuple(holders))


async def read_by_words(
    tx: DirectTransaction,
    session_key: UUID,
    place: SearchPlace,
    within: Range,
    tail: Tail,
    depth: int,
) -> Sequence[Hit]:
    """The `depth` chunks of a range that fit the query's words best, by BM25.

    Documents and their frequencies are those of the range.
    """
    if not place.words:
        return ()
    query = words_query(place, within, tail)
    values = {"session": session_key, "depth": depth, **within.values()}
    values |= word_values(place.words) | _tail_values(tail, len(place.words))
    rows = await tx.read(query, values, keep=False)
    return [Hit(position=position, score=score) for position, score in rows]


def words_query(place: SearchPlace, within: Range, tail: Tail) -> str:
    """The statement that ranks by words."""
    count = len(place.words)
    numbers = ", ".join(f"n{at}" for at in range(count))
    held = ", ".join(f"count(*) FILTER (WHERE n{at} > 0) AS h{at}" for at in range(count))
    weights = ", ".join(
        f"ln(1 + (chunks - h{at} + 0.5) / (h{at} + 0.5))::float8 AS w{at}" for at in range(count)
    )
    score = " + ".join(f"w{at} * n{at} * {K1 + 1} / (n{at} + back)" for at in range(count))
    return f"""
WITH measured AS MATERIALIZED ({_measured(place, within)}),
holder AS MATERIALIZED ({_holders(count, place, within)}{_tail_holders(tail, count)}),
weighing AS MATERIALIZED (
    SELECT greatest(words, 1) / greatest(chunks, 1) AS mean, {weights}
    FROM (
        SELECT words, greatest(chunks, held) AS chunks, {", ".join(f"h{at}" for at in range(count))}
        FROM measured, (SELECT count(*) AS held, {held} FROM holder) AS counted
    ) AS known
)
SELECT position, {score} AS score
FROM (
    SELECT position, length / mean * {K1 * B} + {K1 * (1 - B)} AS back, {numbers}, weighing.*
    FROM holder, weighing
) AS ranked
ORDER BY score DESC, position LIMIT %(depth)s
"""  # noqa: S608 - all of it is ours


def _measured(place: SearchPlace, within: Range) -> str:
    """How many chunks there are, and words in them: in the index, and behind it."""
    last = min(within.to_position, place.indexed_position)
    step = max(1, -(-(last - within.from_position + 1) // SAMPLE_CHUNKS))
    counted = "chunk_word w WHERE w.session_key = %(session)s AND w.position"
    if step == 1:
        source = f"{counted} BETWEEN %(low)s AND {last}"
    else:
        source = f"""generate_series(%(low)s, {last}, {step}) AS at (position), {counted}
            = at.position"""
    return f"""
    SELECT (count(*) * {step} + %(tail_chunks)s)::float8 AS chunks,
        (coalesce(sum(w.length), 0) * {step} + %(tail_words)s)::float8 AS words
    FROM {source} {_exists(within.conditions(), "w")}"""  # noqa: S608 - all of it is ours


def _holders(count: int, place: SearchPlace, within: Range) -> str:
    # What was indexed since the place was read is in the tail, and counts once. A copy of
    # what is stored is made once, and not for each word.
    last = min(within.to_position, place.indexed_position)
    return f"""
    SELECT position, length::float8 AS length, {_occurrences("words", count)}
    FROM (
        SELECT w.position, w.length, setweight(w.words, 'D') AS words
        FROM chunk_word w
        WHERE w.session_key = %(session)s AND w.position BETWEEN %(low)s AND {last}
            AND w.words @@ %(any_word)s::tsquery {_exists(within.conditions(), "w")}
        OFFSET 0
    ) AS found"""  # noqa: S608 - all of it is ours


def _tail_holders(tail: Tail, count: int) -> str:
    if not tail.holders:
        return ""
    arrays = ", ".join(f"%(tail{at})s::float8[]" for at in range(count + 1))
    return f" UNION ALL SELECT * FROM unnest(%(tail_positions)s::bigint[], {arrays})"  # noqa: S608


def _tail_values(tail: Tail, count: int) -> dict[str, object]:
    columns = list(zip(*tail.holders, strict=True)) or [()] * (count + 2)
    return {
        "tail_chunks": tail.chunks,
        "tail_words": tail.words,
        "tail_positions": list(columns[0]),
        **{f"tail{at}": list(column) for at, column in enumerate(columns[1:])},
    }


def _exists(conditions: str, table: str) -> str:
    """That a chunk, by its place in another table, fits the conditions."""
    if not conditions:
        return ""
    return f"""AND EXISTS (SELECT FROM chunk c WHERE c.session_key = %(session)s
        AND c.position = {table}.position AND {conditions})"""


def word_values(words: Sequence[str]) -> dict[str, object]:
    """The values of a query's words in the statements here."""
    quoted = [_quoted(word) for word in words]
    return {
        "any_word": " | ".join(quoted),
        **{f"word{at}": word for at, word in enumerate(quoted)},
    }


def _quoted(word: str) -> str:
    """A tsquery of one word, quoted as its input function reads it."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


async def read_by_vectors(
    tx: DirectTransaction,
    session_key: UUID,
    model: str,
    vector: Sequence[float],
    within: Range,
    depth: int,
    *,
    has_index: bool,
) -> Sequence[Hit]:
    """The `depth` chunks of a range whose best part is nearest to a vector of length 1.

    Only vectors of `model` count. The score is the cosine of the angle. `has_index`: of
    vectors of this length, over all sessions.
    """
    values = {
        "session": session_key,
        "model": model,
        "vector": f"[{','.join(map(repr, map(float, vector)))}]",
        "depth": depth,
        "parts": depth * _PARTS_A_CHUNK,
        **within.values(),
    }
    if has_index and await _are_many(tx, within, values):
        queries = (*_BY_INDEX, vectors_query(vector, within, True))
        (*_, rows) = await tx.read_all(queries, values, keep=False)
        # Behind a filter that few pass the index may give up before it has found enough.
        if len(rows) >= depth:
            return _hits(rows)
    return _hits(await tx.read(vectors_query(vector, within, False), values, keep=False))


def _hits(rows: Sequence[tuple[Any, ...]]) -> Sequence[Hit]:
    return [
        Hit(position=position, score=score, from_character=start, to_character=end)
        for position, score, start, end in rows
    ]


_COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM chunk_vector v WHERE v.session_key = %(session)s
        AND v.position BETWEEN %(low)s AND %(high)s LIMIT {EXACT_VECTORS + 1}
) AS bounded
"""  # noqa: S608 - all of it is ours


async def _are_many(tx: DirectTransaction, within: Range, values: Mapping[str, object]) -> bool:
    """Whether there are more vectors than are compared one by one."""
    chunks = within.to_position - within.from_position + 1
    if chunks * _PARTS_A_CHUNK <= EXACT_VECTORS:
        # With more parts a chunk it takes somewhat longer; to count them would cost each time.
        return False
    ((many,),) = await tx.read(_COUNT, values)
    return bool(many > EXACT_VECTORS)


# An index knows nothing of sessions: it is searched on until enough of this one are found.
_BY_INDEX = ("SET LOCAL hnsw.iterative_scan = relaxed_order", "SET LOCAL hnsw.ef_search = 200")


def vectors_query(vector: Sequence[float], within: Range, by_index: bool) -> str:
    """The statement that ranks by vectors: all of the range, or those that an index names."""
    size = len(vector)
    near = f"v.embedding::vector({size}) <=> %(vector)s::vector({size})"
    nearest = f"ORDER BY {near} LIMIT %(parts)s" if by_index else ""
    return f"""
WITH near AS MATERIALIZED (
    SELECT v.position, v.from_character, v.to_character, {near} AS distance
    FROM chunk_vector v
    WHERE v.session_key = %(session)s AND v.position BETWEEN %(low)s AND %(high)s
        AND v.model = %(model)s AND array_length(v.embedding, 1) = {size}
        {_exists(within.conditions(), "v")}
    {nearest}
)
SELECT position, 1 - distance, from_character, to_character FROM (
    SELECT DISTINCT ON (position) * FROM near ORDER BY position, distance, from_character
) AS best
ORDER BY distance, position LIMIT %(depth)s
"""  # noqa: S608 - all of it is ours


_CHUNKS = f"""
SELECT {CHUNK_COLUMNS} FROM (
    SELECT c.position, sum({CHUNK_BYTES}) OVER (ORDER BY wanted.rank) AS total, wanted.rank
    FROM unnest(%(positions)s::bigint[]) WITH ORDINALITY AS wanted (position, rank)
    JOIN chunk c ON c.session_key = %(session)s AND c.position = wanted.position
) AS sized
JOIN chunk c ON c.session_key = %(session)s AND c.position = sized.position
WHERE total <= %(bytes)s OR rank = 1
"""  # noqa: S608 - all of it is ours


async def read_chunks(
    tx: DirectTransaction, session_key: UUID, positions: Sequence[int], max_bytes: int
) -> Mapping[int, LoggedChunk]:
    """The first of these chunks that have `max_bytes` together, and at least one."""
    values = {"session": session_key, "positions": list(positions), "bytes": max_bytes}
    return {row[0]: logged_of(row) for row in await tx.read(_CHUNKS, values)}
