"""Sets how much sources are trusted, quarantines them, and releases them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.access.trust import SourceRule, Trust
from service.domain.values.errors import Exhausted, FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from service.usecases.access.source_changes import apply_changes
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.going_back import UndoneRevisions
from storage.access import audit, source_trust
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import source_changes
from storage.memories.source_changes import ChangedMemory, SourceChange
from storage.prism import quarantine

#: Revisions of all memories to which a call applies a change in its own transaction, smallest
#: memories first: about a second. The rest is left to workers, one transaction each.
AT_ONCE_REVISIONS = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedMemory:
    """What a quarantine or a release did to a memory."""

    memory: str
    kind: str
    #: None: the memory does not rest on the source, or has yet to apply the change.
    undone: UndoneRevisions | None
    #: It is large, so a worker applies the change after the call.
    is_pending: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineResult:
    """What a quarantine or a release did to a session."""

    session: str
    source: str
    trust: Trust
    memories: Sequence[QuarantinedMemory]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSources:
    """Rules for sources, and what is left to do of a quarantine or a release."""

    rules: Sequence[SourceRule]
    #: Memories of the session to which workers have yet to apply it.
    pending_memories: Sequence[str]


class Sources:
    """What clients do with the trust in sources, in one server process."""

    def __init__(self, database: Database, wake_ups: WakeUps, *, max_memory_bytes: int) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._max_memory_bytes = max_memory_bytes

    async def rules(self, tenant_id: UUID, session: str) -> FoundSources:
        """Returns the rules of a session, then those of the tenant; without one the latter alone.

        Raises NotFound.
        """
        key = session_key(tenant_id, session) if session else None
        async with self._database.transaction(tenant_id, name="sources") as tx:
            if key is not None and await sessions.get(tx, key) is None:
                raise session_not_found(session)
            pending = () if key is None else await source_changes.list_names(tx, key)
            rules = await source_trust.list_rules(tx, key)
        return FoundSources(rules=rules, pending_memories=pending)

    async def set_trust(
        self, tenant_id: UUID, session: str, source: str, trust: Trust | None
    ) -> SourceRule:
        """Sets the level of a source in a session, or without one in all; None removes the rule.

        Raises NotFound, FailedPrecondition (it is quarantined), Exhausted (too many rules).
        """
        key = session_key(tenant_id, session) if session else tenant_id
        rule = SourceRule(source=source, trust=trust or Trust.TRUSTED, is_tenant_wide=not session)
        async with self._database.transaction(tenant_id, name="sources") as tx:
            if session:
                await self._lock(tx, session)
                # What is under way has read it at the level before.
                await quarantine.fence(tx, key)
            if trust is None:
                await source_trust.remove_rule(tx, key, source)
                is_set = source not in await _quarantined(tx, key)
            else:
                is_set = await source_trust.set_rule(tx, key, source, trust)
            if not is_set:
                raise await _refused(tx, key, source)
            details = {"trust": trust.value if trust else "unset"}
            await _record(tx, AuditAction.SOURCE_TRUST, session, source, details)
            return await store_result(tx, rule)

    async def quarantine(self, tenant_id: UUID, session: str, source: str) -> QuarantineResult:
        """Blocks a source of a session, and undoes what its memories derived from it.

        Raises NotFound, FailedPrecondition (it is being released), Exhausted (too many rules).
        """
        key = session_key(tenant_id, session)

        async def run(tx: Transaction) -> QuarantineResult:
            await self._lock(tx, session)
            if await source_changes.is_releasing(tx, key, source):
                raise _being_released(source)
            changed = await source_changes.add(tx, key, SourceChange(source=source))
            if not await source_trust.quarantine(tx, key, source):
                raise await _refused(tx, key, source)
            result = QuarantineResult(
                session=session,
                source=source,
                trust=Trust.BLOCKED,
                memories=await self._applied(tx, key, changed),
            )
            await _record(tx, AuditAction.SOURCE_QUARANTINE, session, source, _counts(result))
            return await store_result(tx, result)

        return await self._changed(tenant_id, key, run)

    async def release(self, tenant_id: UUID, session: str, source: str) -> QuarantineResult:
        """Restores what a quarantine undid, and has memories read what was held meanwhile.

        Raises NotFound, FailedPrecondition (it is not quarantined).
        """
        key = session_key(tenant_id, session)

        async def run(tx: Transaction) -> QuarantineResult:
            await self._lock(tx, session)
            released = await source_trust.release(tx, key, source)
            if released is None:
                raise FailedPrecondition(
                    Reason.SOURCE_NOT_QUARANTINED,
                    f"source {source!r} is not quarantined in session {session!r}: ListSources"
                    " lists those that are",
                    {"source": source},
                )
            since, trust = released
            changed = await source_changes.add(tx, key, SourceChange(source=source, since=since))
            done = await self._applied(tx, key, changed)
            result = QuarantineResult(session=session, source=source, trust=trust, memories=done)
            await _record(tx, AuditAction.SOURCE_RELEASE, session, source, _counts(result))
            return await store_result(tx, result)

        return await self._changed(tenant_id, key, run)

    async def _changed(
        self, tenant_id: UUID, key: UUID, run: Callable[[Transaction], Awaitable[QuarantineResult]]
    ) -> QuarantineResult:
        """Runs a change, which may wait for a memory that applies an earlier one."""
        result = await tried_again(self._database, tenant_id, run, name="sources")
        # A step under way was in vain, and there may be chunks to read again.
        memories = [(key, memory_id(key, one.memory)) for one in result.memories]
        self._wake_ups.add_memories(tenant_id, memories)
        return result

    @staticmethod
    async def _lock(tx: Transaction, session: str) -> None:
        """Keeps the head of a session where it is: in the order in which a step locks. Raises
        NotFound."""
        if await sessions.lock_head(tx, session_key(tx.tenant_id, session)) is None:
            raise session_not_found(session)

    async def _applied(
        self, tx: Transaction, key: UUID, changed: Sequence[ChangedMemory]
    ) -> Sequence[QuarantinedMemory]:
        """Applies a change to small memories at once, and leaves the others to workers."""
        left, at_once = AT_ONCE_REVISIONS, dict[UUID, UndoneRevisions | None]()
        for one in sorted(changed, key=lambda one: one.revision):
            left -= one.revision
            if left < 0:
                await source_changes.make_late(tx, key)
                break
            at_once[one.memory_id] = await apply_changes(
                tx, key, one.memory_id, max_memory_bytes=self._max_memory_bytes
            )
        return [
            QuarantinedMemory(
                memory=one.name,
                kind=one.kind,
                undone=at_once.get(one.memory_id),
                is_pending=one.memory_id not in at_once,
            )
            for one in changed
        ]


def _counts(result: QuarantineResult) -> dict[str, Detail]:
    undone = [one.undone for one in result.memories if one.undone is not None]
    return {
        "memories": len(undone),
        "revisions": sum(one.undone for one in undone),
        "reread": sum(one.reread for one in undone),
        "pending": sum(one.is_pending for one in result.memories),
    }


async def _record(
    tx: Transaction, action: AuditAction, session: str, source: str, details: Mapping[str, Detail]
) -> None:
    entry = AuditEntry(action=action, session=session, target=source, details=details)
    await audit.record(tx, entry)


async def _quarantined(tx: Transaction, key: UUID) -> set[str]:
    return {one.source for one in await source_trust.list_rules(tx, key) if one.is_quarantined}


def _being_released(source: str) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.SOURCE_QUARANTINED,
        f"source {source!r} is still being released: quarantine it again once ListSources has no"
        " pending memories",
        {"source": source},
    )


async def _refused(tx: Transaction, key: UUID, source: str) -> FailedPrecondition | Exhausted:
    if source in await _quarantined(tx, key):
        return FailedPrecondition(
            Reason.SOURCE_QUARANTINED,
            f"source {source!r} is quarantined, and blocked until it is released: call"
            " ReleaseSource first",
            {"source": source},
        )
    most = source_trust.MAX_RULES
    return Exhausted(
        Reason.TOO_MANY_SOURCE_RULES,
        f"there are {most} rules for sources already, which is the limit: remove one, or use a"
        " beginning such as 'web:*' for several",
        {"limit": most},
    )
