"""Describes removals of the content of chunks, and recognizes repeats of it by keyed digests."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

#: Separates these digests from other uses of the deployment's key.
_PURPOSE = b"palimpsest redaction\0"


class RedactionCause(StrEnum):
    """Why content was removed."""

    #: A client requested it.
    REDACTED = "redacted"
    #: A policy of retention demands it.
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """A removal of the content of chunks, whose positions stay."""

    session_key: UUID
    redaction_id: UUID
    cause: RedactionCause
    #: The identity that requested it.
    principal: str
    #: In the client's words; empty: none is given.
    reason: str
    #: The number of its tombstones.
    chunks: int
    created_at: datetime
    #: Rows that were removed with the chunks, by table; `table.column` where rows stay.
    removed: Mapping[str, int] = field(default_factory=dict)


def keyed_digest(key: bytes, tenant_id: UUID, digest: bytes) -> bytes:
    """Returns the keyed digest (HMAC-SHA-256) of a digest of removed content, 32 bytes.

    A repeat of the content has the same one. Without the key no guess of the content can be
    checked against it.
    """
    return hmac.digest(key, _PURPOSE + tenant_id.bytes + digest, "sha256")
