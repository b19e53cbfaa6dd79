"""Tokens that a client passes from a write to a read, and from page to page.

A token is signed with a key of the deployment, so that it can be trusted when it
comes back, and says which session and incarnation it belongs to, so that it is
refused elsewhere instead of misread.
"""

import base64
import binascii
import hmac
import struct
from dataclasses import dataclass
from uuid import UUID

_READ = struct.Struct(">16sIQ")
_MAC_BYTES = 12


class TokenInvalid(ValueError):
    """Not issued here, altered, or of another kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadToken:
    """Stands for everything in a session's log up to a position."""

    session_key: UUID
    incarnation: int
    position: int

    def sign(self, key: bytes) -> str:
        """Returns the token as text of 54 characters from A-Z a-z 0-9 _ and -."""
        payload = _READ.pack(self.session_key.bytes, self.incarnation, self.position)
        return _seal(key, b"r", payload)

    @classmethod
    def verify(cls, key: bytes, token: str) -> "ReadToken":
        """Reads a token back. Raises TokenInvalid."""
        payload = _unseal(key, b"r", token)
        if len(payload) != _READ.size:
            raise TokenInvalid("not a consistency token")
        session_key, incarnation, position = _READ.unpack(payload)
        return cls(session_key=UUID(bytes=session_key), incarnation=incarnation, position=position)


def sign_page(key: bytes, scope: str, place: str) -> str:
    """Signs a page token, which continues after `place` in the list named `scope`."""
    return _seal(key, b"p" + scope.encode() + b"\0", place.encode())


def verify_page(key: bytes, scope: str, token: str) -> str:
    """Returns the place in a page token of `scope`. Raises TokenInvalid."""
    return _unseal(key, b"p" + scope.encode() + b"\0", token).decode()


def _mac(key: bytes, kind: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, kind + payload, "sha256")[:_MAC_BYTES]


def _seal(key: bytes, kind: bytes, payload: bytes) -> str:
    return _text_of(_mac(key, kind, payload) + payload)


def _text_of(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _unseal(key: bytes, kind: bytes, token: str) -> bytes:
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenInvalid("not a token of this service") from error
    if _text_of(sealed) != token:
        # Other texts stand for the same bytes: the last character has bits to spare.
        raise TokenInvalid("not a token of this service")
    mac, payload = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, kind, payload)):
        raise TokenInvalid("not a token of this service")
    return payload
