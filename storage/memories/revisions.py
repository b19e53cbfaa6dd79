"""Claims memories, and commits their revisions.

The keys of `storage.tables.revision` refuse a gap, a repeat or a fork whatever the code here does;
the compare-and-set in `advance` notices it before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from opentelemetry import metrics
from opentelemetry.trace import SpanContext
from sqlalchemy import ColumnElement, func, literal, update

from service.domain.memories.specs import spec_from_json
from service.domain.prism.amendments import Amendment, Rejection
from service.domain.search.entries import UNCHANGED, EntryChanges
from service.domain.values.json_values import canonical
from service.telemetry.names import Attribute, Metric
from storage.calls import intents
from storage.engine import trace_contexts
from storage.engine.claims import Claim, Fenced, is_held
from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.memories import entries
from storage.memories import revision_statements as statements
from storage.tables import memory

#: Amendments between two saved states: reading any revision applies fewer than that to the state
#: before it. There are more where a state is so large that reading it costs more.
SNAPSHOT_AMENDMENTS = 48
SNAPSHOT_BYTES_PER_AMENDMENT = 2000

_APPLIED = metrics.get_meter("palimpsest").create_histogram(
    Metric.APPLIED,
    unit="s",
    description="From the append of the oldest chunk of a step to its commit",
    explicit_bucket_boundaries_advisory=(
        *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        *(60, 300, 900, 3600, 6 * 3600, 24 * 3600),
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRevision:
    """A change to be committed."""

    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    #: All chunks up to here are in it; the cursor, for what reads none.
    to_position: int
    #: SHA-256 of the value after it.
    digest: bytes
    amendments: Sequence[Amendment] = ()
    rejections: Sequence[Rejection] = ()
    #: The value after it, when it changed.
    value: str | None = None
    #: A new base, where one is written.
    base: str | None = None
    #: The comment on a change by hand.
    comment: str = ""
    #: For a rollback: the revision whose state it restores.
    restored_revision: int | None = None
    #: For a change of the schema: the new schema.
    schema_source: str | None = None
    #: The size of the memory after a consolidation. 0 after a change by hand that removed so much
    #: that the last size means nothing any more; None leaves it.
    consolidated_tokens: int | None = None
    #: The counts of the folding policy up to this revision; None leaves those of an older one.
    fold_state: Mapping[str, Any] | None = None
    #: What rejections mean for readers; None leaves the stored ones.
    losses: Mapping[str, Any] | None = None
    #: The revisions that a quarantine undoes; the positions that it, or a release, reads again.
    undone: Sequence[int] | None = None
    read_positions: Sequence[int] | None = None
    #: What is left to be read again; None leaves that as it is.
    reread_positions: Sequence[int] | None = None
    #: What changes in the entries that searches find.
    entries: EntryChanges = UNCHANGED
    #: The span that commits it, if that is sampled.
    trace: SpanContext | None = None


def _claimed(tx: Transaction, row: Sequence[Any]) -> Claim:
    held = dict(zip(statements.CLAIM_NAMES, row, strict=True))
    spec = spec_from_json(held.pop("kind"), held["spec"], held.pop("schema_source"))
    has_dead_intents = intents.may_be_dead(held.pop("oldest_lease"))
    known = {"tenant_id": tx.tenant_id, "spec": spec, "has_dead_intents": has_dead_intents}
    return Claim(**{**held, **known})


async def claim(tx: Transaction, session_key: UUID, memory_id: UUID, kind: str) -> Claim | None:
    """Claims a memory of `kind` that has work; None when there is nothing to do.

    Raises the epoch, so that a worker with an older claim can commit nothing any more.
    """
    values = {"session": session_key, "memory": memory_id, "of_kind": kind}
    rows = await tx.fetch(statements.TAKE, values)
    return _claimed(tx, rows[0]) if rows else None


async def lock(tx: Transaction, session_key: UUID, memory_id: UUID) -> Claim | None:
    """Locks a memory until the transaction ends, for a change by hand; None without one.

    A worker with a claim finds its revision moved, and begins again.
    """
    rows = await tx.fetch(statements.LOCK, {"session": session_key, "memory": memory_id})
    return _claimed(tx, rows[0]) if rows else None


async def commit_revision(
    tx: Transaction,
    held: Claim,
    new: NewRevision,
    *,
    has_work: bool | None,
    may_idle: bool = False,
) -> bool:
    """Writes the next revision of a PRISM memory in one statement; returns whether there is work.

    On a connection of the driver's own it is a whole transaction. Raises Fenced as `advance` does.
    With `may_idle` it checks whether the log has more: appends to the session wait from there to
    the commit.
    """
    assert new.value is not None or not new.amendments, "amendments change the value"
    changes = _changes(held, new)
    reads = new.kind == "step" and new.to_position > held.applied_position
    statement = statements.revising(
        tuple(changes),
        by_hand=has_work is None,
        consolidates=new.kind == "consolidation",
        reads=reads,
        may_idle=may_idle,
        amends=bool(new.amendments),
        rejects=bool(new.rejections),
        based=new.base is not None,
        valued=new.value is not None,
        traced=new.trace is not None,
        enters=bool(new.entries),
    )
    trace = {} if new.trace is None else trace_contexts.of_one(new.trace)
    values = {**_values(tx, held, new, changes, has_work), **trace}
    if new.entries:
        values |= entries.written_values(new.entries)
    return _moved(tx, held, await tx.fetch(statement, values))


def _moved(tx: Transaction, held: Claim, rows: Sequence[Any]) -> bool:
    """Notes what rows of `statements.moving` report; returns whether there is work."""
    if not rows:
        raise Fenced
    tx.changed.add(held.memory_id)
    has_work, _, *seconds = rows[0]
    if seconds:
        _APPLIED.record(seconds[0], {Attribute.KIND: held.spec.kind})
    return bool(has_work)


def _values(
    tx: Transaction,
    held: Claim,
    new: NewRevision,
    changes: Mapping[str, Any],
    has_work: bool | None,
) -> dict[str, Any]:
    """Returns the values of the statements that write a revision."""
    return {
        **{f"held_{name}": getattr(held, name) for name in statements.HELD},
        **{f"new_{name}": value for name, value in changes.items()},
        "more": has_work,
        "tenant": tx.tenant_id,
        "kind": new.kind,
        "digest": new.digest,
        "comment": new.comment,
        "restored_revision": new.restored_revision,
        "schema_source": new.schema_source,
        "undone": None if new.undone is None else list(new.undone),
        "read_positions": None if new.read_positions is None else list(new.read_positions),
        "paths": [str(one.path) for one in new.amendments],
        "ops": [one.op.value for one in new.amendments],
        "values": [canonical(one.value) for one in new.amendments],
        "corrected": [one.op_corrected for one in new.amendments],
        "proposals": [one.proposal for one in new.rejections],
        "reasons": [one.reason for one in new.rejections],
        "new_base": new.base,
        "new_value": new.value,
        "most_unsaved": most_unsaved(new.value or ""),
    }


def most_unsaved(value: str) -> int:
    """Returns at how many amendments since the last saved state another one is saved."""
    return SNAPSHOT_AMENDMENTS + len(value) // SNAPSHOT_BYTES_PER_AMENDMENT


async def advance(
    tx: Transaction, held: Claim, new: NewRevision, *, has_work: bool | None, sealed: bool = False
) -> bool:
    """Writes revision `held.revision + 1` and moves the cursor; returns whether there is work.

    The caller writes the revision's content. Compare-and-set: raises Fenced when epoch, revision
    or cursor are no longer those of `held`, or the memory is to be sealed at another position. With
    `has_work=False` the caller has the session's head from `sessions.lock_head`; a requested
    consolidation is work all the same. None, for changes by hand, leaves that as it is, and also
    changes a stalled memory. With `sealed` it is the memory's last revision.
    """
    changes = _changes(held, new)
    if sealed:
        changes["status"] = "sealed"
    reads = new.kind == "step" and new.to_position > held.applied_position
    moving = statements.moving(
        tuple(changes),
        by_hand=has_work is None,
        consolidates=new.kind == "consolidation",
        reads=reads,
    )
    values = _values(tx, held, new, changes, has_work)
    has_more = _moved(tx, held, await tx.fetch(moving, values))
    await tx.execute(statements.INSERT_REVISION, values)
    await entries.write(tx, held.session_key, held.memory_id, held.revision + 1, new.entries)
    if new.trace is not None:
        await trace_contexts.add(tx, held.session_key, held.memory_id, held.revision + 1, new.trace)
    return has_more


def _changes(held: Claim, new: NewRevision) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "revision": held.revision + 1,
        "applied_position": new.to_position,
    }
    # Nodes are built in one order: those that failed are among the new ones, or follow them.
    if new.to_position > held.applied_position or new.kind in ("build", "seal", "episode"):
        changes["attempts"] = 0
    if new.schema_source is not None:
        changes["schema_source"] = new.schema_source
    if new.kind == "consolidation":
        changes["attempts"] = 0
    if new.consolidated_tokens is not None:
        changes["consolidated_tokens"] = new.consolidated_tokens
    if new.fold_state is not None:
        changes["fold_state"] = new.fold_state
    if new.losses is not None:
        changes["losses"] = new.losses
    if new.reread_positions is not None:
        changes["reread_positions"] = list(new.reread_positions)
        changes["attempts"] = 0
    return changes


def advanced(held: Claim, new: NewRevision) -> Claim:
    """Returns the claim after a worker has committed `new`."""
    changes = _changes(held, new)
    if new.kind == "consolidation":
        # As `statements.moving` has it.
        wanted = held.consolidate_position
        is_done = wanted is None or wanted <= held.applied_position
        changes["consolidate_position"] = None if is_done else wanted
    return replace(held, **changes, committed_at=None, paid_position=None)


async def clear_work(tx: Transaction, held: Claim) -> bool:
    """Stores that the memory is at the head; False when a consolidation or a seal is requested.

    The caller has the session's head locked.
    """
    keys = {"session": held.session_key, "memory": held.memory_id, "held_epoch": held.epoch}
    tx.changed.add(held.memory_id)
    return await tx.execute(statements.CLEAR_WORK, keys) == 1


async def back_off(tx: Transaction, held: Claim, seconds: float) -> None:
    """Counts a failed try; the next one begins after `seconds`."""
    await tx.execute(
        update(memory)
        .where(is_held(held))
        .values(
            attempts=memory.c.attempts + 1,
            ready_at=func.now() + interval(seconds),
        )
    )


async def linger(
    tx: Transaction, held: Claim, *, due: datetime, look_seconds: float | None
) -> bool:
    """Defers the memory by `look_seconds`, at most to `due`, since its next step may still grow.

    None defers it to `due`, unless a chunk is appended before. False when it is due; or when it was
    flushed or taken over, or a consolidation was requested, since it was claimed.
    """
    ready_at: ColumnElement[datetime] = literal(due)
    if look_seconds is not None:
        ready_at = func.least(ready_at, func.now() + interval(look_seconds))
    waits = (
        update(memory)
        .where(
            is_held(held),
            memory.c.flush_position == held.flush_position,
            # A request for what is flushed already does not move that.
            memory.c.consolidate_position.is_not_distinct_from(held.consolidate_position),
            literal(due) > func.now(),
        )
        .values(ready_at=ready_at, resting=look_seconds is None)
    )
    return await tx.execute(waits) == 1
