"""Writes the search index of a session: the words and the vectors of its chunks.

Words and vectors have a position each. Both move by compare-and-set, in the transaction that writes
the rows, so that any number of workers may index a session at once: everything up to a position is
there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, bindparam, case, func, not_, or_, select, update

from service.domain.log.chunks import LoggedChunk
from storage.engine.clocks import CLOCK, interval
from storage.engine.database import Transaction, first
from storage.engine.ready import Ready
from storage.engine.text_search import length_of
from storage.log.chunks import CONTENT_BYTES, read_ranges
from storage.log.sessions import lock_in_order
from storage.memories import entries
from storage.search.chunk_text import AS_TEXT, words_of
from storage.tables import memory, memory_entry, posting_block, session

#: Chunks, and bytes of their content, whose words one statement writes: it takes about a second on
#: a slow machine.
WORDS_CHUNKS = 500
WORDS_BYTES = 2 * 1024 * 1024
#: The beginning of a failure to write posting lists, for which words of new chunks do not wait.
OF_LISTS = "posting lists: "
#: How often a session with deferred lists is checked, in seconds.
LISTS_REST_SECONDS = 5.0


class Overtaken(Exception):
    """Another worker wrote the same, or vectors of another model; or the session is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexPlace:
    """The progress of a session's index."""

    #: The session's.
    incarnation: int
    #: Position of the newest chunk.
    head: int
    #: All chunks up to here have words.
    indexed_position: int
    #: Words up to here are in posting lists.
    listed_position: int
    #: All chunks up to here have vectors of `embedding_model`.
    embedded_position: int
    #: Empty: it never had vectors.
    embedding_model: str
    #: Failed tries to embed since the last success.
    attempts: int
    #: Whether it is time to embed again.
    may_embed: bool
    #: Failed tries to write words, or lists, since the last success.
    words_attempts: int
    #: Whether these were tries to write lists.
    lists_failed: bool
    #: Whether it is time to write words again.
    may_write_words: bool
    #: Whether it is time to write lists again.
    may_write_lists: bool
    #: Whether a memory has revisions whose entries are missing.
    lacks_entries: bool
    #: Whether an entry of a memory has no vector.
    lacks_entry_vectors: bool


_LISTS_FAILED = func.starts_with(session.c.words_failure, OF_LISTS)
_PLACE = Ready(
    select(
        session.c.incarnation,
        session.c.head,
        session.c.indexed_position,
        select(func.coalesce(func.max(posting_block.c.last_position), 0))
        .where(posting_block.c.session_key == session.c.session_key)
        .scalar_subquery()
        .label("listed_position"),
        session.c.embedded_position,
        session.c.embedding_model,
        session.c.index_attempts.label("attempts"),
        (session.c.index_ready_at <= func.now()).label("may_embed"),
        session.c.words_attempts,
        _LISTS_FAILED.label("lists_failed"),
        or_(_LISTS_FAILED, session.c.words_ready_at <= func.now()).label("may_write_words"),
        (session.c.words_ready_at <= func.now()).label("may_write_lists"),
        select(memory.c.session_key)
        .where(
            memory.c.session_key == session.c.session_key,
            memory.c.entry_revision != memory.c.revision,
        )
        .exists()
        .label("lacks_entries"),
        # Through the memory, since those of a deleted one are hidden by it alone.
        select(memory_entry.c.session_key)
        .join(
            memory,
            and_(
                memory.c.session_key == memory_entry.c.session_key,
                memory.c.memory_id == memory_entry.c.memory_id,
            ),
        )
        .where(memory_entry.c.session_key == session.c.session_key, memory_entry.c.model.is_(None))
        .correlate(session)
        .exists()
        .label("lacks_entry_vectors"),
    ).where(session.c.session_key == bindparam("session"))
)


async def read_place(tx: Transaction, session_key: UUID) -> IndexPlace | None:
    """Returns the progress of the index; None when there is no such session."""
    row = first(await tx.fetch(_PLACE, {"session": session_key}))
    return None if row is None else IndexPlace(**row._asdict())


#: Clears the failure of an earlier try to embed.
_NO_FAULT = {"index_attempts": 0, "index_failure": ""}


async def _change(
    tx: Transaction, session_key: UUID, *which: ColumnElement[bool], **values: Any
) -> bool:
    """Changes columns of a session if all of `which` is true; returns whether it did."""
    changed = update(session).where(session.c.session_key == session_key, *which).values(**values)
    return await tx.execute(changed) == 1


#: The last position of a batch. Its size is that of its chunks, which does not read values that are
#: stored out of line.
BATCH_END = f"""
    SELECT max(position) AS position FROM (
        SELECT c.position, sum({CONTENT_BYTES}) OVER (ORDER BY c.position) AS total
        FROM chunk c
        WHERE c.session_key = %(session)s AND c.position > %(after)s
            AND c.position <= least(%(after)s + %(chunks)s, %(last)s)
    ) AS sized
    WHERE total <= %(bytes)s OR position = %(after)s + 1
"""  # noqa: S608 - all of it is ours


def batch_words(upto: str) -> str:
    """Returns SQL for the words of a batch's chunks; `upto` is SQL of its last position."""
    return f"""
        SELECT said.session_key, said.position, said.tenant_id,
            {words_of("said.text", "said.language")} AS words
        FROM (
            SELECT c.session_key, c.position, c.tenant_id, s.language, {AS_TEXT} AS text
            FROM session s JOIN chunk c ON c.session_key = s.session_key
            WHERE s.session_key = %(session)s AND c.position > %(after)s AND c.position <= {upto}
            OFFSET 0
        ) AS said
        OFFSET 0"""  # noqa: S608 - all of it is ours


_WRITE_WORDS = f"""
WITH upto AS MATERIALIZED ({BATCH_END}),
written AS (
    INSERT INTO chunk_word (session_key, position, tenant_id, words, length)
    SELECT made.session_key, made.position, made.tenant_id, made.words, {length_of("made.words")}
    FROM ({batch_words("(SELECT position FROM upto)")}) AS made
    ON CONFLICT (session_key, position) DO NOTHING
)
SELECT position FROM upto
"""  # noqa: S608 - all of it is ours


def _moving(**more: Any) -> Ready:
    return Ready(
        update(session)
        .where(
            session.c.session_key == bindparam("session"),
            session.c.indexed_position == bindparam("after"),
        )
        .values(
            indexed_position=bindparam("reached"),
            words_attempts=case((_LISTS_FAILED, session.c.words_attempts), else_=0),
            words_failure=case((_LISTS_FAILED, session.c.words_failure), else_=""),
            **more,
        )
        .returning(session.c.has_unindexed)
    )


_MOVE_INDEX = _moving()
_IS_HEAD = session.c.head == bindparam("reached")
#: The same and `finish` in one change of the row.
_MOVE_AND_FINISH = _moving(
    has_unindexed=and_(session.c.has_unindexed, not_(_IS_HEAD)),
    index_ready_at=case((_IS_HEAD, CLOCK.c.at), else_=session.c.index_ready_at),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Words that were written."""

    #: All chunks up to here have words.
    position: int
    #: The session needs no more indexing, and that is stored.
    finished: bool


# A redaction that was committed since the words were read: from here on the session is locked.
_BLANK_WORDS = """
UPDATE chunk_word w SET words = '', length = 0
WHERE w.session_key = %(session)s AND w.words <> '' AND w.position = ANY(ARRAY(
    SELECT c.position FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > %(after)s AND c.position <= %(reached)s
        AND c.redaction_id IS NOT NULL
))
"""


async def write_words(
    tx: Transaction, session_key: UUID, after_position: int, *, finishes: bool = False
) -> Words | None:
    """Writes the words of the next chunks; None when there are none.

    Raises Overtaken when another worker was faster, or the session was deleted: then the caller
    rolls back. Clears an earlier failure, unless it was one of lists. Locks the session only after
    the rows are written, to the end of the transaction. With `finishes` there are no vectors to
    write, and the work ends as with `finish`.
    """
    values = {
        "session": session_key,
        "after": after_position,
        "chunks": WORDS_CHUNKS,
        "last": after_position + WORDS_CHUNKS,
        "bytes": WORDS_BYTES,
    }
    ((to_position,),) = await tx.fetch(_WRITE_WORDS, values)
    if to_position is None:
        return None
    moving = _MOVE_AND_FINISH if finishes else _MOVE_INDEX
    moved = {"session": session_key, "after": after_position, "reached": to_position}
    rows = await tx.fetch(moving, moved)
    if not rows:
        raise Overtaken
    await tx.execute(_BLANK_WORDS, moved, prepare=None)
    tx.changed.add(session_key)
    return Words(position=int(to_position), finished=not rows[0][0])


@dataclass(frozen=True, kw_only=True, slots=True)
class NewVector:
    """A vector to be written: of a chunk, or of a part of one."""

    position: int
    #: 0, 1, 2 … within the chunk.
    part: int
    #: The characters of the chunk's text that it represents.
    from_character: int
    to_character: int
    #: A vector of length 1.
    values: Sequence[float]


async def read_to_embed(
    tx: Transaction, session_key: UUID, after_position: int, *, chunks: int, max_bytes: int
) -> Sequence[LoggedChunk]:
    """Returns the next chunks, at most so many and with so much content, and at least one.

    Those of blocked sources, too: they are found once their source is not blocked any more.
    """
    ranges = ((after_position, after_position + chunks),)
    found = await read_ranges(tx, session_key, ranges, max_bytes, as_stored=True)
    return found.get(after_position, ())


# The former model may have had more parts, or fewer. Of two workers that write the same rows, the
# second waits here, and its compare-and-set fails.
_DROP_VECTORS = """
DELETE FROM chunk_vector
WHERE session_key = %(session)s AND position > %(after)s AND position <= %(upto)s
"""
_WRITE_VECTORS = """
INSERT INTO chunk_vector (session_key, position, part, tenant_id, model,
    from_character, to_character, embedding)
SELECT %(session)s, new.position, new.part, %(tenant)s, %(model)s,
    new.from_character, new.to_character, new.embedding::real[]
FROM unnest(%(positions)s::bigint[], %(parts)s::integer[], %(from)s::integer[],
    %(to)s::integer[], %(embeddings)s::text[])
    AS new (position, part, from_character, to_character, embedding)
ON CONFLICT (session_key, position, part) DO UPDATE SET
    model = excluded.model, from_character = excluded.from_character,
    to_character = excluded.to_character, embedding = excluded.embedding
"""


# They may have been redacted since they were read. From here on the session is locked.
_DROP_REDACTED = """
DELETE FROM chunk_vector v USING chunk c
WHERE v.session_key = %(session)s AND v.position > %(after)s AND v.position <= %(upto)s
    AND c.session_key = v.session_key AND c.position = v.position AND c.redaction_id IS NOT NULL
"""


async def begin_model(tx: Transaction, session_key: UUID, model: str, *, before: str) -> None:
    """Begins with another model at the first chunk. Raises Overtaken.

    Vectors of the model `before` are replaced one batch after the other; those of entries of
    memories are removed.
    """
    values = {"embedding_model": model, "embedded_position": 0, **_NO_FAULT}
    if not await _change(tx, session_key, session.c.embedding_model == before, **values):
        raise Overtaken
    await entries.forget_vectors(tx, session_key)


async def write_vectors(
    tx: Transaction,
    session_key: UUID,
    model: str,
    vectors: Sequence[NewVector],
    *,
    after_position: int,
    to_position: int,
) -> None:
    """Writes the vectors of the chunks (after_position, to_position].

    Clears an earlier failure. Raises Overtaken: then the caller rolls back. Locks the session only
    after the rows are written, to the end of the transaction.
    """
    values: dict[str, Any] = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "model": model,
        "after": after_position,
        "upto": to_position,
        "positions": [one.position for one in vectors],
        "parts": [one.part for one in vectors],
        "from": [one.from_character for one in vectors],
        "to": [one.to_character for one in vectors],
        # Hundreds of thousands of numbers, which must not block the event loop.
        "embeddings": await asyncio.to_thread(_arrays, vectors),
    }
    await tx.execute(_DROP_VECTORS, values, prepare=None)
    await tx.execute(_WRITE_VECTORS, values, prepare=None)
    is_next = (
        session.c.embedding_model == model,
        session.c.embedded_position == after_position,
    )
    if not await _change(tx, session_key, *is_next, embedded_position=to_position, **_NO_FAULT):
        raise Overtaken
    await tx.execute(_DROP_REDACTED, values, prepare=None)
    tx.changed.add(session_key)


def _arrays(vectors: Sequence[NewVector]) -> list[str]:
    # As text, since the arrays in an array have one length; a real has 9 digits.
    return [f"{{{','.join([format(one, '.9g') for one in each.values])}}}" for each in vectors]


async def finish(tx: Transaction, session_key: UUID, model: str | None) -> bool:
    """Ends the work when everything is indexed; False while something is missing.

    With `model` None there is no model for vectors, and none are missing. A concurrent append waits
    for the row, and then marks the session again.
    """
    is_whole = [session.c.indexed_position == session.c.head]
    if model is not None:
        of_model = session.c.embedding_model == model
        has_all = and_(session.c.embedded_position == session.c.head, of_model)
        is_whole.append(or_(session.c.head == 0, has_all))
    # A session that was checked last is checked last the next time.
    values = {"has_unindexed": False, "index_ready_at": func.now()}
    return await _change(tx, session_key, *is_whole, **values)


async def rest(tx: Transaction, session_key: UUID) -> None:
    """Defers vectors as far as words are deferred.

    Otherwise every scan would find the session, with nothing to do for it.
    """
    until = session.c.words_ready_at
    lacks_words = session.c.indexed_position < session.c.head
    is_earlier = session.c.index_ready_at < until
    await _change(tx, session_key, lacks_words, is_earlier, index_ready_at=until)


async def rest_from_lists(tx: Transaction, session_key: UUID) -> None:
    """Does the same for deferred lists.

    The session is checked every few seconds, since new chunks need not wait for them.
    """
    until = func.least(session.c.words_ready_at, func.now() + interval(LISTS_REST_SECONDS))
    await _change(tx, session_key, session.c.index_ready_at < until, index_ready_at=until)


async def note_unembedded(tx: Transaction, keys: Sequence[UUID]) -> None:
    """Marks sessions for indexing, for vectors of another model."""
    wanted = session.c.session_key.in_(keys), session.c.has_unindexed.is_(False)
    await lock_in_order(tx, *wanted)
    await tx.execute(
        update(session).where(*wanted).values(has_unindexed=True, index_ready_at=func.now())
    )


async def note_unlisted(tx: Transaction, session_key: UUID) -> None:
    """Marks a session for indexing, for lists that it lacks.

    Unless it is locked, for which no search should wait: the next search marks it.
    """
    is_done = session.c.has_unindexed.is_(False)
    locked = (
        select(session.c.session_key)
        .where(session.c.session_key == session_key, is_done)
        .with_for_update(key_share=True, skip_locked=True)
    )
    if first(await tx.fetch(locked)) is not None:
        await _change(tx, session_key, is_done, has_unindexed=True, index_ready_at=func.now())


async def back_off(
    tx: Transaction, session_key: UUID, seconds: float, failure: str | None = None
) -> None:
    """Defers embedding by `seconds`; with `failure` as a failed try."""
    values: dict[str, Any] = {"index_ready_at": func.now() + interval(seconds)}
    if failure is not None:
        values |= {"index_failure": failure, "index_attempts": session.c.index_attempts + 1}
    await _change(tx, session_key, **values)


async def back_off_words(
    tx: Transaction, session_key: UUID, seconds: float, failure: str, attempts: int
) -> None:
    """Defers writing words by `seconds`, after so many failed tries.

    Where `failure` begins with OF_LISTS, it defers lists.
    """
    ready_at = func.now() + interval(seconds)
    values = {"words_ready_at": ready_at, "words_attempts": attempts, "words_failure": failure}
    await _change(tx, session_key, **values)


async def forget_words_failure(tx: Transaction, session_key: UUID) -> None:
    """Clears the failures of lists, which were written."""
    await _change(tx, session_key, words_attempts=0, words_failure="")
