"""Creates what search needs besides the tables: extensions, and indexes that need them.

All of it is optional: search does without what the server does not have or the migrating role may
not create. It can be repeated, also at the same time.
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
from storage.engine.errors import first_line

#: An index over the session and the words of chunks; needs btree_gin.
WORDS_INDEX = "chunk_word_by_session"
#: The prefix of indexes over vectors, one for each length, which follows. They need pgvector.
VECTORS_INDEX = "chunk_vector_nearest_"

#: Why vectors cannot be searched by default.
NO_PGVECTOR = "the database has no pgvector (the extension vector)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What search can do on this database."""

    #: Why vectors cannot be searched, in a sentence; empty when they can.
    vectors_unavailable: str
    #: Whether there is an index of sessions and words; else a search visits all words of a session.
    session_words: bool
    #: Lengths of vectors with an index, in ascending order.
    indexed_dimensions: tuple[int, ...] = ()
    #: What could not be created, in sentences.
    problems: tuple[str, ...] = ()


#: Reads extensions and valid indexes.
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
    """Returns what search can do, as of this transaction."""
    row = (await tx.fetch(SUPPORT, prepare=None))[0]
    return support_of(row.vectors, row.indexes)


def support_of(has_vectors: bool, indexes: list[str]) -> Support:
    """Returns what search can do by a row of SUPPORT."""
    lengths = (name.removeprefix(VECTORS_INDEX) for name in indexes if name != WORDS_INDEX)
    return Support(
        vectors_unavailable="" if has_vectors else NO_PGVECTOR,
        session_words=WORDS_INDEX in indexes,
        indexed_dimensions=tuple(sorted(map(int, lengths))),
    )


#: The longest vectors that pgvector's index accepts.
MAX_INDEXED_DIMENSIONS = 2000

#: The key of the advisory lock of a setup.
_LOCK_KEY = 0x70616C69 + 1
#: How often a setup tries to get the lock, in seconds.
_LOCK_SECONDS = 0.2

_OURS = re.compile(rf"{WORDS_INDEX}|{VECTORS_INDEX}[0-9]+")


def is_ours(index: str) -> bool:
    """Returns whether this module, not a migration, creates an index of that name."""
    return _OURS.fullmatch(index) is not None


def install_extensions(url: str) -> None:
    """Creates the extensions that the server has; for a superuser.

    Raises psycopg.Error when the database cannot be reached.
    """
    with _connection(url) as connection:
        _make_extensions(connection)


def install(url: str, dimensions: int | None = None) -> Support:
    """Creates what the role of `url` may create; returns what search can do then.

    `dimensions`: the length of vectors that get an index; None: no index. Returns what could not be
    created in `problems`; raises psycopg.Error when the database cannot be reached.
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
        # Building an index concurrently waits for each writer, however long that takes.
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET lock_timeout = 0")
        # Polled: a waiting statement would block the index that the other setup builds.
        while not _got(connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK_KEY,))):
            time.sleep(_LOCK_SECONDS)
        yield connection


def _got(cursor: psycopg.Cursor[Any]) -> bool:
    row = cursor.fetchone()
    return row is not None and bool(row[0])


def _make_extensions(connection: psycopg.Connection[Any]) -> list[str]:
    """Creates the extensions that the server offers; returns what was refused."""
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
                f" {first_line(error)}; a superuser may, by CREATE EXTENSION {name}"
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
    """Creates an index concurrently, unless it is valid; returns why it could not."""
    index = sql.Identifier(name)
    whole = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"public.{name}",)
    ).fetchone()
    if whole is not None and whole[0]:
        return []
    try:
        # An interrupted one is invalid, and stays so.
        connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index))
        connection.execute(sql.SQL("CREATE INDEX CONCURRENTLY {} {}").format(index, what))
    except psycopg.Error as error:
        return [f"the index {name} was not made: {first_line(error)}"]
    return []
