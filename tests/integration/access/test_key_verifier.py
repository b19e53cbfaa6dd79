"""Keys are verified from memory, and their use is stored now and then."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import uuid4

import psycopg
import pytest

from service.domain.access.credentials import Credentials, parsed_key
from service.domain.access.identity import Identity, Scope
from service.domain.access.keys import NewKey
from service.domain.values.errors import Unauthenticated
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.access.bootstrap import create_key
from service.usecases.access.key_verifier import KeyVerifier
from storage.access.keys import VerifiableKey
from storage.engine.database import Database
from tests.support.harness import Servers


class Counting(KeyVerifier):
    """Counts the queries."""

    queries = 0

    async def _load(self, ids: Sequence[str]) -> Mapping[str, VerifiableKey]:
        self.queries += 1
        return await super()._load(ids)


async def key(database: Database, tenant: str = "default") -> str:
    new = NewKey(
        display_name="app",
        scopes=frozenset({Scope.READ}),
        session_prefix="u",
        expires_at=None,
    )
    _, (_, text) = await create_key(database, tenant, new, max_keys=10)
    return text.text


async def verified(verifier: KeyVerifier, token: str) -> Identity | None:
    return await verifier.verify(Credentials(token=token))


def used_at(servers: Servers, url: str) -> list[datetime | None]:
    with psycopg.connect(servers.as_superuser(url)) as admin:
        rows = admin.execute("SELECT last_used_at FROM api_key ORDER BY created_at").fetchall()
    return [at for (at,) in rows]


async def test_calls_with_a_known_key_need_no_database(database: Database) -> None:
    token, other = await key(database), await key(database)
    verifier = Counting(database, seconds=60)
    for _ in range(5):
        assert await verified(verifier, token) == Identity(
            tenant_id=DEFAULT_TENANT,
            principal=f"key:{token[3:19]}",
            scopes=frozenset({Scope.READ}),
            session_prefix="u",
        )
    assert verifier.queries == 1
    # A wrong secret under a known id neither: it is compared with the stored hash.
    found = parsed_key(other)
    assert found is not None
    made_up = type(found).made_of(bytes(10), bytes(32)).text
    for _ in range(5):
        with pytest.raises(Unauthenticated) as refused:
            await verified(verifier, made_up)
        assert refused.value.metadata == {"cause": "unknown"}
    assert verifier.queries == 2
    assert await verified(verifier, "eyJ.eyJ.x") is None


async def test_the_secret_of_another_key_does_not_fit(database: Database) -> None:
    from service.domain.access import credentials

    token, other = await key(database), await key(database)
    begins = f"{token[:20]}{other[20:63]}"
    forged = begins + credentials._check(begins)
    assert parsed_key(forged) is not None
    with pytest.raises(Unauthenticated) as refused:
        await verified(KeyVerifier(database, seconds=60), forged)
    unknown = forged[:3] + "a" * 16 + forged[19:63]
    with pytest.raises(Unauthenticated) as never:
        await verified(KeyVerifier(database, seconds=60), unknown + credentials._check(unknown))
    assert str(refused.value) == str(never.value)
    assert refused.value.metadata == never.value.metadata


async def test_the_last_use_is_stored_at_most_once_a_minute(
    database: Database, servers: Servers, url: str
) -> None:
    other = uuid4()
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (other,))
    tokens = [await key(database), await key(database, "other"), await key(database)]
    one, two = KeyVerifier(database, seconds=60), KeyVerifier(database, seconds=60)
    for token in tokens[:2]:
        await verified(one, token)
    assert used_at(servers, url) == [None] * 3
    await one.note_used()
    first = used_at(servers, url)
    assert first[0] is not None
    assert first[1] is not None
    assert first[2] is None
    for token in tokens:
        await verified(two, token)
    await two.note_used()
    second = used_at(servers, url)
    assert second[:2] == first[:2]
    assert second[2] is not None
    await one.note_used()


async def test_no_secret_is_in_the_database(database: Database, servers: Servers, url: str) -> None:
    token = await key(database)
    with psycopg.connect(servers.as_superuser(url)) as admin:
        for table in ("api_key", "audit_event", "request"):
            rows = admin.execute(f"SELECT t::text FROM {table} t").fetchall()
            assert rows or table == "request"
            for (row,) in rows:
                assert token[20:63] not in row
                assert token[20:63].encode().hex() not in row
