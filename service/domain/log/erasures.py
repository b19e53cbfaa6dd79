"""Erasures: records of what was deleted for good, without its text.

What was erased is recognized later by keyed digests: HMAC-SHA256 with a key of the tenant, cut to
DIGEST_BYTES. Without the key a short text cannot be guessed from its digest.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

#: Bytes of a keyed digest.
DIGEST_BYTES = 16
#: Digests that an erasure keeps; of the rest it has the number only.
MAX_DIGESTS = 10_000
#: Shorter texts, in bytes of UTF-8, have no digest: "yes" is in every log.
MIN_TEXT_BYTES = 16
#: The longest reason of an erasure, in characters.
MAX_REASON = 500

_BLOCK = 64


class ErasureKind(StrEnum):
    """What an erasure removes."""

    SESSION = "session"
    MEMORY = "memory"
    #: The content of chunks, with everything derived from it.
    CHUNKS = "chunks"
    TENANT = "tenant"


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureRequest:
    """The principal that asked for an erasure, and the reason."""

    #: As in the audit log: `local` where the server has no authentication.
    principal: str = "local"
    #: The client's own words, up to MAX_REASON characters; may be empty.
    reason: str = ""
    #: The id where the journal repeats an erasure in a restored database; None: a new one.
    erasure_id: UUID | None = None
    #: When it was asked for first; None is now.
    requested_at: datetime | None = None
    #: What else the record has: `exports` that were made before and their `imports`, positions of
    #: chunks. No text.
    detail: Mapping[str, Any] = field(default_factory=dict)


#: What the service itself asks for.
BY_SERVICE = ErasureRequest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasure:
    """The record of an erasure."""

    tenant_id: UUID
    erasure_id: UUID
    kind: ErasureKind
    #: None for a tenant.
    target_session: UUID | None
    #: The memory, or the session for all of it; of chunks the redaction.
    target_item: UUID | None
    #: As in ErasureRequest.
    detail: Mapping[str, Any] = field(default_factory=dict)
    principal: str
    reason: str
    requested_at: datetime
    #: When the last row was removed; None before.
    completed_at: datetime | None
    #: When the erasure journal had it on disk; None before, and without a journal.
    journalled_at: datetime | None
    #: Whether it repeats one that a restored database had missed.
    is_replayed: bool
    #: Rows by table; `table.column` where rows stay and lost their texts.
    counts: Mapping[str, int]
    #: Keyed digests of removed texts, one after another, up to MAX_DIGESTS.
    digests: bytes
    #: Texts that were removed after that.
    digests_omitted: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to remove."""
        return self.completed_at is not None

    def exports(self) -> Sequence[UUID]:
        """Returns the exports that were made of it, and of its copies, as far as it lists them."""
        listed = [*self.detail.get("exports", ()), *self.detail.get("imports", ())]
        return [UUID(one["export"]) for one in listed]


def digest_of(key: bytes, text: bytes) -> bytes:
    """Returns the keyed digest of a text, as the database computes it."""
    return hmac.digest(key, text, "sha256")[:DIGEST_BYTES]


def hmac_blocks(key: bytes) -> tuple[bytes, bytes]:
    """Returns the inner and the outer block of HMAC-SHA256 (RFC 2104) for a key of 32 bytes."""
    padded = key.ljust(_BLOCK, b"\0")
    return bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded)
