"""Sets how much sources are trusted, quarantines them, and releases them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.access.trust import SourceRule, Trust
from service.domain.prism.spec import PrismSpec
from service.domain.values.errors import Exhausted, FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.going_back import ReleasedSource, UndoneRevisions, go_back
from service.usecases.prism.quarantine import apply_quarantines
from storage.access import audit, source_trust
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import revisions
from storage.prism import quarantine
from storage.search import chunk_index


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedMemory:
    """What a quarantine or a release did to a memory."""

    memory: str
    kind: str
    #: None: the memory does not rest on the source.
    undone: UndoneRevisions | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineResult:
    """What a quarantine or a release did to a session."""

    session: str
    source: str
    trust: Trust
    memories: Sequence[QuarantinedMemory]


class Sources:
    """What clients do with the trust in sources, in one server process."""

    def __init__(self, database: Database, wake_ups: WakeUps, *, max_memory_bytes: int) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._max_memory_bytes = max_memory_bytes

    async def rules(self, tenant_id: UUID, session: str) -> Sequence[SourceRule]:
        """Returns the rules of a session, then those of the tenant; without one the latter alone.

        Raises NotFound.
        """
        key = session_key(tenant_id, session) if session else None
        async with self._database.transaction(tenant_id, name="sources") as tx:
            if key is not None and await sessions.get(tx, key) is None:
                raise session_not_found(session)
            return await source_trust.list_rules(tx, key)

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

        Raises NotFound, Exhausted (too many rules).
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="sources") as tx:
            await self._lock(tx, session)
            memories = await quarantine.fence(tx, key)
            if not await source_trust.quarantine(tx, key, source):
                raise await _refused(tx, key, source)
            done = await self._applied(tx, key, memories, f"source {source!r} is quarantined", None)
            result = QuarantineResult(
                session=session, source=source, trust=Trust.BLOCKED, memories=done
            )
            await _record(tx, AuditAction.SOURCE_QUARANTINE, session, source, _counts(result))
            result = await store_result(tx, result)
        self._wake(tenant_id, key, memories)
        return result

    async def release(self, tenant_id: UUID, session: str, source: str) -> QuarantineResult:
        """Restores what a quarantine undid, and has memories read what was held meanwhile.

        Raises NotFound, FailedPrecondition (it is not quarantined).
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="sources") as tx:
            await self._lock(tx, session)
            memories = await quarantine.fence(tx, key)
            released = await source_trust.release(tx, key, source)
            if released is None:
                raise FailedPrecondition(
                    Reason.SOURCE_NOT_QUARANTINED,
                    f"source {source!r} is not quarantined in session {session!r}: ListSources"
                    " lists those that are",
                    {"source": source},
                )
            since, trust = released
            done = await self._applied(
                tx,
                key,
                memories,
                f"source {source!r} is released",
                ReleasedSource(source=source, since=since),
            )
            result = QuarantineResult(session=session, source=source, trust=trust, memories=done)
            await _record(tx, AuditAction.SOURCE_RELEASE, session, source, _counts(result))
            result = await store_result(tx, result)
        self._wake(tenant_id, key, memories)
        return result

    def _wake(self, tenant_id: UUID, key: UUID, memories: Sequence[tuple[UUID, str, str]]) -> None:
        """Wakes workers: a step under way was in vain, and there may be chunks to read again."""
        self._wake_ups.add_memories(tenant_id, [(key, memory_id) for memory_id, _, _ in memories])

    @staticmethod
    async def _lock(tx: Transaction, session: str) -> None:
        """Keeps the head of a session where it is: in the order in which a step locks. Raises
        NotFound."""
        if await sessions.lock_head(tx, session_key(tx.tenant_id, session)) is None:
            raise session_not_found(session)

    async def _applied(
        self,
        tx: Transaction,
        key: UUID,
        memories: Sequence[tuple[UUID, str, str]],
        comment: str,
        released: ReleasedSource | None,
    ) -> Sequence[QuarantinedMemory]:
        done: list[QuarantinedMemory] = []
        for memory_id, name, kind in memories:
            held = await revisions.lock(tx, key, memory_id)
            assert held is not None, "it was locked just now"
            if kind == PrismSpec.kind:
                undone = await apply_quarantines(
                    tx,
                    held,
                    max_memory_bytes=self._max_memory_bytes,
                    comment=comment,
                    released=released,
                )
            else:
                undone = await go_back(tx, held, comment=comment, released=released)
            done.append(QuarantinedMemory(memory=name, kind=kind, undone=undone))
        # Entries are written again with the chunks that they rest on.
        await chunk_index.note_unlisted(tx, key)
        return done


def _counts(result: QuarantineResult) -> dict[str, Detail]:
    undone = [one.undone for one in result.memories if one.undone is not None]
    return {
        "memories": len(undone),
        "revisions": sum(one.undone for one in undone),
        "reread": sum(one.reread for one in undone),
    }


async def _record(
    tx: Transaction, action: AuditAction, session: str, source: str, details: Mapping[str, Detail]
) -> None:
    entry = AuditEntry(action=action, session=session, target=source, details=details)
    await audit.record(tx, entry)


async def _quarantined(tx: Transaction, key: UUID) -> set[str]:
    return {one.source for one in await source_trust.list_rules(tx, key) if one.is_quarantined}


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
