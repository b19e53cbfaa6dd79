"""The statements of a step's transaction, compiled once; `storage.revisions` runs them."""

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
    insert,
    or_,
    select,
    update,
)

from service.domain.flows import NO_USE
from storage.ready import Ready
from storage.tables import (
    amendment,
    chunk,
    dead_letter,
    memory,
    prism_base,
    prism_snapshot,
    prism_value,
    rejection,
    revision,
)

# A constant: `startswith` puts it together with an operator that may depend on settings, which
# Citus does not take where an UPDATE tells what it wrote.
_NO_USE = f"{NO_USE}%"

# Each relation has the session's key from outside: by that Citus finds where they all are.
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
        # Else, when the provider was away for example, what was paid for is used.
        dead_letter.c.cause.like(_NO_USE),
    )
    .correlate(memory)
    .scalar_subquery()
    .label("retries"),
)


CLAIM_NAMES = tuple(column.key for column in CLAIM)


TAKE = Ready(
    update(memory)
    .where(
        memory.c.session_key == bindparam("session"),
        memory.c.memory_id == bindparam("memory"),
        memory.c.kind == bindparam("of_kind"),
        memory.c.status == "active",
        memory.c.has_work,
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


# By the database's clock alone: those of workers may differ. Read beside the row, since Citus
# takes no function of time where an UPDATE tells what it wrote.
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


@lru_cache(maxsize=64)
def moving(
    names: tuple[str, ...], *, by_hand: bool, consolidates: bool, reads: bool = False
) -> Ready:
    """Returns the statement that moves a cursor and changes the columns `names`.

    Where the step `reads`, its row also has the age in seconds of the oldest chunk that it
    read, or of the memory, which may be younger.
    """
    changes: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    still_wanted: ColumnElement[Any] = memory.c.consolidate_position
    if consolidates:
        # One that was asked for since then waits for chunks that are not read yet.
        since = memory.c.consolidate_position > bindparam("held_applied_position")
        still_wanted = case((since, memory.c.consolidate_position))
        changes["consolidate_position"] = still_wanted
    if not by_hand:
        more = bindparam("more", type_=Boolean)
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
            # Always so: it is what joins the clock.
            *((_READ_CLOCK.c.at.is_not(None),) if reads else ()),
        )
        .values(changes)
        .returning(memory.c.has_work, *((_OLDEST_SECONDS,) if reads else ()))
    )


KEYS = ("session_key", "memory_id", "revision", "tenant_id")
INSERT_REVISION = Ready(
    insert(revision),
    (
        *KEYS,
        "parent_revision",
        "from_position",
        "to_position",
        "kind",
        "epoch",
        "digest",
        "comment",
        "restored_revision",
        "schema_source",
    ),
)
INSERT_AMENDMENT = Ready(
    insert(amendment), (*KEYS, "ordinal", "path", "op", "value", "op_corrected")
)
INSERT_REJECTION = Ready(insert(rejection), (*KEYS, "ordinal", "proposal", "reason"))
INSERT_BASE = Ready(insert(prism_base), (*KEYS, "value"))
INSERT_SNAPSHOT = Ready(insert(prism_snapshot), (*KEYS, "value"))


@lru_cache(maxsize=8)
def writing_value(*, valued: bool, saved: bool, adds: bool) -> Ready:
    """The statement that moves a value on.

    With another value (`valued`), behind a new base (`saved`), or with more amendments that
    neither a base nor a snapshot has (`adds`).
    """
    changes: dict[str, Any] = {"revision": bindparam("new_revision")}
    if valued:
        changes["value"] = bindparam("new_value")
    if saved:
        changes["unsaved_amendments"] = 0
    elif adds:
        unsaved = prism_value.c.unsaved_amendments + bindparam("more", type_=Integer)
        limit = bindparam("limit", type_=Integer)
        changes["unsaved_amendments"] = case((unsaved >= limit, 0), else_=unsaved)
    return Ready(
        update(prism_value)
        .where(
            prism_value.c.session_key == bindparam("of_session"),
            prism_value.c.memory_id == bindparam("of_memory"),
        )
        .values(changes)
        .returning(prism_value.c.unsaved_amendments)
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
