"""Verifies tokens of a real issuer by HTTP and HTTPS, which rotates keys, lies, and goes away."""

import asyncio
import base64
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from service.domain.access.credentials import Credentials
from service.domain.access.identity import Identity, Scope
from service.domain.values.errors import PalimpsestError, Unauthenticated, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Config
from service.usecases.access import issuer_keys
from service.usecases.access.issuer_keys import KEPT_SECONDS, LEAST_SECONDS, REFRESH_SECONDS
from service.usecases.access.jwt_verifier import JwtVerifier
from service.usecases.access.tenant_directory import TenantDirectory
from storage.engine.database import Database
from tests.support.certificates import Authority
from tests.support.issuer import AUDIENCE, Issuer, SigningKey, issuing


class Verifying:
    """A verifier, and the time that it sees."""

    def __init__(self, issuer: Issuer, database: Database, **settings: Any) -> None:
        given = {"jwt_issuer": issuer.url, "jwt_audience": AUDIENCE, **settings}
        self.config = Config.model_validate(given)
        self.now = 0.0
        self.keys = issuer_keys.IssuerKeys(self.config, clock=lambda: self.now)
        self.directory = TenantDirectory(database, seconds=10)
        self.verifier = JwtVerifier(self.config, self.keys, self.directory)

    async def identity(self, token: str) -> Identity:
        found = await self.verifier.verify(Credentials(token=token))
        assert found is not None
        return found

    async def refusal(self, token: str) -> tuple[Reason, str]:
        """Returns reason and cause; checks that nothing of the token is in the error."""
        with pytest.raises(PalimpsestError) as refused:
            await self.verifier.verify(Credentials(token=token))
        shown = f"{refused.value.message} {refused.value.metadata}"
        assert not [part for part in token.split(".") if len(part) > 8 and part in shown]
        return refused.value.reason, refused.value.metadata.get("cause", "")


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as found:
        yield found


@pytest.fixture
def verifying(issuer: Issuer, database: Database) -> Verifying:
    return Verifying(issuer, database)


INVALID = Reason.CREDENTIALS_INVALID


async def test_a_valid_token_says_tenant_subject_and_scopes(
    issuer: Issuer, verifying: Verifying
) -> None:
    assert await verifying.identity(issuer.token()) == Identity(
        tenant_id=DEFAULT_TENANT,
        principal="jwt:alice",
        scopes=frozenset({Scope.READ, Scope.APPEND}),
    )
    for claims, scopes in (
        ({"scope": None}, set()),
        ({"scope": None, "scp": ["edit", 5, "admin"]}, {Scope.EDIT, Scope.ADMIN}),
        ({"scope": None, "scp": "ask  read"}, {Scope.ASK, Scope.READ}),
        ({"scope": "READ readx", "scp": {"read": 1}}, set()),
    ):
        assert (await verifying.identity(issuer.token(**claims))).scopes == scopes
    # Discovery and keys, once.
    assert len(issuer.requests) == 2
    assert await verifying.verifier.verify(Credentials(token="pk_a_b")) is None


async def test_scopes_with_a_prefix_and_another_claim(issuer: Issuer, database: Database) -> None:
    other = Verifying(issuer, database, jwt_scope_prefix="memory:", jwt_tenant_claim="https://x/t")
    named: dict[str, Any] = {"https://x/t": "default"}
    token = issuer.token(tenant=None, scope="memory:ask read", **named)
    assert (await other.identity(token)).scopes == {Scope.ASK}


@pytest.mark.parametrize(
    ("claims", "reason", "cause"),
    [
        ({"iss": "https://other.example"}, INVALID, "issuer"),
        ({"iss": None}, INVALID, "malformed"),
        ({"iss": ["x"]}, INVALID, "issuer"),
        ({"aud": "another"}, INVALID, "audience"),
        ({"aud": None}, INVALID, "malformed"),
        ({"aud": [AUDIENCE + "x", "y"]}, INVALID, "audience"),
        ({"exp": int(time.time()) - 31}, Reason.CREDENTIALS_EXPIRED, ""),
        ({"exp": None}, INVALID, "malformed"),
        ({"exp": "soon"}, INVALID, "malformed"),
        ({"exp": float("inf")}, INVALID, "malformed"),
        ({"exp": -(10**30)}, INVALID, "malformed"),
        ({"exp": 1e300, "nbf": 1e300}, INVALID, "not_yet_valid"),
        ({"nbf": int(time.time()) + 600}, INVALID, "not_yet_valid"),
        ({"iat": int(time.time()) + 600}, INVALID, "not_yet_valid"),
        ({"sub": None}, INVALID, "malformed"),
        ({"tenant": None}, INVALID, "tenant"),
        ({"tenant": ["default"]}, INVALID, "tenant"),
        ({"tenant": "no-such"}, INVALID, "tenant"),
        ({"tenant": "system"}, INVALID, "tenant"),
        ({"tenant": "x" * 1000}, INVALID, "tenant"),
        ({"tenant": "a\x00b"}, INVALID, "tenant"),
    ],
)
async def test_tokens_that_are_not_for_this_service_are_refused(
    issuer: Issuer, verifying: Verifying, claims: dict[str, Any], reason: Reason, cause: str
) -> None:
    assert await verifying.refusal(issuer.token(**claims)) == (reason, cause)


async def test_clocks_may_differ_by_the_leeway(issuer: Issuer, database: Database) -> None:
    now = int(time.time())
    token = issuer.token(exp=now - 100, nbf=now + 100, iat=now + 100)
    assert await Verifying(issuer, database, jwt_leeway_seconds=200).identity(token)


def unsigned(issuer: Issuer) -> str:
    return jwt.encode(issuer.claims(), "", "none", {"kid": "first"})


def hmac_with_the_public_key(issuer: Issuer) -> str:
    public = issuer.keys[0].private.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    head = part(json.dumps({"alg": "HS256", "kid": "first"}).encode())
    body = part(json.dumps(issuer.claims()).encode())
    # The library refuses to sign so.
    return f"{head}.{body}.{part(hmac.digest(pem, f'{head}.{body}'.encode(), 'sha256'))}"


def with_another_key(issuer: Issuer) -> str:
    return issuer.token(SigningKey(key_id="first"))


def of_an_unknown_key(issuer: Issuer) -> str:
    return issuer.token(SigningKey(key_id="unknown"))


def with_an_embedded_key(issuer: Issuer) -> str:
    own = SigningKey(key_id="own")
    headers = {"jwk": own.jwk, "jku": "https://evil.example/keys", "x5u": "https://evil.example"}
    return jwt.encode(issuer.claims(), own.private, "ES256", headers)


def of_another_algorithm(issuer: Issuer) -> str:
    return issuer.token(SigningKey(key_id="first", algorithm="PS256"))


def of_a_fitting_algorithm_and_another_type(issuer: Issuer) -> str:
    return issuer.token(SigningKey(key_id="first", algorithm="RS256"))


def with_a_changed_claim(issuer: Issuer) -> str:
    head, body, signature = issuer.token().split(".")
    changed = base64.urlsafe_b64decode(body + "==").replace(b"alice", b"admin")
    return f"{head}.{base64.urlsafe_b64encode(changed).rstrip(b'=').decode()}.{signature}"


def critical(issuer: Issuer) -> str:
    headers = {"kid": "first", "crit": ["b64"], "b64": False}
    return jwt.encode(issuer.claims(), issuer.keys[0].private, "ES256", headers)


@pytest.mark.parametrize(
    ("forged", "cause"),
    [
        (unsigned, "signature"),
        (hmac_with_the_public_key, "signature"),
        (with_another_key, "signature"),
        (of_an_unknown_key, "signature"),
        (with_an_embedded_key, "signature"),
        (of_another_algorithm, "signature"),
        (of_a_fitting_algorithm_and_another_type, "signature"),
        (with_a_changed_claim, "signature"),
        (critical, "malformed"),
        (lambda _: "a.b.c", "malformed"),
        (lambda _: "..", "malformed"),
        (lambda _: "eyJhbGciOiJFUzI1NiJ9.e30.", "signature"),
        (lambda issuer: issuer.token()[:-2], "signature"),
    ],
)
async def test_forged_tokens_are_refused(
    issuer: Issuer, verifying: Verifying, forged: Callable[[Issuer], str], cause: str
) -> None:
    # As little as an issuer that names no algorithm of its key.
    jwk = {name: value for name, value in issuer.keys[0].jwk.items() if name != "alg"}
    issuer.replies["/keys"] = 200, json.dumps({"keys": [jwk]}).encode()
    assert await verifying.identity(issuer.token())
    assert await verifying.refusal(forged(issuer)) == (INVALID, cause)
    assert {*issuer.requests} == {"/.well-known/openid-configuration", "/keys"}


async def test_a_key_without_an_id_is_used_if_it_is_the_only_one(
    issuer: Issuer, verifying: Verifying
) -> None:
    issuer.keys = [SigningKey(key_id="")]
    assert await verifying.identity(issuer.token())
    issuer.keys.append(SigningKey(key_id="second"))
    verifying.now += KEPT_SECONDS + 1
    assert (await verifying.refusal(issuer.token()))[0] is INVALID


@pytest.mark.parametrize("algorithm", ["RS512", "PS256"])
async def test_a_key_serves_all_algorithms_of_its_type_that_are_accepted(
    issuer: Issuer, database: Database, algorithm: str
) -> None:
    key = issuer.keys[0] = SigningKey(key_id="rsa", algorithm=algorithm)
    jwk = {name: value for name, value in key.jwk.items() if name not in ("alg", "use")}
    issuer.replies["/keys"] = 200, json.dumps({"keys": [jwk]}).encode()
    accepting = Verifying(issuer, database, jwt_algorithms=f"{algorithm}, ES256")
    assert await accepting.identity(issuer.token())
    assert await Verifying(issuer, database).refusal(issuer.token()) == (INVALID, "signature")


async def test_a_rotated_key_is_found_and_invented_ones_cost_few_requests(
    issuer: Issuer, verifying: Verifying
) -> None:
    assert await verifying.identity(issuer.token())
    before = len(issuer.requests)
    issuer.keys.append(SigningKey(key_id="second"))
    second = issuer.token(issuer.keys[1])
    verifying.now += LEAST_SECONDS
    assert await verifying.identity(second)
    assert len(issuer.requests) == before + 2
    invented = [issuer.token(SigningKey(key_id=f"invented-{n}")) for n in range(20)]
    refused = await asyncio.gather(*map(verifying.refusal, invented))
    assert {*refused} == {(INVALID, "signature")}
    assert len(issuer.requests) == before + 2
    verifying.now += LEAST_SECONDS
    await asyncio.gather(*map(verifying.refusal, invented))
    assert len(issuer.requests) == before + 4
    # A withdrawn key is no longer accepted once the keys have been read again.
    del issuer.keys[0]
    verifying.now += LEAST_SECONDS
    await verifying.refusal(invented[0])
    assert (await verifying.refusal(issuer.token(SigningKey(key_id="first"))))[0] is INVALID


async def test_keys_stay_in_use_while_the_issuer_is_away(
    issuer: Issuer, verifying: Verifying
) -> None:
    assert await verifying.identity(issuer.token())
    issuer.replies["/keys"] = 503, b""
    verifying.now += REFRESH_SECONDS + 1
    before = len(issuer.requests)
    assert await verifying.identity(issuer.token())
    async with asyncio.timeout(100):
        while len(issuer.requests) < before + 2:
            await asyncio.sleep(0.01)
    assert await verifying.identity(issuer.token())
    verifying.now += KEPT_SECONDS
    reason, _ = await verifying.refusal(issuer.token())
    assert reason is Reason.ISSUER_UNAVAILABLE
    del issuer.replies["/keys"]
    verifying.now += LEAST_SECONDS
    assert await verifying.identity(issuer.token())


async def test_a_slow_issuer_delays_only_those_that_need_it(
    issuer: Issuer, verifying: Verifying
) -> None:
    assert await verifying.identity(issuer.token())
    issuer.open.clear()
    verifying.now += LEAST_SECONDS
    waiting = asyncio.create_task(verifying.refusal(issuer.token(SigningKey(key_id="new"))))
    for _ in range(100):
        assert await verifying.identity(issuer.token())
    assert not waiting.done()
    issuer.open.set()
    assert await waiting == (INVALID, "signature")


BAD_DOCUMENTS: dict[str, tuple[int, bytes]] = {
    "an error": (500, b"{}"),
    "a redirect": (302, b""),
    "no JSON": (200, b"<html>"),
    "no object": (200, b"[]"),
    "deep": (200, b"[" * 100_000),
    "too large": (200, b'{"keys": [' + b'"x", ' * 60_000 + b'"x"]}'),
    "too many keys": (200, json.dumps({"keys": [{}] * 101}).encode()),
    "no keys": (200, b'{"keys": []}'),
    "keys of other types": (200, b'{"keys": [1, {"kty": "oct", "k": "AAAA"}, {"kty": ["RSA"]}]}'),
    "no numbers": (200, b'{"keys": [{"kty": "RSA", "n": "!", "e": 3}, {"kty": "EC"}]}'),
}


@pytest.mark.parametrize("document", BAD_DOCUMENTS)
async def test_unusable_documents_of_the_issuer_are_no_keys(
    issuer: Issuer, verifying: Verifying, document: str
) -> None:
    issuer.replies["/keys"] = BAD_DOCUMENTS[document]
    assert await verifying.refusal(issuer.token()) == (Reason.ISSUER_UNAVAILABLE, "")
    del issuer.replies["/keys"]
    verifying.now += LEAST_SECONDS
    assert await verifying.identity(issuer.token())


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_weak_keys_and_keys_for_encryption_are_not_used(
    issuer: Issuer, verifying: Verifying
) -> None:
    weak = SigningKey(
        key_id="weak", algorithm="RS256", private=rsa.generate_private_key(65537, 1024)
    )
    encrypting = SigningKey(key_id="encrypting")
    jwks = [weak.jwk, {**encrypting.jwk, "use": "enc"}, issuer.keys[0].jwk]
    issuer.replies["/keys"] = 200, json.dumps({"keys": jwks}).encode()
    assert await verifying.identity(issuer.token())
    for key in (weak, encrypting):
        assert await verifying.refusal(issuer.token(key)) == (INVALID, "signature")


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example", "jwks_uri": "{url}/keys"},
        {"jwks_uri": "{url}/keys"},
        {"issuer": "{url}"},
        {"issuer": "{url}", "jwks_uri": "file:///etc/passwd"},
        {"issuer": "{url}", "jwks_uri": ["{url}/keys"]},
    ],
)
async def test_a_discovery_document_must_be_the_issuers(
    issuer: Issuer, verifying: Verifying, document: dict[str, Any]
) -> None:
    content = json.dumps(document).replace("{url}", issuer.url).encode()
    issuer.replies["/.well-known/openid-configuration"] = 200, content
    assert (await verifying.refusal(issuer.token()))[0] is Reason.ISSUER_UNAVAILABLE
    assert "/keys" not in issuer.requests


async def test_https_with_roots_of_its_own(database: Database, tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.issue("issuer").write(tmp_path, "issuer")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    root = tmp_path / "root.pem"
    root.write_bytes(authority.root.pem)
    async with issuing(context) as issuer:
        assert await Verifying(issuer, database, jwt_ca_file=root).identity(issuer.token())
        named = Verifying(issuer, database, jwt_ca_file=root, jwt_jwks_url=f"{issuer.url}/keys")
        before = len(issuer.requests)
        assert await named.identity(issuer.token())
        assert issuer.requests[before:] == ["/keys"]
        # A stranger's certificate, or roots that cannot be read.
        untrusting = Verifying(issuer, database)
        assert (await untrusting.refusal(issuer.token()))[0] is Reason.ISSUER_UNAVAILABLE
        missing = Verifying(issuer, database, jwt_ca_file=tmp_path / "none")
        with pytest.raises(Unavailable):
            await missing.identity(issuer.token())


async def test_an_issuer_that_is_down_is_unavailable_and_not_a_refusal(database: Database) -> None:
    async with issuing() as issuer:
        token = issuer.token()
    verifying = Verifying(issuer, database)
    with pytest.raises(Unavailable) as failed:
        await verifying.identity(token)
    assert failed.value.reason is Reason.ISSUER_UNAVAILABLE
    assert not isinstance(failed.value, Unauthenticated)
