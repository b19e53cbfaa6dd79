"""Model calls without a worker, as evaluations make them."""

from pydantic import SecretStr

from service.app.gateways import open_model_access
from service.settings.config import Config


async def test_model_access_has_what_it_takes_to_call_models(url: str) -> None:
    async with open_model_access(Config(database_url=SecretStr(url))) as access:
        assert len(access.marker_key) > 0
