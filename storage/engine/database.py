"""Transactions, and the pools whose connections they take.

A transaction belongs to one tenant: it opens with the tenant's id set, and row-level
security shows it nothing else. Use cases open transactions; the modules beside this
one only work inside them.
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
from storage.engine.driver import Connection
from storage.engine.errors import ReadOnly, Unreachable, translated
from storage.engine.measuring import Timed, spanned
from storage.engine.ready import Ready

Row = tuple[Any, ...]
#: What the placeholders of queries stand for: by name, or in their order, each its own.
Values = Sequence[object] | Mapping[str, object]
#: Is told the ids of memories, answers and schema drafts, in hexadecimal.
Changed = Callable[[Sequence[str]], None]

#: How long a transaction may take, with the wait for its connection. Longer than any
#: statement: who waits so long waits for a server that is there and does not answer.
TRANSACTION_SECONDS = 45.0

#: A transaction goes on as another tenant's: for what belongs to many, of each in its turn.
OF_TENANT = "SELECT set_config('app.tenant', %s, true)"

#: A transaction that only reads, and sees one moment throughout.
_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"

#: What transactions are measured as that have no name.
OTHER = "other"
#: For what a server that crashes may forget: its commit does not wait for the disk, but is
#: there before any that comes after it.
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
    """The statements that a transaction begins with."""
    tenant = () if tenant_id is None else (f"SET LOCAL app.tenant = '{tenant_id}'",)
    return (f"BEGIN {mode}".rstrip(), *opening, *tenant)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """An open transaction of one tenant."""

    tenant_id: UUID
    #: For statements built with SQLAlchemy Core.
    connection: AsyncConnection
    #: The driver's own, of the same transaction.
    driver: Connection
    #: Ids of what it changes that calls may wait for; told behind its commit.
    changed: set[UUID] = field(default_factory=set)

    async def rows(self, statement: Ready | str, values: Mapping[str, object]) -> list[Row]:
        """Runs a statement of a hot path, whose plan the connection keeps; its rows."""
        cursor = await self._run(statement, values)
        return await cursor.fetchall()

    async def count(self, statement: Ready, values: Mapping[str, object]) -> int:
        """Runs a statement of a hot path that gives no rows; how many it has changed."""
        return (await self._run(statement, values)).rowcount

    async def batch(
        self, statements: Sequence[str], values: Mapping[str, object]
    ) -> list[list[Row]]:
        """Runs statements of a hot path in one round trip; their rows, in order."""
        boundary(self.driver.reports_as, "statement")
        async with self.driver.flight():
            cursors = [await self._run(one, values) for one in statements]
        return [await _fetched(cursor) for cursor in cursors]

    async def _run(
        self, statement: Ready | str, values: Mapping[str, object]
    ) -> psycopg.AsyncCursor[Row]:
        if isinstance(statement, str):
            return await self.driver.execute(statement, values, prepare=True)
        return await self.driver.execute(statement.text, statement.values(values), prepare=True)


class Database:
    """Connections in the role of the application.

    Two pools: SQLAlchemy's for statements of its Core, and the driver's own for the hot
    paths, where handing a connection out must not cost as much as a round trip.
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
        self._hearers: list[Changed] = []

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

        `name` is shown by the server as application_name. `pooled`: a pooler between us and
        the server gives each transaction another connection (docs/guides/running.md), so that
        nothing is prepared, and each transaction is told what else a connection is.
        """
        arguments = connection_arguments(name, role=role, pooled=pooled)
        engine = core_pool(url, arguments, pool_size=pool_size)
        direct = direct_pool(url, arguments, pool_size=pool_size)
        return cls(engine, direct, (settings_statement(role),) if pooled else ())

    def on_change(self, hear: Changed) -> None:
        """Has `hear` called behind each commit with the ids of what it changed, if any.

        Behind and not with it: commits that notify wait for each other. Whoever dies in between
        tells nobody, so those who are told also look for themselves now and then.
        """
        self._hearers.append(hear)

    def _tell(self, changed: set[UUID]) -> None:
        if changed:
            words = [one.hex for one in changed]
            for hear in self._hearers:
                hear(words)

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
        """A transaction of one tenant: commits at the end, rolls back on an error.

        READ COMMITTED: every invariant is one row or one key. `lazily`: a server that crashes
        within a second may forget it, but nothing that is committed after it without
        forgetting that as well. `name`: what the fault hook knows it as; the part before the
        dot is what it is measured as. Raises StorageError.
        """
        with spanned(name), Timed(name), self._heard():
            opening = (*self._opening, LAZILY) if lazily else self._opening
            begin = _begin("", opening, tenant_id)
            async with _in_time(), self._begun(begin, name) as (connection, driver):
                tx = Transaction(tenant_id=tenant_id, connection=connection, driver=driver)
                yield tx
        self._tell(tx.changed)

    @asynccontextmanager
    async def snapshot(self, tenant_id: UUID, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """A read-only transaction of one tenant that sees one moment throughout.

        Raises StorageError.
        """
        with spanned(name), Timed(name), self._heard():
            begin = _begin(_SNAPSHOT, self._opening, tenant_id)
            async with self._begun(begin, name) as (connection, driver):
                yield Transaction(tenant_id=tenant_id, connection=connection, driver=driver)

    @asynccontextmanager
    async def _begun(
        self, begin: Sequence[str], name: str
    ) -> AsyncIterator[tuple[AsyncConnection, Connection]]:
        """A connection, and its driver's, that runs `begin` first and COMMIT at the end."""
        async with self._engine.connect() as connection:
            pooled = connection.sync_connection
            assert pooled is not None, "it is connected"
            driver: Any = pooled.connection.driver_connection
            try:
                await driver.execute("; ".join(begin), prepare=False)
                with _reporting(driver, name):
                    yield connection, driver
                boundary(name, "commit")
                await driver.execute("COMMIT", prepare=False)
                boundary(name, "committed")
            finally:
                # After an error the pool rolls back as it takes the connection back. That one
                # is lost it has to be shown: then it lets go of those that are idle as well.
                if driver.closed and not connection.invalidated:
                    with suppress(DBAPIError):
                        await connection.exec_driver_sql("SELECT")

    @asynccontextmanager
    async def direct(
        self, tenant_id: UUID, *, name: str = OTHER
    ) -> AsyncIterator["DirectTransaction"]:
        """The driver's own connection, for hot paths that count round trips.

        The caller begins and commits with `DirectTransaction`'s methods; what it
        does not commit is rolled back. Raises StorageError.
        """
        if self._direct.closed:
            await self._direct.open()
        try:
            with spanned(name), Timed(name), self._heard():
                async with _in_time(), self._direct.connection() as driver:
                    tx = DirectTransaction(
                        tenant_id=tenant_id, driver=driver, opening=self._opening, name=name
                    )
                    try:
                        yield tx
                    finally:
                        if driver.info.transaction_status not in _NOTHING_OPEN:
                            await driver.rollback()
            self._tell(tx.changed)
        except Unreachable as error:
            # The server went away: the other idle connections are as dead as this one.
            if not isinstance(error, ReadOnly):
                self._look_after(self._direct.check)
            raise

    async def swept(
        self, queries: Sequence[str], values: Mapping[str, object], *, name: str = "queue"
    ) -> list[list[Row]]:
        """A whole transaction of the sweeper's, of all tenants, in one round trip; rows by query.

        It may write to the tables of the queue, and see the keys of what is runnable. Raises
        StorageError.
        """
        async with self.direct(_NO_TENANT, name=name) as tx:
            opening = (*tx.opening, f"SET LOCAL ROLE {tables.SWEEPER_ROLE}")
            return await replace(tx, opening=opening).write_all(queries, values)

    async def notify(self, notices: Sequence[tuple[str, str]], *, name: str = OTHER) -> None:
        """Sends notifications, (channel, payload) each, in one statement. Raises StorageError."""
        channels, payloads = [list(column) for column in zip(*notices, strict=True)]
        if self._direct.closed:
            await self._direct.open()
        with self._heard():
            async with _in_time(), self._direct.connection() as driver:
                boundary(name, "commit")
                await driver.execute(_NOTIFY, (channels, payloads))
                boundary(name, "committed")

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Raises storage errors in place of the driver's.

        A server that takes no writes is left, with all connections to it: it may live on.
        """
        try:
            with translated():
                yield
        except ReadOnly:
            self._look_after(self._leave)
            raise

    def _look_after(self, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(look())

    async def _leave(self) -> None:
        # What is in use is closed when it comes back.
        await self._engine.dispose()
        if not self._direct.closed:
            await self._direct.drain()

    @asynccontextmanager
    async def sweeping(self, *, name: str = OTHER) -> AsyncIterator[AsyncConnection]:
        """A read-only look at what is runnable, of all tenants.

        In the role of the sweeper, which row-level security shows nothing but the
        keys of runnable memories and answers, and the tenants. Raises StorageError.
        """
        with Timed(name), self._heard():
            async with _in_time(), self._engine.connect() as connection:
                begin = (
                    *_begin("READ ONLY", self._opening),
                    f"SET LOCAL ROLE {tables.SWEEPER_ROLE}",
                )
                await connection.exec_driver_sql("; ".join(begin))
                yield connection

    @asynccontextmanager
    async def connection(self, *, name: str = OTHER) -> AsyncIterator[AsyncConnection]:
        """A connection without a tenant, for what belongs to none. Raises StorageError.

        Each statement commits by itself; behind a pooler all of them do together.
        """
        with Timed(name), self._heard():
            if self._opening:
                begin = _begin("", self._opening)
                async with _in_time(), self._begun(begin, name) as (connection, _):
                    yield connection
            else:
                async with _in_time(), self._engine.connect() as connection:
                    boundary(name, "commit")
                    yield connection
                    boundary(name, "committed")


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectTransaction:
    """A transaction in as few round trips as can be.

    Values travel beside the statements, never in them: the server's log has its statements.
    With `keep` the connection keeps the plan, for statements that come again and again.
    """

    tenant_id: UUID
    driver: Connection
    #: What it begins with, where a connection cannot keep it.
    opening: tuple[str, ...] = ()
    #: Ids of what it changed that calls may wait for; told when the connection goes back.
    changed: set[UUID] = field(default_factory=set)
    #: What the fault hook knows it as.
    name: str = OTHER

    async def read(self, query: str, values: Values, *, keep: bool = True) -> list[Row]:
        """A whole read-only transaction of one statement, in one round trip."""
        begin = _begin("READ ONLY", self.opening, self.tenant_id)
        return (await self._batch(begin, (query,), values, ("COMMIT",), keep=keep))[0]

    async def read_all(
        self, queries: Sequence[str], values: Values, *, keep: bool = True
    ) -> list[list[Row]]:
        """A whole read-only transaction at one moment, in one round trip; rows by query."""
        begin = _begin(_SNAPSHOT, self.opening, self.tenant_id)
        return await self._batch(begin, queries, values, ("COMMIT",), keep=keep)

    async def begin(self, queries: Sequence[str], values: Values | None = None) -> list[list[Row]]:
        """Begins, and runs `queries` in the same round trip; their rows, in order."""
        return await self._batch(_begin("", self.opening, self.tenant_id), queries, values)

    async def batch(self, queries: Sequence[str], values: Values | None = None) -> list[list[Row]]:
        """Runs `queries` in one round trip; their rows, in order.

        Each sees what was committed before it, not before the first.
        """
        return await self._batch((), queries, values)

    async def write_all(
        self, queries: Sequence[str], values: Values | None = None
    ) -> list[list[Row]]:
        """A whole transaction in one round trip; rows by query.

        When it returns the writes are on disk.
        """
        return await self._batch(
            _begin("", self.opening, self.tenant_id), queries, values, ("COMMIT",)
        )

    async def run(self, query: str, values: Sequence[object]) -> list[Row]:
        """Runs one prepared statement, with its values sent in binary."""
        boundary(self.name, "statement")
        cursor = await self.driver.execute(query, values, prepare=True)
        return await cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        """Commits; after this the writes are on disk."""
        boundary(self.name, "commit")
        await self.driver.execute("COMMIT")
        boundary(self.name, "committed")

    async def write(self, query: str, values: Values) -> list[Row]:
        """A whole transaction of one statement, in one round trip; its rows.

        When it returns the writes are on disk.
        """
        begin = _begin("", self.opening, self.tenant_id)
        return (await self._batch(begin, (query,), values, ("COMMIT",)))[0]

    async def _batch(
        self,
        before: Sequence[str],
        queries: Sequence[str],
        values: Values | None,
        behind: Sequence[str] = (),
        *,
        keep: bool = True,
    ) -> list[list[Row]]:
        """Sends everything before it looks at any answer; the rows of `queries`."""
        execute = self.driver.execute
        boundary(self.name, "statement")
        if behind:
            boundary(self.name, "commit")
        async with self.driver.flight():
            for one in before:
                # There are as many to begin with as there are tenants.
                await execute(one, prepare=one == "BEGIN")
            cursors = [await execute(one, own, prepare=keep) for one, own in _each(queries, values)]
            for one in behind:
                await execute(one, prepare=True)
        if behind:
            boundary(self.name, "committed")
        return [await _fetched(cursor) for cursor in cursors]


@contextmanager
def _reporting(driver: Connection, name: str) -> Iterator[None]:
    """Has the fault hook called before each statement on this connection."""
    driver.reports_as = name
    try:
        yield
    finally:
        driver.reports_as = ""


def _each(queries: Sequence[str], values: Values | None) -> Iterator[tuple[str, Values | None]]:
    """Each query with its own values."""
    if values is None or isinstance(values, Mapping):
        yield from ((one, values) for one in queries)
        return
    taken = 0
    for one in queries:
        own = values[taken : taken + one.count("%s")]
        taken += len(own)
        yield one, own


async def _fetched(cursor: "psycopg.AsyncCursor[Row]") -> list[Row]:
    # `description` would make an object of each column.
    return await cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
