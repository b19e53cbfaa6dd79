"""Uses a service with client certificates and with tokens: each names tenant and scopes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import palimpsest
from service.app.foundation import CannotStart
from tests.acceptance.access.serving import serving
from tests.support.certificates import Authority
from tests.support.harness import Servers
from tests.support.issuer import AUDIENCE, issuing

AUTHORITY = Authority()


class Service:
    """A service with mutual TLS."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address

    @asynccontextmanager
    async def client(
        self, *uris: str, name: str = "alice", token: str | None = None
    ) -> AsyncIterator[palimpsest.Client]:
        certificate, key = AUTHORITY.issue(name, uris=uris).write(self._folder, "client")
        async with palimpsest.connect(
            f"grpcs://{self._address}",
            token=token,
            ca_file=self._folder / "root.pem",
            certificate_file=certificate,
            key_file=key,
        ) as client:
            yield client

    async def refusal(self, *uris: str, **options: Any) -> tuple[str, str]:
        async with self.client(*uris, **options) as client:
            with pytest.raises((palimpsest.Unauthenticated, palimpsest.PermissionDenied)) as error:
                await client.create_session("s", exist_ok=True)
        return error.value.reason, error.value.metadata.get("cause", "")


@asynccontextmanager
async def service(url: str, folder: Path, **settings: Any) -> AsyncIterator[Service]:
    certificate, key = AUTHORITY.issue("localhost").write(folder, "api")
    (folder / "root.pem").write_bytes(AUTHORITY.root.pem)
    given = {
        "authentication": "required",
        "tls_certificate_file": certificate,
        "tls_key_file": key,
        "tls_client_ca_file": folder / "root.pem",
        "key_cache_seconds": 0.001,
        **settings,
    }
    async with serving(url, **given) as address:
        yield Service(folder, address)


async def suspend(servers: Servers, url: str, *, is_suspended: bool) -> None:
    end = "now()" if is_suspended else "NULL"
    change = f"UPDATE tenant SET suspended_at = {end} WHERE name = 'default'"
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as connection:
        await connection.execute(change)


async def test_a_certificate_names_its_tenant_by_a_uri(
    servers: Servers, url: str, tmp_path: Path
) -> None:
    async with service(url, tmp_path) as served:
        async with served.client("palimpsest:default") as client:
            session = await client.create_session("s", exist_ok=True)
            assert (await session.info()).id == "s"
            with pytest.raises(palimpsest.PermissionDenied) as refused:
                await client.set_budget("day", limit_tokens=1)
            assert refused.value.reason == "SCOPE_MISSING"
        refusals: Sequence[tuple[tuple[str, ...], tuple[str, str]]] = (
            ((), ("CREDENTIALS_MISSING", "")),
            (("https://default",), ("CREDENTIALS_MISSING", "")),
            (("palimpsest:nobody",), ("CREDENTIALS_INVALID", "tenant")),
            (("palimpsest:system",), ("CREDENTIALS_INVALID", "tenant")),
            (("palimpsest:",), ("CREDENTIALS_INVALID", "tenant")),
            (("palimpsest:default", "palimpsest:other"), ("CREDENTIALS_INVALID", "tenant")),
        )
        for uris, expected in refusals:
            assert await served.refusal(*uris) == expected, uris
        # The common name alone names none.
        assert await served.refusal(name="default") == ("CREDENTIALS_MISSING", "")
        async with served.client("https://x", "palimpsest:d%65fault") as client:
            assert await client.session("s").info()
        await suspend(servers, url, is_suspended=True)
        assert (await served.refusal("palimpsest:default"))[0] == "TENANT_SUSPENDED"
        await suspend(servers, url, is_suspended=False)
        async with served.client("palimpsest:default") as client:
            assert await client.session("s").info()


async def test_scopes_of_certificates_are_a_setting(url: str, tmp_path: Path) -> None:
    async with service(url, tmp_path, mutual_tls_scopes="read") as served:
        assert (await served.refusal("palimpsest:default"))[0] == "SCOPE_MISSING"
        async with served.client("palimpsest:default") as client:
            assert [one.id async for one in client.sessions()] == []


async def test_a_token_counts_and_not_the_certificate_beside_it(url: str, tmp_path: Path) -> None:
    async with issuing() as issuer:
        tokens = {"jwt_issuer": issuer.url, "jwt_audience": AUDIENCE}
        async with service(url, tmp_path, **tokens) as served:
            async with served.client(token=issuer.token()) as client:
                assert await client.create_session("s", exist_ok=True)
            limited = issuer.token(scope="read")
            found = await served.refusal("palimpsest:default", token=limited)
            assert found == ("SCOPE_MISSING", "")
            wrong = await served.refusal("palimpsest:default", token=issuer.token(aud="other"))
            assert wrong == ("CREDENTIALS_INVALID", "audience")
            nonsense = await served.refusal("palimpsest:default", token="nonsense")
            assert nonsense == ("CREDENTIALS_INVALID", "malformed")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jwt_issuer": "https://issuer.example"}, "JWT_AUDIENCE is not: .* set the audience"),
        ({"jwt_audience": "x"}, "JWT_ISSUER is not set"),
        ({"jwt_jwks_url": "https://issuer.example/keys"}, "JWT_ISSUER is not set"),
    ],
)
async def test_a_server_does_not_start_with_half_of_an_issuer(
    url: str, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(CannotStart, match=said):
        async with serving(url, **settings):
            pass
