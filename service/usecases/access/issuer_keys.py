"""Reads the public keys of an issuer of JSON Web Tokens, and keeps them."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from service.domain.values.errors import Unavailable
from service.domain.values.reasons import Reason
from service.settings.config import Config
from service.settings.issuers import discovery_url

_log = structlog.get_logger("palimpsest.access")

#: After this long keys are read again, while they stay in use.
REFRESH_SECONDS = 600.0
#: The least time between two requests to the issuer, whatever key ids clients send.
LEAST_SECONDS = 5.0
#: How long keys stay in use while the issuer cannot be reached: it may have withdrawn one.
KEPT_SECONDS = 86_400.0
#: How long the issuer may take to answer a request.
ANSWER_SECONDS = 5.0
#: Bytes of a document of the issuer, and its keys, at most.
MAX_BYTES = 256 * 1024
MAX_KEYS = 100
#: Bits of an RSA key, at least.
MIN_RSA_BITS = 2048


#: By the type of a key, what the names of its algorithms begin with.
_FAMILIES = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_PUBLIC = (RSAPublicKey, EllipticCurvePublicKey, Ed25519PublicKey)

#: Keys by their ids and algorithms.
_Keys = Mapping[tuple[str, str], jwt.PyJWK]


class UnusableIssuer(Exception):
    """The issuer's keys cannot be read; the message is one clear line."""


class IssuerKeys:
    """The keys that the issuer publishes (JWKS), by their ids.

    They are read when the first token arrives, again when one names an unknown key, and at times
    beside. All calls wait for the same request.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.jwt_issuer is not None, "tokens are accepted"
        self._issuer = config.jwt_issuer
        self._url = config.jwt_jwks_url
        self._ca_file = config.jwt_ca_file
        self._algorithms = config.jwt_algorithms
        self._clock = clock
        self._keys: _Keys = {}
        #: When the keys were read, and when that was tried.
        self._read_at = self._tried_at = float("-inf")
        self._failure = ""
        self._refreshing: asyncio.Task[None] | None = None

    async def find(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        """Returns a key for an algorithm by its id; "": the only one.

        None where the issuer has no such key. Raises Unavailable when it cannot be asked.
        """
        found = self._known(key_id, algorithm)
        if found is not None:
            if self._clock() - self._read_at > REFRESH_SECONDS:
                self._refresh()
            return found
        refreshing = self._refresh()
        if refreshing is not None:
            # Other calls wait for it too.
            await asyncio.shield(refreshing)
            found = self._known(key_id, algorithm)
        if found is None and self._failure:
            raise Unavailable(
                Reason.ISSUER_UNAVAILABLE,
                "the issuer of tokens cannot be asked for the key of this one: call again",
                retry_seconds=LEAST_SECONDS,
            )
        return found

    def _known(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        if self._clock() - self._read_at > KEPT_SECONDS:
            return None
        if key_id:
            return self._keys.get((key_id, algorithm))
        fitting = [key for (_, other), key in self._keys.items() if other == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def _refresh(self) -> "asyncio.Task[None] | None":
        """Returns the request that is in progress, or begins one; None so soon after the last."""
        if self._refreshing is None and self._clock() - self._tried_at >= LEAST_SECONDS:
            self._tried_at = self._clock()
            self._refreshing = asyncio.create_task(self._read())
        return self._refreshing

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                self._keys = _usable(await self._documents(), self._algorithms)
            self._read_at, self._failure = self._clock(), ""
        except (UnusableIssuer, TimeoutError) as error:
            self._failure = str(error) or "it takes too long to answer"
            _log.warning("cannot read the keys of the issuer", cause=self._failure)
        finally:
            self._refreshing = None

    async def _documents(self) -> Mapping[str, Any]:
        """Returns the issuer's keys as it publishes them."""
        # The system's roots take some 20 ms to load.
        verify = await asyncio.to_thread(_trusted, self._ca_file)
        timeout = httpx.Timeout(ANSWER_SECONDS)
        async with httpx.AsyncClient(verify=verify, timeout=timeout) as client:
            url = self._url
            if url is None:
                found = await _json(client, discovery_url(self._issuer))
                url = self._discovered(found)
            return await _json(client, url)

    def _discovered(self, document: Mapping[str, Any]) -> str:
        issuer, url = document.get("issuer"), document.get("jwks_uri")
        if issuer != self._issuer:
            raise UnusableIssuer("its discovery document is of another issuer")
        # A key that was received in the clear could be anyone's.
        begins = self._issuer.partition("://")[0]
        if not isinstance(url, str) or not url.startswith(("https://", f"{begins}://")):
            raise UnusableIssuer("its discovery document names no https:// URL of its keys")
        return url


def _trusted(ca_file: Any) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        said = f"cannot read PALIMPSEST_JWT_CA_FILE ({ca_file}): {error.strerror or error}"
        raise UnusableIssuer(said) from None


async def _json(client: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
    """Returns the object at a URL. Raises UnusableIssuer."""
    content = bytearray()
    try:
        async with client.stream("GET", url, headers={"accept": "application/json"}) as response:
            if response.status_code != httpx.codes.OK:
                raise UnusableIssuer(f"{url} answers {response.status_code}")
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_BYTES:
                    raise UnusableIssuer(f"{url} has more than {MAX_BYTES // 1024} KiB")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnusableIssuer(f"cannot reach {url}: {type(error).__name__}") from None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise UnusableIssuer(f"{url} has no JSON") from None
    if not isinstance(found, dict):
        raise UnusableIssuer(f"{url} has no JSON object")
    return found


def _usable(document: Mapping[str, Any], algorithms: Sequence[str]) -> _Keys:
    """Returns those of a document's keys that may sign tokens. Raises UnusableIssuer."""
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise UnusableIssuer(f"it publishes no list of at most {MAX_KEYS} keys")
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for one in listed:
        # A symmetric key would be public here.
        if not isinstance(one, dict) or str(one.get("kty")) not in _FAMILIES:
            continue
        if one.get("use", "sig") != "sig":
            continue
        for algorithm in algorithms:
            key = _usable_key(one, algorithm)
            if key is not None:
                found[str(one.get("kid") or ""), algorithm] = key
    if not found:
        raise UnusableIssuer("it publishes no key for the algorithms that are accepted")
    return found


def _usable_key(described: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Returns a key for one algorithm; None where it is not for that."""
    if not algorithm.startswith(_FAMILIES[described["kty"]]):
        return None
    if described.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK(dict(described), algorithm)
    except Exception:  # An issuer may publish keys that this library cannot read.
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        return None
    # Each curve has one algorithm.
    if isinstance(key.key, EllipticCurvePublicKey) and _CURVES.get(algorithm) != key.key.curve.name:
        return None
    return key if isinstance(key.key, _PUBLIC) else None
