"""Driver errors, translated: nothing of psycopg or SQLAlchemy leaves this package.

StorageError
├── Unreachable    no connection, failover, shutdown, pool exhausted: retry
├── Busy           a lock or statement timeout, a deadlock: retry
├── NotSupported   this kind of database does not take the statement: never retry
└── Violated       a key or check of the schema refused the write
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy.exc
from opentelemetry import metrics
from psycopg import errors

_REFUSED = metrics.get_meter("palimpsest").create_counter(
    "palimpsest.database.refused", description="Writes that a key or a check refused, by constraint"
)


class StorageError(Exception):
    """The database could not do what it was asked."""


class Unreachable(StorageError):
    """The database cannot be reached, or dropped the connection. The outcome of
    a commit under way is unknown."""


class Busy(StorageError):
    """The database gave up waiting, or chose this transaction to break a deadlock.
    Nothing was written."""


class NotSupported(StorageError):
    """The database takes no such statement: it is sharded, or only like PostgreSQL.
    Nothing was written."""


class Violated(StorageError):
    """A constraint refused the write; `constraint` is its name. Nothing was written."""

    def __init__(self, message: str, constraint: str) -> None:
        super().__init__(message)
        self.constraint = constraint


#: Errors after which the same transaction may well succeed.
_BUSY = (
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.QueryCanceled,
)
#: Errors that say that the server, or the way to it, is not there; or that it is another
#: one: after a failover the one that may not write yet, or no more.
_UNREACHABLE = (
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    OSError,
)

#: What of PostgreSQL refuses a plan that was kept, in the same class as what it never takes.
_STALE_PLAN = "RevalidateCachedQuery"


def translate(error: BaseException) -> StorageError | None:
    """The storage error for a driver's error; None when it is not a driver's."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return Unreachable("no free database connection in time")
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, errors.ProgramLimitExceeded):
        # The driver counts it among operational errors, but the same statement never succeeds.
        return None
    if isinstance(error, _BUSY):
        return Busy(_first_line(error))
    if isinstance(error, errors.FeatureNotSupported):
        if error.diag.source_function == _STALE_PLAN:
            # A table changed under it. The rollback lets go of it.
            return Busy(_first_line(error))
        return NotSupported(
            f"the database does not take the statement ({_first_line(error)}): is it sharded, or"
            " another than PostgreSQL? docs/guides/poolers.md says what is supported"
        )
    if isinstance(error, psycopg.IntegrityError):
        return Violated(_first_line(error), error.diag.constraint_name or "")
    if isinstance(error, _UNREACHABLE):
        return Unreachable(_first_line(error))
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def translated() -> Iterator[None]:
    """Raises storage errors in place of the driver's."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, psycopg.Error, OSError) as error:
        storage_error = translate(error)
        if storage_error is None:
            raise
        if isinstance(storage_error, Violated):
            _REFUSED.add(1, {"constraint": storage_error.constraint})
        raise storage_error from error
