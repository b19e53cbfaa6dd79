"""Storage errors, into which those of psycopg and SQLAlchemy are translated.

StorageError
├── Unreachable    no connection, failover, shutdown, pool exhausted: retry
│   ├── ReadOnly   a standby, or a replaced primary: retry on another connection
│   ├── Full       no room on the server's disk: retry when there is some
│   └── LoginRefused   the server refuses this login: the settings are wrong
├── Busy           a lock or statement timeout, a deadlock: retry
├── NotSupported   this kind of database does not accept the statement: never retry
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
    """The database could not do what was requested."""


class Unreachable(StorageError):
    """The database cannot be reached, or dropped the connection.

    The outcome of a commit under way is unknown.
    """


class ReadOnly(Unreachable):
    """This server accepts no writes: it is a standby or a replaced primary.

    Nothing was written.
    """


class Full(Unreachable):
    """The server's disk is full.

    It may crash of that, without space for its write-ahead log: the outcome of a commit under way
    is unknown.
    """


class LoginRefused(Unreachable):
    """The server refuses the login; `advice` says what to do.

    A running process retries as after a failover, since a new password may be on its way.
    """

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


class Busy(StorageError):
    """The database gave up waiting, or chose this transaction to break a deadlock.

    Nothing was written.
    """


class NotSupported(StorageError):
    """The database accepts no such statement: it is sharded, or only similar to PostgreSQL.

    Nothing was written.
    """


class Violated(StorageError):
    """The constraint of the name `constraint` refused the write. Nothing was written."""

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
#: Errors of a server, or a network, that is not there.
_UNREACHABLE = (
    errors.IdleInTransactionSessionTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    OSError,
)
#: libpq's message when it finds no server that accepts writes.
_NOT_WRITABLE = "session is read-only"


#: Messages of a server that refuses a login, and advice. The driver passes on no codes of errors
#: while it connects.
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

#: The function of PostgreSQL that refuses a kept plan, by the code of unsupported statements.
_STALE_PLAN = "RevalidateCachedQuery"


def translate(error: BaseException) -> StorageError | None:
    """Returns the storage error for a driver's error; None when it is not a driver's."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return Unreachable("no free database connection in time")
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, errors.ProgramLimitExceeded):
        # The driver counts it among operational errors, but the same statement never succeeds.
        return None
    if isinstance(error, _BUSY):
        return Busy(first_line(error))
    if isinstance(error, errors.ReadOnlySqlTransaction) or (
        isinstance(error, psycopg.OperationalError) and _NOT_WRITABLE in str(error)
    ):
        return ReadOnly(first_line(error))
    if isinstance(error, errors.DiskFull):
        return Full(f"{first_line(error)}; make room on the database's disk, and try again")
    if isinstance(error, errors.FeatureNotSupported):
        if error.diag.source_function == _STALE_PLAN:
            # A table has changed since. The rollback drops the plan.
            return Busy(first_line(error))
        return NotSupported(
            f"the database does not take the statement ({first_line(error)}): is it sharded, or"
            " another than PostgreSQL? docs/guides/running.md#poolers says what is supported"
        )
    if isinstance(error, psycopg.IntegrityError):
        return Violated(first_line(error), error.diag.constraint_name or "")
    if isinstance(error, _UNREACHABLE):
        return _unreachable(first_line(error))
    return None


def _unreachable(line: str) -> Unreachable:
    for words, advice in _LOGIN_REFUSED:
        if words.search(line):
            return LoginRefused(line, advice)
    return Unreachable(line)


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says, or its type."""
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
