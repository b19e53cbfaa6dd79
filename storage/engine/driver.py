"""psycopg's connection, with fixes for numbers and the texts of errors."""

from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Self

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.adapt import Buffer, Dumper, PyFormat
from psycopg.generators import send
from psycopg.types.numeric import (
    Int8,
    Int8Dumper,
    IntNumeric,
    IntNumericBinaryDumper,
    IntNumericDumper,
)

from service.domain.values.fault_hook import boundary


def without_values(error: psycopg.Error) -> str:
    """Returns the message of a server's error, without the values that its details quote.

    DETAIL, CONTEXT and the excerpt of the statement may contain rows and texts; for an invalid
    value (class 22) so may the message. Errors of the driver itself stay as they are.
    """
    message = error.diag.message_primary
    if error.sqlstate is None or message is None:
        return str(error)
    if error.sqlstate.startswith("22"):
        return f"a value does not fit: {type(error).__name__} ({error.sqlstate})"
    return message


def named_row(cursor: "psycopg.AsyncCursor[Any]") -> Callable[[Sequence[Any]], Any]:
    """Makes named tuples with the columns as fields."""
    result = cursor.pgresult
    names = (result.fname(at) for at in range(result.nfields)) if result else ()
    make: Callable[[Sequence[Any]], Any] = _row_type(*names)._make
    return make


@lru_cache(1024)
def _row_type(*names: bytes | None) -> Any:
    return namedtuple("Row", [(one or b"").decode() for one in names], rename=True)


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


class _Quoted(Dumper):
    def quote(self, obj: int) -> Buffer:
        # The driver puts the type after the quotes, and no operator comes between.
        return b"'%d'" % obj


class _Bigint(_Quoted, Int8Dumper):
    pass


class _Numeric(_Quoted, IntNumericDumper):
    pass


class _Number(Dumper):
    """Every int is a bigint, and numeric beyond 64 bits.

    The driver would choose the smallest type for a value, down to smallint. Then a sum of two
    parameters fails or not by their values, and a statement is prepared anew for each combination
    of sizes.
    """

    _within: Any = _Bigint(Int8)
    _beyond: Any = _Numeric(IntNumeric)

    def dump(self, obj: int) -> Buffer | None:
        return self.upgrade(obj, PyFormat.TEXT).dump(obj)

    def get_key(self, obj: int, format: PyFormat) -> type:
        return Int8 if _fits(obj) else IntNumeric

    def upgrade(self, obj: int, format: PyFormat) -> Dumper:
        fitting: Dumper = self._within if _fits(obj) else self._beyond
        return fitting


class _BinaryNumber(_Number):
    format = psycopg.pq.Format.BINARY
    # Looked up, since the driver returns its compiled one.
    _within = psycopg.adapters.get_dumper(Int8, PyFormat.BINARY)(Int8)
    _beyond = IntNumericBinaryDumper(IntNumeric)


class _Flight(psycopg.AsyncPipeline):
    """A pipeline that sends nothing before its end, and then everything at once.

    psycopg sends each statement by itself, and the server wakes up for each.
    """

    def _communicate_gen(self) -> PQGen[None]:
        yield from ()

    def _exit_gen(self) -> PQGen[None]:
        self._enqueue_sync()
        while self.command_queue:
            # Into libpq's buffer.
            self.command_queue.popleft()()
        yield from send(self.pgconn)
        yield from self._fetch_gen(flush=False)


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's connection, with two differences.

    Every int is sent as a bigint, and errors of the server quote no values of a statement.
    `executemany` is not used: psycopg 3.3.9 runs it in a pipeline of its own, in which the
    connection stays when the call is cancelled as it begins.
    """

    #: The open transaction whose statements report to the fault hook; empty: none.
    reports_as = ""

    @classmethod
    async def connect(cls, conninfo: str = "", **arguments: Any) -> Self:
        """Opens a connection; `arguments` are psycopg's. Raises psycopg.Error."""
        connection = await super().connect(conninfo, **arguments)
        # The last one is preferred: binary, wherever a statement accepts it.
        for dumper in (_Number, _BinaryNumber):
            connection.adapters.register_dumper(int, dumper)
        return connection

    async def wait(self, gen: PQGen[RV], *arguments: Any, **named: Any) -> RV:
        """Does as psycopg's, and shortens errors of the server."""
        if self.reports_as and self._pipeline is None:
            boundary(self.reports_as, "statement")
        try:
            return await super().wait(gen, *arguments, **named)
        except psycopg.Error as error:
            # Here, since logs print this, also of errors that it caused.
            error.args = (without_values(error),)
            raise

    @asynccontextmanager
    async def flight(self) -> AsyncIterator[None]:
        """Surrounds statements that are sent together; their rows are there after it.

        A failure or cancellation within it closes the connection, since which results are still
        to come is unknown.
        """
        flight = self._pipeline = _Flight(self)
        try:
            async with flight:
                yield
        except BaseException:
            if self.info.pipeline_status is not psycopg.pq.PipelineStatus.OFF:
                await self.close()
            raise
        finally:
            self._pipeline = None
