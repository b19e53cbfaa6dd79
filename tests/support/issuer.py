"""An OIDC issuer of the test's own: discovery, keys, and tokens that it signs."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "palimpsest"


@dataclass(kw_only=True)
class SigningKey:
    """A key of the issuer."""

    key_id: str
    algorithm: str = "ES256"
    private: Any = None

    def __post_init__(self) -> None:
        if self.private is None:
            is_rsa = self.algorithm[0] in "RP"
            self.private = (
                rsa.generate_private_key(65537, 2048)
                if is_rsa
                else ec.generate_private_key(ec.SECP256R1())
            )

    @property
    def jwk(self) -> dict[str, Any]:
        is_rsa = isinstance(self.private, rsa.RSAPrivateKey)
        form = RSAAlgorithm if is_rsa else ECAlgorithm
        described = json.loads(form.to_jwk(self.private.public_key()))
        return {**described, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}


@dataclass(kw_only=True)
class Issuer:
    """What it publishes, and the requests that it received."""

    url: str = ""
    keys: list[SigningKey] = field(default_factory=lambda: [SigningKey(key_id="first")])
    #: In place of what it publishes: status and body by path.
    replies: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    #: Requests wait for it.
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def reply(self, path: str) -> tuple[int, bytes]:
        if path in self.replies:
            return self.replies[path]
        if path == "/.well-known/openid-configuration":
            found: Any = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        elif path == "/keys":
            found = {"keys": [one.jwk for one in self.keys]}
        else:
            return 404, b""
        return 200, json.dumps(found).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Returns claims of a valid token; None leaves one out."""
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": now + 300,
            "iat": now,
            "tenant": "default",
            "scope": "openid read append",
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: SigningKey | None = None, **changes: Any) -> str:
        """Returns a token; `changes` are claims."""
        key = key or self.keys[0]
        headers = {"kid": key.key_id} if key.key_id else None
        # Claims of any type, which `jwt.encode` refuses.
        content = json.dumps(self.claims(**changes)).encode()
        return jwt.PyJWS().encode(content, key.private, key.algorithm, headers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split(b" ", 2)[1].decode()
            self.requests.append(path)
            await self.open.wait()
            status, body = self.reply(path)
            head = (
                f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def issuing(context: ssl.SSLContext | None = None) -> AsyncIterator[Issuer]:
    """Serves an issuer, by HTTPS with a context."""
    issuer = Issuer()
    issuer.open.set()
    server = await asyncio.start_server(issuer._serve, "127.0.0.1", 0, ssl=context)
    scheme = "http" if context is None else "https"
    issuer.url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        server.close()
