"""What a caller is told of a database that cannot do what it was asked."""

from service.domain.errors import FailedPrecondition, PalimpsestError, Unavailable
from service.domain.reasons import Reason
from storage.errors import Busy, NotSupported, StorageError


def unavailable(error: StorageError) -> PalimpsestError:
    """Returns the refusal that fits; trying again is right with all but NotSupported."""
    if isinstance(error, NotSupported):
        return FailedPrecondition(Reason.DATABASE_NOT_SUPPORTED, str(error), {"cause": str(error)})
    if isinstance(error, Busy):
        said = (
            "the database gave up waiting for a lock, or for the statement; nothing was written,"
            " try again"
        )
    else:
        said = "the database cannot be reached or did not answer in time; try again"
    return Unavailable(Reason.DATABASE_UNAVAILABLE, said)
