"""Transactions, and the pools of their connections.

A transaction belongs to one tenant: it opens with the tenant's id set, and row-level
security shows it nothing else. Use cases open transactions; other modules of `storage`
only work inside them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import CursorResult, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.domain.values.fault_hook import boundary
from storage import tables
from storage.engine.connections import (
    connection_arguments,
    core_pool,
    direct_pool,
    settings_statement,
)
from storage.engine.driver import Connection, named_row
from storage.engine.errors import ReadOnly, Unreachable, translated
from storage.engine.measuring import Timed, spanned
from storage.engine.ready import Ready

#: A named tuple: its fields are the columns.
Row = Any
#: The values of placeholders, by name or in order; for Core by name.
Values = Sequence[Any] | Mapping[str, Any]
_Cursor = psycopg.AsyncCursor[Any]
#: Receives the ids of memories, answers and schema drafts, in hexadecimal.
Changed = Callable[[Sequence[str]], None]

#: How long a transaction may take, with the wait for its connection. Longer than any statement may:
#: the server of a transaction that takes so long is reachable and does not answer.
TRANSACTION_SECONDS = 45.0

#: Continues a transaction as another tenant's, for statements about many tenants in turn.
OF_TENANT = "SELECT set_config('app.tenant', %s, true)"

#: A transaction that only reads, and sees one moment throughout.
_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"

#: The name of transactions without one, in metrics.
OTHER = "other"
#: For writes that a crash of the server may lose: their commit does not wait for the disk, but is
#: there before any later commit.
LAZILY = "SET LOCAL synchronous_commit = off"

#: Without a transaction; the second is of a connection that is closed.
_NOTHING_OPEN = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


#: Row-level security shows nothing to it.
_NO_TENANT = UUID(int=0)

_NOTIFY = "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS t (c, p)"


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Surrounds a transaction. Raises Unreachable when it takes TRANSACTION_SECONDS."""
    bound = asyncio.timeout(TRANSACTION_SECONDS)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Unreachable("the database did not answer in time") from error


def _begin(mode: str, opening: Sequence[str], tenant_id: UUID | None = None) -> tuple[str, ...]:
    """Returns the statements that a transaction begins with."""
    tenant = () if tenant_id is None else (f"SET LOCAL app.tenant = '{tenant_id}'",)
    return (f"BEGIN {mode}".rstrip(), *opening, *tenant)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """A transaction of one tenant, on a connection of SQLAlchemy's pool or the driver's.

    On the latter a call without an open transaction is a whole one: it begins, runs and commits
    in one round trip, and when it returns the writes are on disk.

    Statements are text with `%s` or `%(name)s` as placeholders, Ready, or of SQLAlchemy's Core,
    which needs its pool and is not piped. `prepare` is the driver's: True keeps a plan, None keeps
    one once the text was sent often, False never.
    """

    tenant_id: UUID
    #: The driver's connection.
    driver: Connection
    #: SQLAlchemy's for the same transaction; None on a connection of the driver's own.
    core: AsyncConnection | None = None
    #: Settings that each transaction begins with, where a connection cannot keep them.
    opening: tuple[str, ...] = ()
    #: Ids of what it changes and calls may wait for; reported after its commit.
    changed: set[UUID] = field(default_factory=set)
    #: The name by which the fault hook knows it.
    name: str = OTHER

    async def fetch(
        self,
        statement: Ready | Executable | str,
        values: Values | None = None,
        *,
        prepare: bool | None = True,
    ) -> list[Row]:
        """Runs one statement and returns its rows."""
        if isinstance(statement, Executable):
            return list(await self._core(statement, values))
        return await _fetched(await self._run(statement, values, prepare))

    async def execute(
        self,
        statement: Ready | Executable | str,
        values: Values | None = None,
        *,
        prepare: bool | None = True,
    ) -> int:
        """Runs one statement and returns how many rows it changed."""
        if isinstance(statement, Executable):
            return (await self._core(statement, values)).rowcount
        return (await self._run(statement, values, prepare)).rowcount

    async def pipeline(
        self,
        statements: Sequence[str],
        values: Values | None = None,
        *,
        prepare: bool = True,
        snapshot: bool = False,
        stays_open: bool = False,
    ) -> list[list[Row]]:
        """Runs statements in one round trip and returns the rows of each.

        Each sees what was committed before it. With `snapshot` it is a whole read-only transaction
        that sees one moment. One that `stays_open` ends with `commit`.
        """
        cursors = await self._sent(
            statements, values, prepare, snapshot=snapshot, stays_open=stays_open
        )
        return [await _fetched(cursor) for cursor in cursors]

    async def commit(self) -> None:
        """Commits a transaction that stayed open; then the writes are on disk."""
        boundary(self.name, "commit")
        await self.driver.execute("COMMIT")
        boundary(self.name, "committed")

    async def _core(self, statement: Executable, values: Any) -> CursorResult[Any]:
        assert self.core is not None, "the driver's own connections take no Core"
        return await self.core.execute(statement, values)

    def _is_open(self) -> bool:
        idle = self.driver.pgconn.transaction_status == TransactionStatus.IDLE
        return self.core is not None or not idle

    async def _run(self, statement: Ready | str, values: Any, prepare: bool | None) -> _Cursor:
        if isinstance(statement, Ready):
            values, statement = statement.values(values or {}), statement.text
        if not self._is_open():
            return (await self._sent((statement,), values, prepare))[0]
        if self.core is None:
            # A pooled connection reports by itself.
            boundary(self.name, "statement")
        return await self._one(statement, values, prepare)

    async def _sent(
        self,
        statements: Sequence[str],
        values: Values | None,
        prepare: bool | None,
        *,
        snapshot: bool = False,
        stays_open: bool = False,
    ) -> list[_Cursor]:
        """Sends all statements before it reads any result."""
        execute, is_whole = self.driver.execute, not self._is_open()
        mode = _SNAPSHOT if snapshot else ""
        ends = is_whole and not stays_open
        boundary(self.name, "statement")
        if ends:
            boundary(self.name, "commit")
        async with self.driver.flight():
            for one in _begin(mode, self.opening, self.tenant_id) if is_whole else ():
                # The others differ by tenant.
                await execute(one, prepare=one == "BEGIN")
            cursors = [await self._one(*one, prepare) for one in _each(statements, values)]
            if ends:
                await execute("COMMIT", prepare=True)
        if ends:
            boundary(self.name, "committed")
        return cursors

    async def _one(self, statement: str, values: Values | None, prepare: bool | None) -> _Cursor:
        cursor = self.driver.cursor(row_factory=named_row)
        return await cursor.execute(statement, values, prepare=prepare)


class Database:
    """Connections in the role of the application.

    Two pools: SQLAlchemy's for statements of its Core, and the driver's for hot paths, where a
    checkout must not cost as much as a round trip.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        direct: AsyncConnectionPool[Connection],
        opening: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._direct = direct
        #: What each transaction begins with, where a connection cannot keep it.
        self._opening = tuple(opening)
        self._checking: asyncio.Task[None] | None = None
        self._listeners: list[Changed] = []

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pool_size: int,
        name: str,
        role: str = tables.APP_ROLE,
        pooled: bool = False,
    ) -> "Database":
        """Makes pools of at most `pool_size` connections each; opens none yet.

        The server shows `name` as application_name. `pooled`: a pooler before the server gives
        each transaction another connection (docs/guides/running.md), so nothing is prepared, and
        each transaction sets what a connection sets otherwise.
        """
        arguments = connection_arguments(name, role=role, pooled=pooled)
        engine = core_pool(url, arguments, pool_size=pool_size)
        direct = direct_pool(url, arguments, pool_size=pool_size)
        return cls(engine, direct, (settings_statement(role),) if pooled else ())

    def on_change(self, listener: Changed) -> None:
        """Calls `listener` after each commit with the ids of what it changed, if any.

        Not within the commit, since commits that notify wait for each other. A process that dies
        before the call reports nothing, so listeners also poll.
        """
        self._listeners.append(listener)

    def _report(self, changed: set[UUID]) -> None:
        if changed:
            ids = [one.hex for one in changed]
            for listener in self._listeners:
                listener(ids)

    def max_connections(self) -> dict[str, int]:
        """Returns how many connections each pool may have."""
        core: Any = self._engine.pool
        return {"core": core.size(), "direct": self._direct.max_size}

    def connections(self) -> dict[str, dict[str, int]]:
        """Returns how many connections of each pool are used, and how many idle."""
        core: Any = self._engine.pool
        direct = {} if self._direct.closed else self._direct.get_stats()
        idle = direct.get("pool_available", 0)
        return {
            "core": {"used": core.checkedout(), "idle": core.checkedin()},
            "direct": {"used": direct.get("pool_size", 0) - idle, "idle": idle},
        }

    async def close(self) -> None:
        """Closes every connection."""
        if self._checking is not None:
            await self._checking
        await self._direct.close()
        await self._engine.dispose()

    @asynccontextmanager
    async def transaction(
        self, tenant_id: UUID, *, lazily: bool = False, name: str = OTHER
    ) -> AsyncIterator[Transaction]:
        """Opens a transaction of one tenant: commits at the end, rolls back on an error.

        READ COMMITTED: every invariant is one row or one key. `lazily`: a crash of the server
        within a second may lose it, and then all later commits as well. `name`: its name for the
        fault hook; metrics have the part before the dot. Raises StorageError.
        """
        with spanned(name), Timed(name), self._translating():
            opening = (*self._opening, LAZILY) if lazily else self._opening
            begin = _begin("", opening, tenant_id)
            async with _in_time(), self._begun(begin, name, tenant_id) as tx:
                yield tx
        self._report(tx.changed)

    @asynccontextmanager
    async def snapshot(self, tenant_id: UUID, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """Opens a read-only transaction of one tenant that sees one moment throughout.

        Raises StorageError.
        """
        with spanned(name), Timed(name), self._translating():
            begin = _begin(_SNAPSHOT, self._opening, tenant_id)
            async with self._begun(begin, name, tenant_id) as tx:
                yield tx

    @asynccontextmanager
    async def _pooled(self, name: str, tenant_id: UUID) -> AsyncIterator[Transaction]:
        """Opens a transaction on a connection of SQLAlchemy's pool, which begins it."""
        async with self._engine.connect() as core:
            pooled = core.sync_connection
            assert pooled is not None, "it is connected"
            driver: Any = pooled.connection.driver_connection
            yield Transaction(tenant_id=tenant_id, driver=driver, core=core, name=name)

    @asynccontextmanager
    async def _begun(
        self, begin: Sequence[str], name: str, tenant_id: UUID = _NO_TENANT
    ) -> AsyncIterator[Transaction]:
        """Opens a transaction that runs `begin` first and COMMIT at the end."""
        async with self._pooled(name, tenant_id) as tx:
            driver, core = tx.driver, tx.core
            assert core is not None, "it is pooled"
            try:
                await driver.execute("; ".join(begin), prepare=False)
                with _reporting(driver, name):
                    yield tx
                boundary(name, "commit")
                await driver.execute("COMMIT", prepare=False)
                boundary(name, "committed")
            finally:
                # After an error the pool rolls back when the connection is returned. It notices
                # a lost connection by a statement only, and then drops the idle ones as well.
                if driver.closed and not core.invalidated:
                    with suppress(DBAPIError):
                        await core.exec_driver_sql("SELECT")

    @asynccontextmanager
    async def direct(self, tenant_id: UUID, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """Opens transactions on a connection of the driver's own, for hot paths.

        Each call is a whole one unless it stays open; what it leaves uncommitted is rolled back.
        Raises StorageError.
        """
        if self._direct.closed:
            await self._direct.open()
        try:
            with spanned(name), Timed(name), self._translating():
                async with _in_time(), self._direct.connection() as driver:
                    tx = Transaction(
                        tenant_id=tenant_id, driver=driver, opening=self._opening, name=name
                    )
                    try:
                        yield tx
                    finally:
                        if driver.info.transaction_status not in _NOTHING_OPEN:
                            await driver.rollback()
            self._report(tx.changed)
        except Unreachable as error:
            # The server is gone: the other idle connections are as dead as this one.
            if not isinstance(error, ReadOnly):
                self._start(self._direct.check)
            raise

    async def swept(
        self, queries: Sequence[str], values: Mapping[str, object], *, name: str = "queue"
    ) -> list[list[Row]]:
        """Runs a whole transaction of the sweeper, of all tenants, in one round trip.

        Returns the rows of each query. It may write to the tables of the queue, and sees the keys
        of runnable items. Raises StorageError.
        """
        async with self.direct(_NO_TENANT, name=name) as tx:
            opening = (*tx.opening, f"SET LOCAL ROLE {tables.SWEEPER_ROLE}")
            return await replace(tx, opening=opening).pipeline(queries, values)

    async def notify(self, notices: Sequence[tuple[str, str]], *, name: str = OTHER) -> None:
        """Sends notifications, (channel, payload) each, in one statement. Raises StorageError."""
        channels, payloads = [list(column) for column in zip(*notices, strict=True)]
        if self._direct.closed:
            await self._direct.open()
        with self._translating():
            async with _in_time(), self._direct.connection() as driver:
                boundary(name, "commit")
                await driver.execute(_NOTIFY, (channels, payloads))
                boundary(name, "committed")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raises storage errors in place of the driver's.

        Closes all connections to a server that accepts no writes: it may stay reachable.
        """
        try:
            with translated():
                yield
        except ReadOnly:
            self._start(self._drop_connections)
            raise

    def _start(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(check())

    async def _drop_connections(self) -> None:
        # Connections in use are closed when they are returned.
        await self._engine.dispose()
        if not self._direct.closed:
            await self._direct.drain()

    @asynccontextmanager
    async def sweeping(self, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """Opens a read-only transaction on the runnable items of all tenants.

        In the role of the sweeper, which row-level security shows nothing but the keys of
        runnable items, and the tenants. Raises StorageError.
        """
        with Timed(name), self._translating():
            async with _in_time(), self._pooled(name, _NO_TENANT) as tx:
                role = f"SET LOCAL ROLE {tables.SWEEPER_ROLE}"
                begin = (*_begin("READ ONLY", self._opening), role)
                await tx.driver.execute("; ".join(begin), prepare=False)
                yield tx

    @asynccontextmanager
    async def without_tenant(self, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """Opens a connection for tables that belong to no tenant. Raises StorageError.

        Each statement commits by itself; with a pooler all commit together.
        """
        with Timed(name), self._translating():
            if self._opening:
                async with _in_time(), self._begun(_begin("", self._opening), name) as tx:
                    yield tx
            else:
                async with _in_time(), self._pooled(name, _NO_TENANT) as tx:
                    boundary(name, "commit")
                    yield tx
                    boundary(name, "committed")


@contextmanager
def _reporting(driver: Connection, name: str) -> Iterator[None]:
    """Has the fault hook called before each statement on this connection."""
    driver.reports_as = name
    try:
        yield
    finally:
        driver.reports_as = ""


def first(rows: Sequence[Row]) -> Row:
    """Returns the first row; None without one."""
    return rows[0] if rows else None


def value(rows: Sequence[Row]) -> Any:
    """Returns the first column of the first row; None without one."""
    return rows[0][0] if rows else None


def _each(statements: Sequence[str], values: Values | None) -> Iterator[tuple[str, Values | None]]:
    """Yields each statement with its own values."""
    if values is None or isinstance(values, Mapping):
        yield from ((one, values) for one in statements)
        return
    taken = 0
    for one in statements:
        own = values[taken : taken + one.count("%s")]
        taken += len(own)
        yield one, own


async def _fetched(cursor: _Cursor) -> list[Row]:
    # `description` would make an object of each column.
    return await cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
