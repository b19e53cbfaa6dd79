"""The statements of a step's transaction, compiled once; `storage.memories.revisions` runs them."""

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    Integer,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
    update,
)

from service.domain.prompting.flows import NO_USE
from storage.calls.intents import oldest_lease
from storage.engine.ready import Ready
from storage.engine.trace_contexts import OF_ONE
from storage.memories import entries
from storage.tables import (
    chunk,
    dead_letter,
    memory,
    revision,
    session,
)

# A constant: `startswith` would concatenate it by an operator that may depend on settings, which
# Citus does not accept in RETURNING.
_NO_USE = f"{NO_USE}%"

# Each relation has the session's key as a parameter, by which Citus finds the shard.
CLAIM = (
    memory.c.session_key,
    memory.c.memory_id,
    memory.c.epoch,
    memory.c.revision,
    memory.c.applied_position,
    memory.c.spec,
    memory.c.attempts,
    memory.c.schema_source,
    memory.c.flush_position,
    memory.c.consolidate_position,
    memory.c.consolidated_tokens,
    memory.c.fold_state,
    memory.c.seal_position,
    memory.c.kind,
    memory.c.losses,
    memory.c.reread_positions,
    memory.c.source_changes,
    select(revision.c.created_at)
    .where(
        revision.c.session_key == bindparam("session"),
        revision.c.memory_id == memory.c.memory_id,
        revision.c.revision == memory.c.revision,
    )
    .correlate(memory)
    .scalar_subquery()
    .label("committed_at"),
    select(func.count())
    .select_from(dead_letter)
    .where(
        dead_letter.c.session_key == bindparam("session"),
        dead_letter.c.memory_id == memory.c.memory_id,
        dead_letter.c.resolution == "retried",
        # After other causes, such as a provider that was away, paid replies are used.
        dead_letter.c.cause.like(_NO_USE),
    )
    .correlate(memory)
    .scalar_subquery()
    .label("retries"),
    oldest_lease(bindparam("session")).label("oldest_lease"),
    select(session.c.incarnation)
    .where(session.c.session_key == bindparam("session"))
    .scalar_subquery()
    .label("incarnation"),
)


def has_work() -> ColumnElement[bool]:
    """Returns SQL for whether a memory has work, where it is looked up by its key.

    In a form that the index of memories with work does not match: with statistics of a time
    without any, the planner would choose it, and go through all that have work by now.
    """
    return cast(memory.c.has_work, Integer) == 1


CLAIM_NAMES = tuple(column.key for column in CLAIM)


TAKE = Ready(
    update(memory)
    .where(
        memory.c.session_key == bindparam("session"),
        memory.c.memory_id == bindparam("memory"),
        memory.c.kind == bindparam("of_kind"),
        memory.c.status == "active",
        has_work(),
        memory.c.ready_at <= func.now(),
    )
    .values(
        epoch=memory.c.epoch + 1,
        held_reason=None,
        waiting_model=None,
        waiting_cause=None,
        resting=False,
        wake_position=None,
    )
    .returning(*CLAIM)
)


#: The same row, locked until the transaction ends.
LOCK = Ready(
    select(*CLAIM)
    .where(memory.c.session_key == bindparam("session"), memory.c.memory_id == bindparam("memory"))
    .with_for_update(key_share=True)
)


#: What a step's compare-and-set compares.
HELD = ("session_key", "memory_id", "epoch", "revision", "applied_position", "seal_position")


# By the database's clock, since those of workers may differ. A relation of its own, since Citus
# accepts no function of time in RETURNING.
_READ_CLOCK = select(func.clock_timestamp().label("at")).subquery("clock")
_OLDEST_SECONDS = (
    select(
        cast(
            func.extract(
                "epoch",
                _READ_CLOCK.c.at - func.greatest(chunk.c.created_at, memory.c.created_at),
            ),
            Double,
        )
    )
    .where(
        chunk.c.session_key == bindparam("held_session_key"),
        chunk.c.position == bindparam("held_applied_position", type_=BigInteger) + 1,
    )
    .correlate(memory, _READ_CLOCK)
    .scalar_subquery()
)


#: Appends to the session wait from here to the end of the transaction.
_HEAD = (
    select(session.c.head)
    .where(session.c.session_key == bindparam("held_session_key"))
    .with_for_update(read=True)
    .scalar_subquery()
)


@lru_cache(maxsize=64)
def moving(
    names: tuple[str, ...],
    *,
    by_hand: bool,
    consolidates: bool,
    reads: bool = False,
    may_idle: bool = False,
) -> Ready:
    """Returns the statement that moves a cursor and changes the columns `names`.

    Its row has whether there is work, and whether the entries are of the revision before, which
    this one may change. Where the step `reads`, it also has the age in seconds of the oldest chunk
    that it read, or of the memory if that is younger. With `may_idle`, there is more to do if the
    log has more.
    """
    changes: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    # The release before may have written revisions, and no entries of these.
    held_revision = bindparam("held_revision", type_=BigInteger)
    changes["entry_revision"] = case(
        (memory.c.entry_revision == held_revision, held_revision + 1),
        else_=memory.c.entry_revision,
    )
    still_wanted: ColumnElement[Any] = memory.c.consolidate_position
    if consolidates:
        # One that was requested since then waits for chunks that are not read yet.
        since = memory.c.consolidate_position > bindparam("held_applied_position")
        still_wanted = case((since, memory.c.consolidate_position))
        changes["consolidate_position"] = still_wanted
    if not by_hand:
        more: ColumnElement[bool] = bindparam("more", type_=Boolean)
        if may_idle:
            more = bindparam("new_applied_position", type_=BigInteger) < _HEAD
        changes["has_work"] = or_(more, still_wanted.is_not(None))
    return Ready(
        update(memory)
        .where(
            memory.c.session_key == bindparam("held_session_key"),
            memory.c.memory_id == bindparam("held_memory_id"),
            memory.c.epoch == bindparam("held_epoch"),
            memory.c.revision == bindparam("held_revision"),
            memory.c.applied_position == bindparam("held_applied_position"),
            memory.c.seal_position.is_not_distinct_from(bindparam("held_seal_position")),
            *(() if by_hand else (memory.c.status == "active",)),
            # Always true: it joins the clock.
            *((_READ_CLOCK.c.at.is_not(None),) if reads else ()),
        )
        .values(changes)
        .returning(
            memory.c.has_work,
            (memory.c.entry_revision == memory.c.revision).label("entered"),
            *((_OLDEST_SECONDS,) if reads else ()),
        )
    )


_NEW_KEYS = "%(held_session_key)s, %(held_memory_id)s, %(held_revision)s + 1, %(tenant)s"
_INTO = "(session_key, memory_id, revision, tenant_id"

#: Writes the row of a new revision.
INSERT_REVISION = f"""
    INSERT INTO revision {_INTO}, parent_revision, from_position, to_position, kind, epoch,
        digest, comment, restored_revision, schema_source, undone, read_positions)
    SELECT {_NEW_KEYS}, %(held_revision)s, %(held_applied_position)s, %(new_applied_position)s,
        %(kind)s, %(held_epoch)s, %(digest)s, %(comment)s, %(restored_revision)s,
        %(schema_source)s, %(undone)s::bigint[], %(read_positions)s::bigint[]"""
_REVISION = f"""
made AS ({INSERT_REVISION}
    FROM moved
    RETURNING true
)"""
# SELECT: as in `storage.memories.entries`.
_AMENDMENTS = f""",
amended AS (
    INSERT INTO amendment {_INTO}, ordinal, path, op, value, op_corrected)
    SELECT {_NEW_KEYS}, t.ordinal, t.path, t.op, t.value, t.corrected
    FROM made, unnest((SELECT %(paths)s::text[]), (SELECT %(ops)s::text[]),
        (SELECT %(values)s::text[]), (SELECT %(corrected)s::boolean[]))
        WITH ORDINALITY AS t (path, op, value, corrected, ordinal)
)"""  # noqa: S608 - as above
_REJECTIONS = f""",
rejected AS (
    INSERT INTO rejection {_INTO}, ordinal, proposal, reason)
    SELECT {_NEW_KEYS}, t.ordinal, t.proposal, t.reason
    FROM made, unnest((SELECT %(proposals)s::text[]), (SELECT %(reasons)s::text[]))
        WITH ORDINALITY AS t (proposal, reason, ordinal)
)"""  # noqa: S608 - as above
_BASE = f""",
based AS (
    INSERT INTO prism_base {_INTO}, value) SELECT {_NEW_KEYS}, %(new_base)s FROM made
)"""  # noqa: S608 - as above
_VALUE = """,
valued AS (
    UPDATE prism_value SET revision = %(held_revision)s + 1{changes} FROM made
    WHERE session_key = %(held_session_key)s AND memory_id = %(held_memory_id)s
    RETURNING unsaved_amendments
)"""
_SNAPSHOT = f""",
saved AS (
    INSERT INTO prism_snapshot {_INTO}, value)
    SELECT {_NEW_KEYS}, %(new_value)s FROM valued WHERE unsaved_amendments = 0
)"""  # noqa: S608 - as above
_TRACED = f""",
traced AS ({
    OF_ONE.format(
        session_key="%(held_session_key)s",
        owner_id="%(held_memory_id)s",
        number="%(held_revision)s + 1",
        tenant_id="%(tenant)s",
        source="made",
    )
})"""
_ENTERED = f""",
entered AS (SELECT FROM moved WHERE entered),
{entries.writing("entered", "%(held_session_key)s", "%(held_memory_id)s")}"""
_UNSAVED = "unsaved_amendments + cardinality(%(paths)s::text[])"


@lru_cache(maxsize=256)
def revising(
    names: tuple[str, ...],
    *,
    by_hand: bool,
    consolidates: bool,
    reads: bool,
    may_idle: bool,
    amends: bool,
    rejects: bool,
    based: bool,
    valued: bool,
    traced: bool = False,
    enters: bool = False,
) -> Ready:
    """Returns the statement that writes a revision of a PRISM memory: all of it, or nothing.

    It moves the cursor as `moving` does, then writes the revision's row, on which the rest depends:
    amendments (`amends`), rejections (`rejects`), a new base (`based`), a new value (`valued`), the
    trace context (`traced`), the entries that change (`enters`), and a snapshot once there are
    enough amendments since the last base or snapshot.
    """
    move = moving(names, by_hand=by_hand, consolidates=consolidates, reads=reads, may_idle=may_idle)
    changes = ", value = %(new_value)s" if valued else ""
    counts = amends and not based
    if based:
        changes += ", unsaved_amendments = 0"
    elif counts:
        changes += (
            f", unsaved_amendments = CASE WHEN {_UNSAVED} < %(most_unsaved)s THEN {_UNSAVED}"
            " ELSE 0 END"
        )
    return move.within(
        "WITH moved AS ({}),"
        + _REVISION
        + (_AMENDMENTS if amends else "")
        + (_REJECTIONS if rejects else "")
        + (_BASE if based else "")
        + _VALUE.format(changes=changes)
        + (_SNAPSHOT if counts else "")
        + (_TRACED if traced else "")
        + (_ENTERED if enters else "")
        + "\nSELECT * FROM moved"
    )


CLEAR_WORK = Ready(
    update(memory)
    .where(
        memory.c.session_key == bindparam("session"),
        memory.c.memory_id == bindparam("memory"),
        memory.c.epoch == bindparam("held_epoch"),
        memory.c.status == "active",
        memory.c.consolidate_position.is_(None),
        memory.c.seal_position.is_(None),
    )
    .values(has_work=False)
)
