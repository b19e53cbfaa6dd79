"""Looks up what a client names, and refuses what is not there."""

from uuid import UUID

from service.domain.values.errors import (
    Conflict,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    Unauthenticated,
)
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from storage.access import tenants
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.log import sessions
from storage.memories import memories, revisions
from storage.memories.memories import StoredMemory


async def keep_tenant(tx: Transaction) -> None:
    """Keeps the transaction's tenant until its end. Raises Unauthenticated if it is deleted.

    A server may trust its credentials for a while.
    """
    if not await tenants.keep(tx):
        raise Unauthenticated(
            Reason.CREDENTIALS_INVALID,
            "the tenant was deleted: use credentials of another one",
            {"cause": "tenant"},
        )


async def find_memory(tx: Transaction, session: str, name: str, *wanted: str) -> StoredMemory:
    """Returns a memory by its name, of one of the wanted kinds; none: of any.

    Raises NotFound, FailedPrecondition (another kind).
    """
    key = session_key(tx.tenant_id, session)
    stored = await memories.get(tx, key, memory_id(key, name))
    if stored is None:
        raise await missing(tx, session, name)
    refuse_other_kind(name, stored.spec, *wanted)
    return stored


def refuse_other_kind(name: str, spec: MemorySpec, *wanted: str, what: str = "this") -> None:
    """Raises FailedPrecondition when a memory is not of the kind, or kinds, that `what` is for."""
    if wanted and spec.kind not in wanted:
        kinds = " or ".join(wanted)
        raise FailedPrecondition(
            Reason.WRONG_MEMORY_KIND,
            f"memory {name!r} is a {spec.kind} memory; {what} is for {kinds} memories",
            {"memory": name, "kind": spec.kind, "wanted": kinds},
        )


async def lock_memory(tx: Transaction, session: str, name: str, *wanted: str) -> Claim:
    """Returns a memory of one of the wanted kinds, locked for a change by hand.

    Raises NotFound, FailedPrecondition.
    """
    key = session_key(tx.tenant_id, session)
    held = await revisions.lock(tx, key, memory_id(key, name))
    if held is None:
        raise await missing(tx, session, name)
    refuse_other_kind(name, held.spec, *wanted)
    return held


async def missing(tx: Transaction, session: str, name: str) -> NotFound:
    """Returns the refusal of a memory that is not there: it, or its session."""
    if await sessions.get(tx, session_key(tx.tenant_id, session)) is None:
        return session_not_found(session)
    return memory_not_found(session, name)


def memory_not_found(session: str, memory: str) -> NotFound:
    """Returns the refusal of a name that no memory has."""
    return NotFound(
        Reason.MEMORY_NOT_FOUND,
        f"session {session!r} has no memory {memory!r}",
        {"session": session, "memory": memory},
    )


def session_not_found(session: str) -> NotFound:
    """Returns the refusal of a name that no session has."""
    return NotFound(
        Reason.SESSION_NOT_FOUND, f"there is no session {session!r}", {"session": session}
    )


def revision_not_found(memory: str, revision: int, newest: int) -> OutOfRange:
    """Returns the refusal of a revision that is not there (yet)."""
    return OutOfRange(
        Reason.REVISION_NOT_FOUND,
        f"memory {memory!r} has no revision {revision}; the newest is {newest}",
        {"revision": revision, "newest": newest},
    )


def item_key(stored: StoredMemory | Claim) -> tuple[UUID, UUID]:
    """Returns the key of a memory in storage."""
    return stored.session_key, stored.memory_id


def position_not_applied(memory: str, position: int, applied_position: int) -> OutOfRange:
    """Returns the refusal of a position that a memory has not reached."""
    return OutOfRange(
        Reason.POSITION_NOT_APPLIED,
        f"memory {memory!r} is applied up to position {applied_position}, not yet {position}:"
        " read an earlier one, or this one later",
        {"position": position, "applied_position": applied_position},
    )


def being_deleted(what: str, name: str) -> Conflict:
    """Returns the refusal of a name whose rows are still being removed."""
    return Conflict(
        Reason.BEING_DELETED,
        f"{what} {name!r} was deleted, and its rows are still being removed: try again soon",
        {what: name},
    )


def log_expired(session: str, expired_position: int) -> FailedPrecondition:
    """Returns the refusal to read a log from its beginning."""
    return FailedPrecondition(
        Reason.LOG_EXPIRED,
        f"chunks of session {session!r} up to position {expired_position} have expired, so that no"
        " memory can read its log from the beginning: use a memory that is there, rebuild one with"
        " allow_expired_log from what remains, or create the memory in a new session and append to"
        " that what it shall know",
        {"session": session, "expired_position": expired_position},
    )
