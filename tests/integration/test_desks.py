"""Model calls that are no worker's: what evaluations open for themselves."""

from pydantic import SecretStr

from service.app.desks import asking
from service.config import Config


async def test_a_desk_has_what_it_takes_to_ask(url: str) -> None:
    async with asking(Config(database_url=SecretStr(url))) as desk:
        assert len(desk.marker_key) > 0
