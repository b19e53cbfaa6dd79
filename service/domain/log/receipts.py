"""Receipts of erasures: canonical JSON about an erasure, which the tenant's key signs.

A receipt has no removed text. It names its target by ids, says what went by table, has keyed
digests of the texts, and lists what lies outside of the service's reach.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from service.domain.log.erasures import DIGEST_BYTES, Erasure, ErasureKind

VERSION = 1
#: Bytes of the longest file that is read as a receipt.
MAX_BYTES = 4 * 1024 * 1024
#: The algorithm of the digests.
DIGESTS = "HMAC-SHA256, first 16 bytes"

#: What no erasure of the service reaches.
_OUTSIDE = {
    "backups": "made before `completed_at` have it until they expire; a restored one repeats this"
    " erasure if `journalled_at` is set",
    "write_ahead_log": "of PostgreSQL has it until its segments are removed: after the next two"
    " checkpoints, and in an archive until that expires",
    "free_space": "in files of tables and indexes has it until it is used again or the table is"
    " rewritten",
    "recorded_exchanges": "with models have it until a process with PALIMPSEST_RECORD has run"
    " for half a minute; copies of them until they are deleted",
    "models": "that were called have what their provider keeps",
}


class NotAReceipt(Exception):
    """A file is not a receipt; the message is one clear clause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What a receipt says; `signature` covers the canonical form of `body`."""

    body: Mapping[str, Any]
    public_key: bytes
    signature: bytes

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose key signed it."""
        return UUID(self.body["tenant"])

    @property
    def kind(self) -> ErasureKind:
        """What was erased."""
        return ErasureKind(self.body["kind"])

    @property
    def session_key(self) -> UUID | None:
        """The session that it was, or was of; None for a tenant."""
        said = self.body["target"].get("session")
        return None if said is None else UUID(said)

    @property
    def item_id(self) -> UUID | None:
        """The memory, or the redaction of chunks; the session itself for all of it."""
        said = self.body["target"].get("item")
        return None if said is None else UUID(said)

    @property
    def detail(self) -> Mapping[str, Any]:
        """What else names the target, such as positions."""
        found: Mapping[str, Any] = self.body["target"].get("detail", {})
        return found

    @property
    def digests(self) -> frozenset[bytes]:
        """Keyed digests of removed texts."""
        return frozenset(bytes.fromhex(one) for one in self.body["digests"]["values"])


def body_of(erasure: Erasure) -> Mapping[str, Any]:
    """Returns what a receipt of a complete erasure says."""
    assert erasure.completed_at is not None, "only what is complete has a receipt"
    cut = range(0, len(erasure.digests), DIGEST_BYTES)
    return {
        "version": VERSION,
        "tenant": str(erasure.tenant_id),
        "erasure": str(erasure.erasure_id),
        "kind": erasure.kind.value,
        "target": {
            "session": _said(erasure.target_session),
            "item": _said(erasure.target_item),
            "detail": dict(erasure.detail),
        },
        "requested_by": erasure.principal,
        "reason": erasure.reason,
        "requested_at": _time(erasure.requested_at),
        "completed_at": _time(erasure.completed_at),
        "journalled_at": None if erasure.journalled_at is None else _time(erasure.journalled_at),
        "repeated_after_restore": erasure.is_replayed,
        "removed": dict(erasure.counts),
        "digests": {
            "algorithm": DIGESTS,
            "values": [erasure.digests[at : at + DIGEST_BYTES].hex() for at in cut],
            "omitted": erasure.digests_omitted,
        },
        "outside": {
            **_OUTSIDE,
            "exports": erasure.detail.get("exports", []),
            "imports": erasure.detail.get("imports", []),
        },
    }


def canonical(body: Mapping[str, Any]) -> bytes:
    """Returns the bytes that are signed: JSON with sorted keys, no blanks, UTF-8."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def to_json(receipt: Receipt) -> str:
    """Returns a receipt as it is given out."""
    said = {
        "receipt": receipt.body,
        "public_key": receipt.public_key.hex(),
        "signature": receipt.signature.hex(),
    }
    return json.dumps(said, sort_keys=True, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str | bytes) -> Receipt:
    """Reads a receipt; its signature is not checked yet. Raises NotAReceipt."""
    if len(text) > MAX_BYTES:
        raise NotAReceipt(f"has more than {MAX_BYTES:,} bytes")
    try:
        said = json.loads(text)
        receipt = Receipt(
            body=said["receipt"],
            public_key=bytes.fromhex(said["public_key"]),
            signature=bytes.fromhex(said["signature"]),
        )
        if receipt.body["version"] != VERSION:
            raise NotAReceipt("has a version that this release does not know")
        # What a verifier reads later.
        _ = (receipt.tenant_id, receipt.kind, receipt.session_key, receipt.item_id)
        _ = (receipt.digests, dict(receipt.detail), dict(receipt.body["removed"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotAReceipt("is not a receipt of an erasure") from error
    return receipt


def _said(id: UUID | None) -> str | None:
    return None if id is None else str(id)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
