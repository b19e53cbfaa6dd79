"""Removes guards from the service, or from the database.

The service has no code for this: statements are rewritten on their way to PostgreSQL, keys are
dropped, functions are replaced. A change that finds nothing to change is an error: the guard has
moved, and the mutant would prove nothing.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import psycopg
from psycopg import sql


class Stale(AssertionError):
    """A change found nothing to change; the message says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sql:
    """Leaves out or replaces a part of a statement."""

    #: A regular expression that is found in the statement, and in no other.
    of: str
    #: What is taken out, a regular expression as well, and what comes in its place.
    cut: str
    put: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """Drops a key, a check or an index, and what depends on it.

    An index that is not in `public` is named with its schema, as its table is.
    """

    table: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Changes the text of a function of the database."""

    function: str
    cut: str
    put: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """Replaces a function of the service."""

    #: The module or the class, and the name that it has there.
    where: Any
    name: str
    #: Makes the other one of the one that is there.
    to: Callable[[Any], Any]


Change = Sql | Drop | Body | Patch


@contextmanager
def changed(changes: Sequence[Change], *, may_be_idle: bool = False) -> Iterator[None]:
    """Changes the service as long as this is open.

    Raises Stale at the end if changed code was never reached, unless `may_be_idle`.
    """
    rewriting = [one for one in changes if isinstance(one, Sql)]
    with ExitStack() as stack:
        for one in changes:
            if isinstance(one, Patch):
                original = getattr(one.where, one.name)
                stack.enter_context(mock.patch.object(one.where, one.name, one.to(original)))
        if rewriting:
            stack.enter_context(_rewritten(rewriting, may_be_idle))
        yield


@contextmanager
def _rewritten(changes: Sequence[Sql], may_be_idle: bool) -> Iterator[None]:
    execute = psycopg.AsyncCursor.execute
    found: set[Sql] = set()

    async def rewriting(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        is_text = isinstance(query, str)
        text = query if is_text else query.decode() if isinstance(query, bytes) else None
        if text is not None:
            for one in changes:
                if re.search(one.of, text, re.DOTALL):
                    text, times = re.subn(one.cut, one.put, text, flags=re.DOTALL)
                    if times:
                        found.add(one)
            query = text if is_text else text.encode()
        return await execute(self, query, *arguments, **named)

    with mock.patch.object(psycopg.AsyncCursor, "execute", rewriting):
        yield
    missed = [one for one in changes if one not in found]
    if missed and not may_be_idle:
        raise Stale(f"no statement has {missed[0].cut!r} where there is {missed[0].of!r}")


def in_database(changes: Sequence[Change]) -> tuple[Drop | Body, ...]:
    """Returns those that are made in the database itself."""
    return tuple(one for one in changes if isinstance(one, Drop | Body))


def alter(url: str, changes: Sequence[Drop | Body]) -> None:
    """Changes an idle database, as its superuser. Raises Stale."""
    with psycopg.connect(url, autocommit=True) as connection:
        # All of them are looked for first: dropping one takes others with it.
        dropping = [_dropping(connection, one) for one in changes if isinstance(one, Drop)]
        for statement in dropping:
            connection.execute(statement)
        for one in changes:
            if isinstance(one, Body):
                _replace(connection, one)


def _dropping(connection: psycopg.Connection[Any], one: Drop) -> sql.Composed:
    kind = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_constraint"
        "   WHERE conname = %(name)s AND conrelid = %(table)s::regclass),"
        " EXISTS (SELECT FROM pg_index"
        "   WHERE indexrelid = to_regclass(%(name)s) AND indrelid = %(table)s::regclass)",
        {"name": one.name, "table": one.table},
    ).fetchone()
    assert kind is not None, "it is one row"
    is_constraint, is_index = kind
    names = {
        "table": sql.Identifier(*one.table.split(".")),
        "name": sql.Identifier(*one.name.split(".")),
    }
    if is_constraint:
        return sql.SQL("ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name} CASCADE").format(
            **names
        )
    if is_index:
        return sql.SQL("DROP INDEX IF EXISTS {name}").format(**names)
    raise Stale(f"{one.table} has no key or check {one.name}")


def _replace(connection: psycopg.Connection[Any], one: Body) -> None:
    # An older form of the function has fewer arguments: processes of the release before call it.
    found = connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s"
        " ORDER BY pronargs DESC LIMIT 1",
        (one.function,),
    ).fetchone()
    text, times = re.subn(one.cut, one.put, found[0] if found else "", flags=re.DOTALL)
    if times != 1:
        raise Stale(f"{one.function} has {one.cut!r} {times} times")
    connection.execute(text.encode())
