"""The claim of one worker to a memory, and the error for a claim that is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, update

from service.domain.calls.ledger import CallScope
from service.domain.values.memory_specs import MemorySpec
from storage.engine.database import Transaction
from storage.engine.ready import Ready
from storage.tables import memory


class Fenced(Exception):
    """Another worker has taken over the memory, or changed it: the result is void."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A memory that one worker has claimed, until another raises the epoch."""

    tenant_id: UUID
    session_key: UUID
    memory_id: UUID
    epoch: int
    revision: int
    applied_position: int
    #: With the schema as it is now.
    spec: MemorySpec
    #: Failed tries of the step at the cursor.
    attempts: int
    #: The session's.
    incarnation: int | None = None
    #: Chunks up to here are read without waiting for more.
    flush_position: int = 0
    #: A consolidation is wanted once everything up to here is read.
    consolidate_position: int | None = None
    #: Size of the memory after its last consolidation; 0 when there was none.
    consolidated_tokens: int = 0
    #: What the folding policy counted, with the revision that it counted up to.
    fold_state: Any = None
    #: When the newest revision was committed; None where it was just now.
    committed_at: datetime | None = None
    #: A tree is closed once everything up to here is in it.
    seal_position: int | None = None
    #: How often it was retried after it had stalled on useless replies.
    retries: int = 0
    #: What rejections mean for readers: see `service.domain.prism.losses`.
    losses: Mapping[str, Any] | None = None
    #: Positions before the cursor that it reads again, before all others; None: none.
    reread_positions: Sequence[int] | None = None
    #: Quarantines and releases that it has yet to apply: see `storage.memories.source_changes`.
    source_changes: Sequence[Mapping[str, Any]] | None = None
    #: Its session has intents for `intents.forget`.
    has_dead_intents: bool = False
    #: Where the next step ends, when a worker that died had paid for it already.
    paid_position: int | None = None

    def scope(self, occasion: str) -> CallScope:
        """Returns the scope of a call that is made for this memory."""
        return CallScope(
            tenant_id=self.tenant_id,
            session_key=self.session_key,
            memory_id=self.memory_id,
            occasion=occasion,
            incarnation=self.incarnation,
            epoch=self.epoch,
        )


def is_held(held: Claim) -> ColumnElement[bool]:
    """Returns SQL for the memory's row while the claim is valid."""
    return and_(
        memory.c.session_key == held.session_key,
        memory.c.memory_id == held.memory_id,
        memory.c.epoch == held.epoch,
        memory.c.status == "active",
    )


async def change_locked(
    tx: Transaction, held: Claim, *which: ColumnElement[bool], **values: Any
) -> bool:
    """Changes columns of a memory from `revisions.lock` if all of `which` is true.

    Returns whether it did.
    """
    changed = (
        update(memory)
        .where(
            memory.c.session_key == held.session_key, memory.c.memory_id == held.memory_id, *which
        )
        .values(**values)
    )
    return await tx.execute(Ready(changed), prepare=None) == 1


async def change(tx: Transaction, held: Claim, *also: ColumnElement[bool], **values: Any) -> None:
    """Changes columns of a claimed memory.

    Raises Fenced when the claim is no longer valid, or not all of `also` is true.
    """
    if await tx.execute(update(memory).where(is_held(held), *also).values(**values)) != 1:
        raise Fenced
    tx.changed.add(held.memory_id)
