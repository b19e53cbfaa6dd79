"""What clients send as credentials, and the form of keys.

A key is `pk_`, its id, `_` and a secret: 256 random bits in base 62, and a CRC-32 of all before
it. So a mistyped key is refused without a look-up, and scanners for secrets recognize keys.
"""

import hashlib
import re
import zlib
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Bytes that an id and a secret are made of.
ID_BYTES = 10
SECRET_BYTES = 32

_PREFIX = "pk_"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: Digits of 256 bits, and of 32 bits, in base 62.
_SECRET_LENGTH = 43
_CHECK_LENGTH = 6
_FORM = re.compile(
    rf"pk_(?P<id>[a-z2-7]{{16}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}[0-9A-Za-z]{{{_CHECK_LENGTH}}}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a client sent as its credentials."""

    #: After `Bearer`; empty without the header. Never logged.
    token: str = field(default="", repr=False)
    #: gRPC's properties of the connection: of a client certificate, its names. Empty with a token.
    connection: Mapping[str, Iterable[bytes]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyText:
    """A key as a client sends it."""

    key_id: str
    text: str = field(repr=False)

    @property
    def hash(self) -> bytes:
        """What is stored of it: SHA-256, since 256 random bits cannot be guessed."""
        return hashlib.sha256(self.text.encode()).digest()

    @classmethod
    def made_of(cls, id_bytes: bytes, secret: bytes) -> "KeyText":
        """Returns the key of ID_BYTES and SECRET_BYTES random bytes."""
        key_id = b32encode(id_bytes).decode().lower()
        begins = f"{_PREFIX}{key_id}_{_base62(int.from_bytes(secret), _SECRET_LENGTH)}"
        return cls(key_id=key_id, text=begins + _check(begins))


def is_key(token: str) -> bool:
    """Returns whether a token is meant as a key."""
    return token.startswith(_PREFIX)


def parsed_key(token: str) -> KeyText | None:
    """Returns the key; None where it was cut or mistyped."""
    found = _FORM.fullmatch(token)
    if found is None or _check(token[:-_CHECK_LENGTH]) != token[-_CHECK_LENGTH:]:
        return None
    return KeyText(key_id=found["id"], text=token)


def _check(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
