"""Driver errors, translated: nothing of psycopg or SQLAlchemy leaves this package.

StorageError
├── Unreachable    no connection, failover, shutdown, pool exhausted: retry
│   ├── ReadOnly   a standby, or a primary that was replaced: retry on another connection
│   ├── Full       no room on the server's disk: retry when there is some
│   └── LoginRefused   the server lets this login in no way: its settings are wrong
├── Busy           a lock or statement timeout, a deadlock: retry
├── NotSupported   this kind of database does not take the statement: never retry
└── Violated       a key or check of the schema refused the write
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy.exc
from opentelemetry import metrics
from psycopg import errors

from service.telemetry.names import Attribute, Metric
from storage.tables import APP_ROLE

_REFUSED = metrics.get_meter("palimpsest").create_counter(
    Metric.DATABASE_REFUSED, description="Writes that a key or a check refused, by constraint"
)


class StorageError(Exception):
    """The database could not do what it was asked."""


class Unreachable(StorageError):
    """The database cannot be reached, or dropped the connection. The outcome of
    a commit under way is unknown."""


class ReadOnly(Unreachable):
    """This server takes no writes: it is a standby, or a primary that another one has
    replaced. Nothing was written."""


class Full(Unreachable):
    """The server has no room left on its disk. It may end of that, as it does for want of room
    for its write-ahead log: the outcome of a commit under way is unknown."""


class LoginRefused(Unreachable):
    """The server is there and refuses the login; `advice` says what to do.

    What runs already tries again as after a failover: a password may be on its way.
    """

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


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
#: Errors that say that the server, or the way to it, is not there.
_UNREACHABLE = (
    errors.IdleInTransactionSessionTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    OSError,
)
#: What libpq says where it is to find a server that takes writes, and does not.
_NOT_WRITABLE = "session is read-only"


#: What a server says that refuses a login, and what helps. The driver passes on no code for
#: errors while it connects, so the words have to do.
_LOGIN_REFUSED = (
    (
        re.compile(rf'role "{APP_ROLE}" does not exist'),
        "the database is not migrated: run `palimpsest migrate`",
    ),
    (
        re.compile(r"permission denied to set role"),
        f"as its owner: GRANT {APP_ROLE} TO the login that PALIMPSEST_DATABASE_URL names",
    ),
    (
        re.compile(
            r'authentication failed|no password supplied|no pg_hba.conf entry|role ".*" does not'
            r" exist|is not permitted to log in"
        ),
        "check user and password in PALIMPSEST_DATABASE_URL",
    ),
    (
        re.compile(r'database ".*" does not exist'),
        "create the database, or name another in PALIMPSEST_DATABASE_URL",
    ),
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
    if isinstance(error, errors.ReadOnlySqlTransaction) or (
        isinstance(error, psycopg.OperationalError) and _NOT_WRITABLE in str(error)
    ):
        return ReadOnly(_first_line(error))
    if isinstance(error, errors.DiskFull):
        return Full(_first_line(error))
    if isinstance(error, errors.FeatureNotSupported):
        if error.diag.source_function == _STALE_PLAN:
            # A table changed under it. The rollback lets go of it.
            return Busy(_first_line(error))
        return NotSupported(
            f"the database does not take the statement ({_first_line(error)}): is it sharded, or"
            " another than PostgreSQL? docs/guides/running.md#poolers says what is supported"
        )
    if isinstance(error, psycopg.IntegrityError):
        return Violated(_first_line(error), error.diag.constraint_name or "")
    if isinstance(error, _UNREACHABLE):
        return _unreachable(_first_line(error))
    return None


def _unreachable(line: str) -> Unreachable:
    for words, advice in _LOGIN_REFUSED:
        if words.search(line):
            return LoginRefused(line, advice)
    return Unreachable(line)


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
            _REFUSED.add(1, {Attribute.CONSTRAINT: storage_error.constraint})
        raise storage_error from error
