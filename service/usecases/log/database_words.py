"""Words the refusals of calls that the database cannot serve."""

from service.domain.values.errors import FailedPrecondition, PalimpsestError, Unavailable
from service.domain.values.reasons import Reason
from storage.engine.errors import Busy, Full, NotSupported, ReadOnly, StorageError

#: When to try again where an operator has to make room first.
FULL_RETRY_SECONDS = 5.0


def unavailable(error: StorageError) -> PalimpsestError:
    """Returns the refusal of a call; a client may retry all but NotSupported."""
    if isinstance(error, NotSupported):
        return FailedPrecondition(Reason.DATABASE_NOT_SUPPORTED, str(error), {"cause": str(error)})
    if isinstance(error, Full):
        return Unavailable(
            Reason.DATABASE_FULL,
            "the database's disk is full; what was acked is kept. When its operator has made"
            " room all goes on by itself: try again",
            retry_seconds=FULL_RETRY_SECONDS,
        )
    if isinstance(error, ReadOnly):
        said = (
            "the database takes no writes now: it is a standby, or another one is taking its"
            " place; nothing was written, try again"
        )
    elif isinstance(error, Busy):
        said = (
            "the database gave up waiting for a lock, or for the statement; nothing was written,"
            " try again"
        )
    else:
        said = "the database cannot be reached or did not answer in time; try again"
    return Unavailable(Reason.DATABASE_UNAVAILABLE, said)
