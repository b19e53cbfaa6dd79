"""Verifies tokens again whose signatures were verified before: what ends that, and when."""

import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, tzinfo
from typing import Any
from uuid import uuid4

import pytest

from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.values.reasons import Reason
from service.usecases.access import jwt_verifier
from service.usecases.access.issuer_keys import LEAST_SECONDS
from service.usecases.access.jwt_verifier import JwtVerifier
from service.usecases.access.tenants import Tenants
from storage.access.tenants import TenantChange
from storage.engine.database import Database
from tests.integration.access.test_jwt import INVALID, Verifying
from tests.support.issuer import Issuer, SigningKey, issuing


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as found:
        yield found


@pytest.fixture
def verifying(issuer: Issuer, database: Database) -> Verifying:
    return Verifying(issuer, database)


class Clock:
    """What the verifier and its library read as the time."""

    def __init__(self) -> None:
        #: Seconds.
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def now(self, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(seconds=self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(jwt_verifier, "time", made)
    monkeypatch.setattr("jwt.api_jwt.datetime", made)
    return made


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list of the tokens whose signatures are verified."""
    found: list[str] = []
    decoded = JwtVerifier._decoded

    def noted(self: JwtVerifier, token: str, key: Any) -> Any:
        found.append(token)
        return decoded(self, token, key)

    monkeypatch.setattr(JwtVerifier, "_decoded", noted)
    return found


async def test_a_signature_is_verified_once(
    issuer: Issuer, verifying: Verifying, signatures: list[str]
) -> None:
    tokens = [issuer.token(), issuer.token(sub="bob", scope="ask")]
    first = [await verifying.identity(token) for token in tokens]
    assert [await verifying.identity(token) for token in tokens] == first
    assert [one.principal for one in first] == ["jwt:alice", "jwt:bob"]
    assert signatures == tokens
    # A digest is all that is kept of a token.
    kept = repr(verifying.verifier._verified)
    assert not [part for token in tokens for part in token.split(".") if part in kept]


async def test_a_token_is_refused_once_it_has_expired(
    issuer: Issuer, verifying: Verifying, clock: Clock, signatures: list[str]
) -> None:
    token = issuer.token()
    leeway = verifying.config.jwt_leeway_seconds
    await verifying.identity(token)
    # Of the 300 seconds, and the leeway, some are left.
    clock.ahead = 290 + leeway
    await verifying.identity(token)
    assert signatures == [token]
    clock.ahead = 301 + leeway
    assert await verifying.refusal(token) == (Reason.CREDENTIALS_EXPIRED, "")


async def test_a_token_is_refused_by_a_clock_that_was_set_back(
    issuer: Issuer, verifying: Verifying, clock: Clock
) -> None:
    leeway = verifying.config.jwt_leeway_seconds
    times: list[dict[str, Any]] = [{}, {"iat": None, "nbf": int(time.time())}]
    for claims in times:
        clock.ahead = 0.0
        token = issuer.token(**claims)
        await verifying.identity(token)
        clock.ahead = -10 - leeway
        assert await verifying.refusal(token) == (INVALID, "not_yet_valid")


async def test_times_beyond_all_calendars_are_compared(
    issuer: Issuer, verifying: Verifying, signatures: list[str]
) -> None:
    token = issuer.token(exp=10**400, nbf=-(10**400), iat=None)
    for _ in range(2):
        await verifying.identity(token)
    assert signatures == [token]


async def test_a_token_is_refused_once_its_key_is_withdrawn_or_replaced(
    issuer: Issuer, verifying: Verifying
) -> None:
    issuer.keys.append(SigningKey(key_id="second"))
    tokens = [issuer.token(key) for key in issuer.keys]
    for token in tokens:
        await verifying.identity(token)
    # Another key of the same id, and none.
    issuer.keys = [SigningKey(key_id="first")]
    verifying.now += LEAST_SECONDS
    await verifying.refusal(issuer.token(SigningKey(key_id="unknown")))
    for token in tokens:
        assert await verifying.refusal(token) == (INVALID, "signature")


async def test_a_token_of_a_suspended_or_deleted_tenant_is_refused(
    issuer: Issuer, database: Database, signatures: list[str]
) -> None:
    name = f"t{uuid4().hex}"
    tenants = Tenants(database)
    verifying = Verifying(issuer, database)
    token = issuer.token(tenant=name)
    with acting_as(LOCAL_IDENTITY):
        made = await tenants.create(name, display_name="", is_suspended=False)
        assert (await verifying.identity(token)).tenant_id == made.tenant_id
        await tenants.update(name, TenantChange(is_suspended=True))
    verifying.directory.forget()
    assert (await verifying.refusal(token))[0] is Reason.TENANT_SUSPENDED
    assert signatures == [token]


async def test_a_bounded_number_is_remembered(
    issuer: Issuer,
    verifying: Verifying,
    signatures: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwt_verifier, "MAX_VERIFIED", 3)
    used, *others = [issuer.token(sub=f"subject-{number}") for number in range(8)]
    for other in others:
        await verifying.identity(used)
        await verifying.identity(other)
    # The one that was used again and again stays.
    assert signatures == [used, *others]
    assert len(verifying.verifier._verified) == 3
    await verifying.identity(others[0])
    assert signatures == [used, *others, others[0]]


async def test_refusals_are_not_remembered(
    issuer: Issuer, verifying: Verifying, signatures: list[str]
) -> None:
    forged = issuer.token(SigningKey(key_id="first"))
    for _ in range(2):
        assert await verifying.refusal(forged) == (INVALID, "signature")
    assert signatures == [forged, forged]
    assert not verifying.verifier._verified
