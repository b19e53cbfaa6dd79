"""What is wrong with a session, by the service's own check."""

from service.app.kinds import use_cases
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database


async def verified(url: str) -> list[LocatedDifference]:
    """Returns all that is found in the session `s` of a database."""
    database = Database.connect(url, pool_size=2, name="test")
    try:
        told = Verifier(database, use_cases()).verify(DEFAULT_TENANT, "s")
        return [one async for one in told if isinstance(one, LocatedDifference)]
    finally:
        await database.close()
