"""Redacts chunks in one transaction: what clients can read of them, and what rests on them."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.log.erasures import ErasureKind, ErasureRequest
from service.domain.log.redactions import RedactionCause
from service.domain.prism.schemas.tree import Schema
from service.domain.prism.spec import PrismSpec
from service.domain.values.paths import Path
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.operations.outside import left_outside
from storage.engine.database import Transaction
from storage.log import deleting, erasures, keeping_out, redacting
from storage.log.redacting import Keyed, RedactedChunks
from storage.memories import memories, rewinding, undone_edits
from storage.memories.rewinding import TouchedMemory
from storage.memories.undone_edits import NOTHING_UNDONE, UndoneEdit, UndoneEdits
from storage.operations import derived
from storage.prism import states

#: A statement of a redaction may take so long: of a history of a million revisions minutes.
MAX_STATEMENT_SECONDS = 1800


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkRedaction:
    """What a redaction did at once."""

    #: Its tombstones.
    positions: Sequence[int]
    #: Memories that read the log again.
    woken: Sequence[WorkItem] = ()
    #: Changes by hand that it undid.
    undone: UndoneEdits = NOTHING_UNDONE


async def redact_chunks(
    tx: Transaction,
    key: UUID,
    redaction_id: UUID,
    positions: Sequence[int],
    keyed: Keyed,
    request: ErasureRequest,
    rules: Sequence[tuple[int, bytes]] = (),
) -> ChunkRedaction:
    """Redacts those of these chunks that have content, and records the erasure.

    The session exists; `rules` say what is kept out of it from now on. What is left to remove,
    workers find in `removal`.
    """
    # A long history is emptied in one statement.
    await tx.execute(f"SET LOCAL statement_timeout = '{MAX_STATEMENT_SECONDS}s'", prepare=None)
    await deleting.begin(tx, key, redaction_id)
    if rules:
        await keeping_out.add(tx, key, redaction_id, rules)
    redacted = await redacting.redact(
        tx,
        key,
        redaction_id,
        positions,
        keyed,
        cause=RedactionCause.REDACTED,
        principal=request.principal,
        reason=request.reason,
    )
    removed, touched, undone = Counter[str](), list[TouchedMemory](), NOTHING_UNDONE
    if redacted.positions:
        touched = await rewinding.fence(tx, key, redacted.positions[0])
        undone = await _undone(tx, key, touched)
        removed = await _remove_derived(tx, key, redacted, touched)
    elif not rules:
        await deleting.end(tx, key, redaction_id)
        return ChunkRedaction(positions=())
    detail = {
        **await left_outside(tx, key),
        **undone.detail(),
        "positions": list(redacted.positions),
        "keep_out": [[words, digest.hex()] for words, digest in rules],
    }
    listed = replace(request, detail={**request.detail, **detail})
    await erasures.record(tx, ErasureKind.CHUNKS, listed, session=key, item=redaction_id)
    removed["chunk.content"] = len(redacted.positions)
    await derived.record(tx, key, redaction_id, removed, redacted.digests)
    woken = [
        WorkItem(
            kind=WorkKind.MEMORY, tenant_id=tx.tenant_id, session_key=key, item_id=one.memory_id
        )
        for one in touched
    ]
    return ChunkRedaction(positions=redacted.positions, woken=woken, undone=undone)


async def edits_to_undo(tx: Transaction, key: UUID, first_position: int) -> UndoneEdits:
    """Returns the changes by hand that a redaction from a position on would undo."""
    return await _undone(tx, key, await rewinding.touched(tx, key, first_position))


async def _undone(tx: Transaction, key: UUID, touched: Sequence[TouchedMemory]) -> UndoneEdits:
    """Returns the changes by hand since memories read the chunks, with paths of their schemas."""
    found = await undone_edits.find(tx, key, touched)
    schemas: dict[UUID, Schema] = {}
    for one in touched:
        if one.kind == PrismSpec.kind and any(one.memory_id == e.memory_id for e in found.listed):
            stored = await memories.get(tx, key, one.memory_id)
            assert stored is not None, "its row is locked"
            schemas[one.memory_id] = PrismSpec.of(stored).schema()
    return replace(found, listed=[_in_schema(one, schemas) for one in found.listed])


def _in_schema(edit: UndoneEdit, schemas: Mapping[UUID, Schema]) -> UndoneEdit:
    """Returns an edit without what is content in its paths: free keys."""
    paths = [schemas[edit.memory_id].fields_of(Path.parse(one)) for one in edit.paths]
    return replace(edit, paths=[*dict.fromkeys(paths)])


async def _remove_derived(
    tx: Transaction, key: UUID, redacted: RedactedChunks, touched: Sequence[TouchedMemory]
) -> Counter[str]:
    """Removes what clients can read that may rest on the chunks; returns rows by table."""
    removed = await derived.remove_at_once(tx, key, redacted)
    for memory in touched:
        removed += await rewinding.rewind(tx, key, memory, await _kept_value(tx, key, memory))
    return removed


async def _kept_value(
    tx: Transaction, key: UUID, touched: TouchedMemory
) -> tuple[str, bytes] | None:
    """Returns the value of a PRISM memory before it read the chunks, and its digest."""
    if touched.kind != PrismSpec.kind:
        return None
    stored = await memories.get(tx, key, touched.memory_id)
    assert stored is not None, "its row is locked"
    rows = await states.get_nearest(tx, key, touched.memory_id, touched.kept_revision)
    value = rows.memory(PrismSpec.of(stored).schema()).value_json
    return value, hashlib.sha256(value.encode()).digest()
