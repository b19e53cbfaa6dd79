"""Driver errors by what a client has to know of them."""

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from service.domain.values.errors import Unavailable
from service.domain.values.reasons import Reason
from service.usecases.log.database_words import unavailable
from storage.engine.errors import Busy, Full, ReadOnly, StorageError, Unreachable, translate

NO_HOST = "connection failed: Connection refused"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.DiskFull("could not extend file: No space left on device"), Full),
        (errors.ReadOnlySqlTransaction("cannot execute INSERT"), ReadOnly),
        (psycopg.OperationalError("connection failed: session is read-only\nmore"), ReadOnly),
        (psycopg.OperationalError(NO_HOST), Unreachable),
        (errors.AdminShutdown("terminating connection"), Unreachable),
        (errors.CannotConnectNow("the database system is starting up"), Unreachable),
        (errors.LockNotAvailable("canceling statement due to lock timeout"), Busy),
    ],
)
def test_each_is_distinguished_also_through_sqlalchemy(
    error: psycopg.Error, kind: type[StorageError]
) -> None:
    wrapped = DBAPIError("statement", None, error)
    assert type(translate(error)) is type(translate(wrapped)) is kind


def test_a_users_text_does_not_make_a_standby() -> None:
    refused = errors.UniqueViolation("duplicate key (name)=(session is read-only)")
    assert not isinstance(translate(refused), ReadOnly)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (Full("x"), Reason.DATABASE_FULL, "the database's disk is full; what was acked is kept"),
        (ReadOnly("x"), Reason.DATABASE_UNAVAILABLE, "the database takes no writes now"),
        (Unreachable("x"), Reason.DATABASE_UNAVAILABLE, "the database cannot be reached"),
        (Busy("x"), Reason.DATABASE_UNAVAILABLE, "the database gave up waiting for a lock"),
    ],
)
def test_clients_learn_what_is_wrong_and_when_to_retry(
    error: StorageError, reason: Reason, words: str
) -> None:
    told = unavailable(error)
    assert told.reason is reason
    assert told.message.startswith(words)
    assert isinstance(told, Unavailable)
    assert told.retry_seconds > 0
