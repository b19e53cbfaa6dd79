"""Verifies JSON Web Tokens of an OIDC issuer."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt

from service.domain.access.audit import timestamp
from service.domain.access.credentials import Credentials
from service.domain.access.identity import Identity, Scope
from service.domain.values.errors import Unauthenticated
from service.domain.values.reasons import Reason
from service.settings.config import Config
from service.usecases.access.issuer_keys import IssuerKeys
from service.usecases.access.tenant_directory import TenantDirectory

#: Characters of the id of a key, and of a principal.
MAX_KEY_ID = 200
MAX_PRINCIPAL = 256
#: Verified tokens that are remembered; those that were used least recently are forgotten first.
MAX_VERIFIED = 10_000

_REQUIRED = ["exp", "iss", "aud", "sub"]
#: What the library calls what is wrong with a token.
_CAUSES: Mapping[type[Exception], tuple[str, str]] = {
    jwt.InvalidIssuerError: ("issuer", "it is of another issuer"),
    jwt.InvalidAudienceError: ("audience", "it is for another audience"),
    jwt.ImmatureSignatureError: ("not_yet_valid", "it is not valid yet"),
    jwt.InvalidAlgorithmError: ("signature", "its algorithm is not accepted"),
    jwt.InvalidSignatureError: ("signature", "its signature is not valid"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verified:
    """What a token says whose signature is valid."""

    key_id: str
    #: What the signature was verified with.
    key: jwt.PyJWK
    #: From when and until when the token is valid, in seconds since 1970; clocks may differ.
    begins: int
    ends: int
    tenant: str
    principal: str
    scopes: frozenset[Scope]


class JwtVerifier:
    """Verifies the tokens of one issuer, whose claims say tenant and scopes.

    A signature is verified once, while the issuer's key stays the same. All else is checked with
    each call: the key, the times, and the tenant.
    """

    def __init__(self, config: Config, keys: IssuerKeys, tenants: TenantDirectory) -> None:
        self._config = config
        self._keys = keys
        self._tenants = tenants
        #: By the digest of a token: the token itself is not kept.
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    async def verify(self, credentials: Credentials) -> Identity | None:
        """Returns the identity of a token; None for credentials of another kind.

        Raises Unauthenticated, PermissionDenied (suspended), Exhausted, Unavailable, StorageError.
        """
        token = credentials.token
        if token.count(".") != 2:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        found = await self._known(digest)
        if found is None:
            found = await self._read(token)
            self._verified[digest] = found
            if len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
        return await self._tenants.identity(
            found.tenant, principal=found.principal, scopes=found.scopes
        )

    async def _known(self, digest: bytes) -> _Verified | None:
        """Returns what was verified before, if that would result in the same now."""
        found = self._verified.get(digest)
        if found is None:
            return None
        key = await self._keys.find(found.key_id, found.key.algorithm_name)
        now, leeway = time.time(), self._config.jwt_leeway_seconds
        if key is found.key and found.begins <= now + leeway and now - leeway < found.ends:
            self._verified.move_to_end(digest)
            return found
        # What is wrong with it, if anything, is found anew.
        self._verified.pop(digest, None)
        return None

    async def _read(self, token: str) -> _Verified:
        """Returns what a token says that is valid now."""
        try:
            header = jwt.get_unverified_header(token)
        except Exception:
            # The library promises one kind of error, and hostile texts are many.
            raise _invalid("malformed", "its header is none") from None
        key_id, algorithm = header.get("kid", ""), header.get("alg")
        if not isinstance(key_id, str) or len(key_id) > MAX_KEY_ID or "crit" in header:
            raise _invalid("malformed", "its header has what is not accepted")
        if algorithm not in self._config.jwt_algorithms:
            raise _invalid("signature", "its algorithm is not accepted")
        key = await self._keys.find(key_id, algorithm)
        if key is None:
            raise _invalid("signature", "the issuer publishes no such key for its algorithm")
        try:
            claims = self._decoded(token, key)
        except jwt.ExpiredSignatureError:
            raise _expired(token) from None
        except jwt.MissingRequiredClaimError as error:
            raise _invalid("malformed", f"it has no claim {error.claim!r}") from None
        except Exception as error:
            # As above. Anything else than valid claims is a refusal.
            known = ("malformed", "it cannot be read")
            raise _invalid(*_CAUSES.get(type(error), known)) from None
        return self._said(claims, key_id, key)

    def _decoded(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        config = self._config
        return jwt.decode(
            token,
            # It is bound to one algorithm, whatever the token says.
            key,
            algorithms=[key.algorithm_name],
            audience=config.jwt_audience,
            issuer=config.jwt_issuer,
            leeway=config.jwt_leeway_seconds,
            options={"require": _REQUIRED},
        )

    def _said(self, claims: Mapping[str, Any], key_id: str, key: jwt.PyJWK) -> _Verified:
        """Returns what valid claims say. Raises Unauthenticated."""
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject.isprintable():
            raise _invalid("malformed", "its subject is no printable text")
        tenant = claims.get(self._config.jwt_tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            said = f"its claim {self._config.jwt_tenant_claim!r} names no tenant"
            raise _invalid("tenant", said)
        return _Verified(
            key_id=key_id,
            key=key,
            # The library has read them so too.
            begins=max(int(claims.get("iat", 0)), int(claims.get("nbf", 0))),
            ends=int(claims["exp"]),
            tenant=tenant,
            principal=f"jwt:{subject}"[:MAX_PRINCIPAL],
            scopes=scopes_of(claims, self._config.jwt_scope_prefix),
        )


def scopes_of(claims: Mapping[str, Any], prefix: str) -> frozenset[Scope]:
    """Returns the scopes that claims grant: `scope` and `scp` are texts or lists."""
    named: set[object] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        if isinstance(value, str):
            named.update(value.split())
        elif isinstance(value, list):
            named.update(one for one in value if isinstance(one, str))
    return frozenset(one for one in Scope if f"{prefix}{one}" in named)


def _invalid(cause: str, said: str) -> Unauthenticated:
    return Unauthenticated(
        Reason.CREDENTIALS_INVALID,
        f"the token is not accepted, since {said}: get another one from the issuer",
        {"cause": cause},
    )


def _expired(token: str) -> Unauthenticated:
    """Returns the error of a token whose signature is valid, and which has expired."""
    claims = jwt.decode(token, options={"verify_signature": False})
    try:
        expired_at = timestamp(datetime.fromtimestamp(int(claims["exp"]), UTC))
    except (OverflowError, ValueError, OSError):
        return _invalid("malformed", "its `exp` is no time")
    return Unauthenticated(
        Reason.CREDENTIALS_EXPIRED,
        f"the token expired at {expired_at}: get another one from the issuer",
        {"expired_at": expired_at},
    )
