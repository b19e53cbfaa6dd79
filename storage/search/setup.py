"""What search needs of the database besides the tables: extensions, and indexes by them.

All of it is optional. What the server does not have, or the migrating role may not make, is
left out, and search does without. Everything can run again, any number of times at once.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from storage.engine.database import Transaction

#: An index over the session and the words of chunks; needs btree_gin.
WORDS_INDEX = "chunk_word_by_session"
#: Indexes over vectors, one for each length: the length stands behind it. Need pgvector.
VECTORS_INDEX = "chunk_vector_nearest_"

#: Why vectors cannot be searched, where nothing more is known.
NO_PGVECTOR = "the database has no pgvector (the extension vector)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What search can do on this database."""

    #: Why vectors cannot be searched, in a sentence; empty: they can be.
    vectors_unavailable: str
    #: Whether words are found by an index; else those of a session are looked through.
    session_words: bool
    #: Lengths of vectors that have an index for many of them, in ascending order.
    indexed_dimensions: tuple[int, ...] = ()
    #: What could not be made when it was set up, in sentences.
    problems: tuple[str, ...] = ()


#: Indexes count when they are whole.
SUPPORT = f"""
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector') AS vectors,
    coalesce(array_agg(made.relname::text), '{{}}') AS indexes
FROM pg_index i
JOIN pg_class made ON made.oid = i.indexrelid
JOIN pg_class of ON of.oid = i.indrelid
WHERE i.indisvalid AND of.relname IN ('chunk_word', 'chunk_vector')
    AND of.relnamespace = 'public'::regnamespace
    AND (made.relname = '{WORDS_INDEX}' OR starts_with(made.relname, '{VECTORS_INDEX}'))
"""  # noqa: S608 - both are above


async def read_support(tx: Transaction) -> Support:
    """What search can do, as of this transaction."""
    row = (await tx.fetch(SUPPORT, prepare=None))[0]
    return support_of(row.vectors, row.indexes)


def support_of(has_vectors: bool, indexes: list[str]) -> Support:
    """From a row of SUPPORT."""
    lengths = (name.removeprefix(VECTORS_INDEX) for name in indexes if name != WORDS_INDEX)
    return Support(
        vectors_unavailable="" if has_vectors else NO_PGVECTOR,
        session_words=WORDS_INDEX in indexes,
        indexed_dimensions=tuple(sorted(map(int, lengths))),
    )


#: The longest vectors that pgvector's index takes.
MAX_INDEXED_DIMENSIONS = 2000

#: Those who set up at once wait for each other on this key.
_LOCK_KEY = 0x70616C69 + 1
#: … and look after it this often, in seconds.
_LOCK_SECONDS = 0.2

_OURS = re.compile(rf"{WORDS_INDEX}|{VECTORS_INDEX}[0-9]+")


def is_ours(index: str) -> bool:
    """Whether this module makes an index of that name, so that no migration does."""
    return _OURS.fullmatch(index) is not None


def install_extensions(url: str) -> None:
    """Makes the extensions that the server has; for a superuser, who may make them all.

    Raises psycopg.Error when the database cannot be reached.
    """
    with _connection(url) as connection:
        _make_extensions(connection)


def install(url: str, dimensions: int | None = None) -> Support:
    """Makes what the role of `url` may make, and says what search can do then.

    `dimensions`: the length of vectors that get an index for many of them; None: none
    do. What cannot be made is told, not raised; psycopg.Error when the database cannot be
    reached.
    """
    with _connection(url) as connection:
        problems = _make_extensions(connection)
        has = {name for (name,) in connection.execute("SELECT extname FROM pg_extension")}
        if "btree_gin" in has:
            problems += _make_index(connection, WORDS_INDEX, _words_index())
        if "vector" in has and dimensions is not None and dimensions <= MAX_INDEXED_DIMENSIONS:
            name = f"{VECTORS_INDEX}{dimensions}"
            problems += _make_index(connection, name, _vectors_index(dimensions))
        row = connection.execute(SUPPORT).fetchone()
    assert row is not None, "an aggregate has a row"
    return replace(support_of(row[0], row[1]), problems=tuple(problems))


@contextmanager
def _connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        # An index that is built beside writers waits for each of them, for as long as it takes.
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET lock_timeout = 0")
        # Asked again and again: a statement that waits would hold up the index that the
        # other one builds.
        while not _got(connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK_KEY,))):
            time.sleep(_LOCK_SECONDS)
        yield connection


def _got(cursor: psycopg.Cursor[Any]) -> bool:
    row = cursor.fetchone()
    return row is not None and bool(row[0])


def _make_extensions(connection: psycopg.Connection[Any]) -> list[str]:
    """Makes the extensions that are there for this server; what was refused."""
    refused = []
    offered = connection.execute(
        "SELECT name FROM pg_available_extensions WHERE name = ANY(%s)"
        " AND installed_version IS NULL",
        (["btree_gin", "vector"],),
    ).fetchall()
    for (name,) in offered:
        statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(sql.Identifier(name))
        try:
            connection.execute(statement)
        except psycopg.Error as error:
            refused.append(
                f"the extension {name} is installed on the server, and was not enabled:"
                f" {_first_line(error)}; a superuser may, by CREATE EXTENSION {name}"
            )
    return refused


def _words_index() -> sql.Composable:
    return sql.SQL("ON chunk_word USING gin (session_key, words)")


def _vectors_index(dimensions: int) -> sql.Composable:
    return sql.SQL(
        "ON chunk_vector USING hnsw ((embedding::vector({0})) vector_cosine_ops)"
        " WHERE array_length(embedding, 1) = {0}"
    ).format(sql.Literal(dimensions))


def _make_index(connection: psycopg.Connection[Any], name: str, what: sql.Composable) -> list[str]:
    """Makes an index beside writers, unless it is there whole; why it could not."""
    index = sql.Identifier(name)
    whole = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"public.{name}",)
    ).fetchone()
    if whole is not None and whole[0]:
        return []
    try:
        # One that was broken off is invalid, and stays so.
        connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index))
        connection.execute(sql.SQL("CREATE INDEX CONCURRENTLY {} {}").format(index, what))
    except psycopg.Error as error:
        return [f"the index {name} was not made: {_first_line(error)}"]
    return []


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
