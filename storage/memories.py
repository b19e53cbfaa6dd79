"""Memories: their rows, their state at any revision, and the step's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, and_, case, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from service.domain.amendments import Amendment, Op, Rejection
from service.domain.json_values import canonical, parse
from service.domain.paths import Path
from storage.database import DirectTransaction, Transaction
from storage.tables import (
    amendment,
    dead_letter,
    memory,
    prism_base,
    prism_value,
    rejection,
    revision,
    session,
)


class Fenced(Exception):
    """Another worker has taken the memory over, or changed it: the result is void."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """Why a memory gave up, and where."""

    #: First position of the step that failed.
    position: int
    cause: str
    attempts: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMemory:
    """A memory's row, with its session's head of the same moment."""

    session_key: UUID
    memory_id: UUID
    session_name: str
    name: str
    kind: str
    #: As PrismSpec.to_json gives it.
    spec: dict[str, Any]
    revision: int
    applied_position: int
    head: int
    incarnation: int
    #: "active" or "stalled".
    status: str
    created_at: datetime
    stall: Stall | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A memory in the hands of one worker, until somebody raises the epoch."""

    session_key: UUID
    memory_id: UUID
    epoch: int
    revision: int
    applied_position: int
    spec: dict[str, Any]
    #: Failed tries of the step at the cursor.
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismRows:
    """The stored form of a PRISM memory at one revision."""

    #: Canonical JSON of the newest base.
    base: str
    #: The revision that wrote it.
    base_revision: int
    #: The amendments since, by revision.
    amendments: Sequence[tuple[int, Sequence[Amendment]]]
    #: All chunks up to here are in it.
    applied_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRevision:
    """A change to be committed."""

    #: "step", "skip" or "fold".
    kind: str
    #: All chunks up to here are in it; the cursor for a fold.
    to_position: int
    #: SHA-256 of the value after it.
    digest: bytes
    amendments: Sequence[Amendment] = ()
    rejections: Sequence[Rejection] = ()
    #: The value after it, when it changed.
    value: str | None = None
    #: A new base, for a fold.
    base: str | None = None


def _select_memories() -> Select[Any]:
    return (
        select(
            memory.c.session_key,
            memory.c.memory_id,
            session.c.name.label("session_name"),
            memory.c.name,
            memory.c.kind,
            memory.c.spec,
            memory.c.revision,
            memory.c.applied_position,
            session.c.head,
            session.c.incarnation,
            memory.c.status,
            memory.c.created_at,
            dead_letter.c.from_position.label("stall_position"),
            dead_letter.c.cause.label("stall_cause"),
            dead_letter.c.attempts.label("stall_attempts"),
            dead_letter.c.created_at.label("stall_at"),
        )
        .join(session, session.c.session_key == memory.c.session_key)
        .outerjoin(
            dead_letter,
            and_(
                dead_letter.c.session_key == memory.c.session_key,
                dead_letter.c.memory_id == memory.c.memory_id,
                dead_letter.c.resolution.is_(None),
            ),
        )
    )


def _stored(row: Sequence[Any]) -> StoredMemory:
    *fields, position, cause, attempts, at = row
    names = StoredMemory.__dataclass_fields__
    return StoredMemory(
        **dict(zip(names, fields, strict=False)),
        stall=None
        if position is None
        else Stall(position=position + 1, cause=cause, attempts=attempts, created_at=at),
    )


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    memory_id: UUID,
    name: str,
    spec: dict[str, Any],
    head: int,
    value: str,
    digest: bytes,
) -> bool:
    """Makes a PRISM memory at revision 0; False when its name is taken.

    The caller holds the session's head with `sessions.lock_head`.
    """
    new = (
        upsert(memory)
        .values(
            session_key=session_key,
            memory_id=memory_id,
            tenant_id=tx.tenant_id,
            name=name,
            kind="prism",
            spec=spec,
            has_work=head > 0,
        )
        .on_conflict_do_nothing(index_elements=["session_key", "memory_id"])
        .returning(memory.c.memory_id)
    )
    if (await tx.connection.execute(new)).one_or_none() is None:
        return False
    keys = {"session_key": session_key, "memory_id": memory_id, "tenant_id": tx.tenant_id}
    await tx.connection.execute(
        insert(revision).values(
            **keys,
            revision=0,
            from_position=0,
            to_position=0,
            kind="create",
            epoch=0,
            digest=digest,
        )
    )
    await tx.connection.execute(insert(prism_base).values(**keys, revision=0, value=value))
    await tx.connection.execute(insert(prism_value).values(**keys, revision=0, value=value))
    return True


async def count(tx: Transaction, session_key: UUID) -> int:
    """How many memories the session has."""
    statement = select(func.count()).select_from(memory).where(memory.c.session_key == session_key)
    return int((await tx.connection.execute(statement)).scalar_one())


async def get(tx: Transaction, session_key: UUID, memory_id: UUID) -> StoredMemory | None:
    """Reads a memory's row; None when there is none."""
    statement = _select_memories().where(
        memory.c.session_key == session_key, memory.c.memory_id == memory_id
    )
    row = (await tx.connection.execute(statement)).one_or_none()
    return None if row is None else _stored(row)


async def list_all(tx: Transaction, session_key: UUID) -> Sequence[StoredMemory]:
    """The memories of a session by name."""
    statement = (
        _select_memories().where(memory.c.session_key == session_key).order_by(memory.c.name)
    )
    return [_stored(row) for row in await tx.connection.execute(statement)]


_READ_NEWEST = """
SELECT m.session_key, m.memory_id, s.name, m.name, m.kind, m.spec, m.revision,
    m.applied_position, s.head, s.incarnation, m.status, m.created_at,
    d.from_position, d.cause, d.attempts, d.created_at, v.value
FROM memory m
JOIN session s ON s.session_key = m.session_key
JOIN prism_value v ON v.session_key = m.session_key AND v.memory_id = m.memory_id
LEFT JOIN dead_letter d ON d.session_key = m.session_key AND d.memory_id = m.memory_id
    AND d.resolution IS NULL
WHERE m.session_key = %s AND m.memory_id = %s
"""


async def read_newest(
    tx: DirectTransaction, session_key: UUID, memory_id: UUID
) -> tuple[StoredMemory, str] | None:
    """The memory and its newest value as canonical JSON, in one round trip."""
    rows = await tx.read(_READ_NEWEST, (session_key, memory_id))
    if not rows:
        return None
    *columns, value = rows[0]
    return _stored(columns), value


async def read_prism(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> PrismRows | None:
    """The base and the amendments that make up `at_revision`; None when it is not there."""
    end = (
        await tx.connection.execute(
            select(revision.c.to_position).where(
                revision.c.session_key == session_key,
                revision.c.memory_id == memory_id,
                revision.c.revision == at_revision,
            )
        )
    ).scalar_one_or_none()
    if end is None:
        return None
    base = (
        await tx.connection.execute(
            select(prism_base.c.revision, prism_base.c.value)
            .where(
                prism_base.c.session_key == session_key,
                prism_base.c.memory_id == memory_id,
                prism_base.c.revision <= at_revision,
            )
            .order_by(prism_base.c.revision.desc())
            .limit(1)
        )
    ).one()
    since = await tx.connection.execute(
        select(amendment)
        .where(
            amendment.c.session_key == session_key,
            amendment.c.memory_id == memory_id,
            amendment.c.revision > base.revision,
            amendment.c.revision <= at_revision,
        )
        .order_by(amendment.c.revision, amendment.c.ordinal)
    )
    batches: dict[int, list[Amendment]] = {}
    for row in since:
        batches.setdefault(row.revision, []).append(_amendment(row))
    return PrismRows(
        base=base.value,
        base_revision=base.revision,
        amendments=list(batches.items()),
        applied_position=end,
    )


def _amendment(row: Row[Any]) -> Amendment:
    return Amendment(
        path=Path.parse(row.path),
        op=Op(row.op),
        value=parse(row.value),
        op_corrected=row.op_corrected,
    )


async def claim(tx: Transaction, session_key: UUID, memory_id: UUID) -> Claim | None:
    """Takes a memory with work into this worker's hands; None when there is nothing to do.

    Raises the epoch, so that whoever held it before can commit nothing any more.
    """
    statement = (
        update(memory)
        .where(
            memory.c.session_key == session_key,
            memory.c.memory_id == memory_id,
            memory.c.status == "active",
            memory.c.has_work,
            memory.c.ready_at <= func.now(),
        )
        .values(epoch=memory.c.epoch + 1)
        .returning(
            memory.c.session_key,
            memory.c.memory_id,
            memory.c.epoch,
            memory.c.revision,
            memory.c.applied_position,
            memory.c.spec,
            memory.c.attempts,
        )
    )
    row = (await tx.connection.execute(statement)).one_or_none()
    return None if row is None else Claim(**row._mapping)


async def commit_revision(tx: Transaction, held: Claim, new: NewRevision, *, has_work: bool) -> int:
    """Writes one revision and moves the cursor; the new revision's number.

    Compare-and-set: raises Fenced when epoch, revision or cursor are no longer those
    of `held`. The keys of `revision` refuse a gap, a repeat or a fork even so. With
    `has_work=False` the caller holds the session's head with `sessions.lock_head`.
    """
    number = held.revision + 1
    moved = (
        update(memory)
        .where(
            memory.c.session_key == held.session_key,
            memory.c.memory_id == held.memory_id,
            memory.c.epoch == held.epoch,
            memory.c.revision == held.revision,
            memory.c.applied_position == held.applied_position,
            memory.c.status == "active",
        )
        .values(
            revision=number,
            applied_position=new.to_position,
            has_work=has_work,
            attempts=case((literal(new.kind == "fold"), memory.c.attempts), else_=0),
        )
    )
    if (await tx.connection.execute(moved)).rowcount != 1:
        raise Fenced
    keys = {
        "session_key": held.session_key,
        "memory_id": held.memory_id,
        "revision": number,
        "tenant_id": tx.tenant_id,
    }
    await tx.connection.execute(
        insert(revision).values(
            **keys,
            parent_revision=held.revision,
            from_position=held.applied_position,
            to_position=new.to_position,
            kind=new.kind,
            epoch=held.epoch,
            digest=new.digest,
        )
    )
    await _write_parts(tx, keys, new)
    return number


async def _write_parts(tx: Transaction, keys: dict[str, Any], new: NewRevision) -> None:
    if new.amendments:
        rows = [
            {
                **keys,
                "ordinal": ordinal,
                "path": str(one.path),
                "op": one.op.value,
                "value": canonical(one.value),
                "op_corrected": one.op_corrected,
            }
            for ordinal, one in enumerate(new.amendments, start=1)
        ]
        await tx.connection.execute(insert(amendment).values(rows))
    if new.rejections:
        rows = [
            {**keys, "ordinal": ordinal, "proposal": one.proposal, "reason": one.reason}
            for ordinal, one in enumerate(new.rejections, start=1)
        ]
        await tx.connection.execute(insert(rejection).values(rows))
    if new.base is not None:
        await tx.connection.execute(insert(prism_base).values(**keys, value=new.base))
    changes: dict[str, Any] = {"revision": keys["revision"]}
    if new.value is not None:
        changes["value"] = new.value
    await tx.connection.execute(
        update(prism_value)
        .where(
            prism_value.c.session_key == keys["session_key"],
            prism_value.c.memory_id == keys["memory_id"],
        )
        .values(changes)
    )


def _held(held: Claim) -> Any:
    return and_(
        memory.c.session_key == held.session_key,
        memory.c.memory_id == held.memory_id,
        memory.c.epoch == held.epoch,
        memory.c.status == "active",
    )


async def clear_work(tx: Transaction, held: Claim) -> None:
    """Says that the memory is at the head. The caller holds the session's head."""
    await tx.connection.execute(update(memory).where(_held(held)).values(has_work=False))


async def back_off(tx: Transaction, held: Claim, seconds: float) -> None:
    """Counts a failed try; the step is not tried again before `seconds` have passed."""
    await tx.connection.execute(
        update(memory)
        .where(_held(held))
        .values(
            attempts=memory.c.attempts + 1,
            ready_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds),
        )
    )


async def add_dead_letter(
    tx: Transaction, held: Claim, *, to_position: int, cause: str, resolution: str | None
) -> None:
    """Records that a step failed for good; `resolution` is None or 'skipped'."""
    await tx.connection.execute(
        insert(dead_letter).values(
            session_key=held.session_key,
            memory_id=held.memory_id,
            letter_id=uuid4(),
            tenant_id=tx.tenant_id,
            from_position=held.applied_position,
            to_position=to_position,
            attempts=held.attempts + 1,
            cause=cause,
            resolution=resolution,
        )
    )


async def stall(tx: Transaction, held: Claim) -> None:
    """Stops the memory until `retry`. Raises Fenced when it is no longer held."""
    stopped = update(memory).where(_held(held)).values(status="stalled")
    if (await tx.connection.execute(stopped)).rowcount != 1:
        raise Fenced


async def retry(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Lets a stalled memory go on; False when it was not stalled."""
    woken = (
        update(memory)
        .where(
            memory.c.session_key == session_key,
            memory.c.memory_id == memory_id,
            memory.c.status == "stalled",
        )
        .values(status="active", attempts=0, ready_at=func.now(), has_work=True)
    )
    if (await tx.connection.execute(woken)).rowcount == 0:
        return False
    await tx.connection.execute(
        update(dead_letter)
        .where(
            dead_letter.c.session_key == session_key,
            dead_letter.c.memory_id == memory_id,
            dead_letter.c.resolution.is_(None),
        )
        .values(resolution="retried")
    )
    return True
