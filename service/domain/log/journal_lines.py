"""Lines of the erasure journal: one erasure each, without text, chained by HMAC.

A line is canonical JSON with a `mac` over itself and the mac before it. So a line that was changed,
removed or moved is noticed, as is the journal of another deployment, whose key differs. A cut at
the end is not: what is lost there is found in the database.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.log.erasures import ErasureKind

VERSION = 1
#: Bytes of the longest line, with its end.
MAX_LINE_BYTES = 1024 * 1024
#: Before the first line.
NO_MAC = ""

_PURPOSE = b"palimpsest erasure journal 1"


class JournalBroken(Exception):
    """A journal is not what this deployment wrote; the message is one clear clause."""


class JournalFull(JournalBroken):
    """A journal can be read, and has no room on its disk for another line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """What a restored database needs to repeat an erasure."""

    tenant_id: UUID
    erasure_id: UUID
    kind: ErasureKind
    #: None for a tenant.
    target_session: UUID | None
    target_item: UUID | None
    #: Positions of chunks, and keyed digests of texts; no text.
    detail: Mapping[str, Any] = field(default_factory=dict)
    principal: str
    requested_at: datetime


def journal_key(token_key: bytes) -> bytes:
    """Returns the key of a deployment's journal."""
    return hmac.digest(token_key, _PURPOSE, "sha256")


def to_line(entry: JournalEntry, key: bytes, before: str) -> tuple[bytes, str]:
    """Returns the line of an entry after the one with the mac `before`, and its own mac.

    Raises JournalBroken when the line is too long.
    """
    said = {
        "at": entry.requested_at.isoformat(),
        "detail": dict(entry.detail),
        "erasure": str(entry.erasure_id),
        "item": _said(entry.target_item),
        "kind": entry.kind.value,
        "principal": entry.principal,
        "session": _said(entry.target_session),
        "tenant": str(entry.tenant_id),
        "version": VERSION,
    }
    mac = _mac(said, key, before)
    line = _canonical({**said, "mac": mac}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise JournalBroken(
            f"cannot have the erasure {entry.erasure_id}: its line would be longer than"
            f" {MAX_LINE_BYTES} bytes"
        )
    return line, mac


def from_line(line: bytes, key: bytes, before: str) -> tuple[JournalEntry, str]:
    """Returns the entry of a line, and its mac. Raises JournalBroken."""
    try:
        said = json.loads(line)
        mac = said.pop("mac")
        if not hmac.compare_digest(_mac(said, key, before), mac):
            raise JournalBroken("was changed, or is of another deployment")
        if said["version"] != VERSION:
            raise JournalBroken(f"has version {said['version']}, which this release does not know")
        entry = JournalEntry(
            tenant_id=UUID(said["tenant"]),
            erasure_id=UUID(said["erasure"]),
            kind=ErasureKind(said["kind"]),
            target_session=_id(said["session"]),
            target_item=_id(said["item"]),
            detail=said["detail"],
            principal=said["principal"],
            requested_at=datetime.fromisoformat(said["at"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalBroken("is not a line of an erasure journal") from error
    return entry, mac


def mac_of(line: bytes) -> str:
    """Returns the mac that a line says it has. Raises JournalBroken."""
    try:
        return str(json.loads(line)["mac"])
    except (ValueError, KeyError, TypeError) as error:
        raise JournalBroken("is not a line of an erasure journal") from error


def _mac(said: Mapping[str, Any], key: bytes, before: str) -> str:
    return hmac.digest(key, before.encode() + b"\n" + _canonical(said), "sha256").hex()


def _canonical(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _said(id: UUID | None) -> str | None:
    return None if id is None else str(id)


def _id(said: str | None) -> UUID | None:
    return None if said is None else UUID(said)
