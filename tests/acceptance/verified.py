"""What is wrong with a session, by the service's own check."""

from service.domain.tenancy import DEFAULT_TENANT
from service.usecases.verify import Found, Verifier
from storage.database import Database


async def verified(url: str) -> list[Found]:
    """All that is found in the session `s` of a database."""
    database = Database.connect(url, pool_size=2, name="test")
    try:
        told = Verifier(database).verify(DEFAULT_TENANT, "s")
        return [one async for one in told if isinstance(one, Found)]
    finally:
        await database.close()
