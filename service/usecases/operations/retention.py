"""Applies policies of retention, in one worker process at a time for each tenant.

A pass visits the tenant's sessions by name. Its state is the tenant's turn, which is renewed in
each transaction that removes something: a worker that dies loses at most one batch, and another
continues after its lease.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

import structlog

from service.domain.log.redactions import keyed_digest
from service.domain.operations.retention import NO_POLICY, Retention
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric
from service.usecases.answers.ask import occasion
from service.usecases.log.wake_ups import WakeUps
from service.usecases.prism.thinning import thin_history
from storage.engine.database import Database, Transaction
from storage.log import retention_turns
from storage.log.retention_turns import TurnLost
from storage.operations import chunk_retention, retention
from storage.operations.retention import RetainedSession

_log = structlog.get_logger("palimpsest.retention")

#: How often a worker looks for tenants whose turn it is, in seconds.
LOOK_SECONDS = 60.0
#: Tenants that one look visits.
LOOK_TENANTS = 100
#: Sessions that are compared with their policies at once.
PAGE_SESSIONS = 200
#: Rows of one batch; of answers, whose parts are removed one by one, and of their trajectories.
BATCH_ROWS = 1000
BATCH_ANSWERS = 50
#: Chunks of one batch, during which appends to the session wait.
BATCH_CHUNKS = 100
#: Revisions of one batch, during which steps of their memory wait.
BATCH_REVISIONS = 200
#: A turn is free again after so many seconds without a batch: longer than a transaction may take.
LEASE_SECONDS = 120.0
#: After each batch a pass rests for as long as the batch took, so many times over.
REST_FACTOR = 1.0
#: The next pass begins by chance up to so much earlier or later, as a share of the time between.
JITTER = 0.2

_REMOVED = meter().create_counter(
    Metric.RETENTION_REMOVED, description="Rows that retention removed or emptied"
)

#: Removes one batch of at most so many; returns of how many.
_Batch = Callable[[Transaction, UUID, int, int], Awaitable[int]]
_BATCHES: Mapping[str, tuple[_Batch, int]] = {
    "answer_days": (partial(retention.expire_answers, occasion=occasion), BATCH_ANSWERS),
    "trajectory_days": (retention.expire_trajectories, BATCH_ANSWERS),
    "call_days": (retention.expire_calls, BATCH_ROWS),
    "history_days": (thin_history, BATCH_REVISIONS),
}


class Retainer:
    """Applies policies of retention, in one worker process. Any number of them may do so."""

    def __init__(
        self, database: Database, wake_ups: WakeUps, token_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._keyed = partial(keyed_digest, token_key)
        self._pass_seconds = config.retention_seconds

    async def look(self) -> None:
        """Applies the policies of all tenants whose turn it is. Raises StorageError."""
        async with self._database.sweeping(name="retention") as tx:
            tenants = await retention_turns.due_tenants(tx, LOOK_TENANTS)
        for tenant_id in tenants:
            async with self._database.transaction(tenant_id, name="retention") as tx:
                turn = await retention_turns.claim(tx, LEASE_SECONDS)
                policy = await retention_turns.read_policy(tx)
            if turn is None:
                continue
            try:
                await _Pass(
                    self._database, self._wake_ups, self._keyed, tenant_id, turn.lease_id
                ).run(policy, turn.after_name, next_seconds=self._next_seconds())
            except TurnLost:
                _log.info("retention continues in another worker", tenant=str(tenant_id))

    def _next_seconds(self) -> float:
        return self._pass_seconds * random.uniform(1 - JITTER, 1 + JITTER)


class _Pass:
    """One pass over the sessions of a tenant, or the rest of one."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        keyed: Callable[[UUID, bytes], bytes],
        tenant_id: UUID,
        lease_id: UUID,
    ) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._batches: Mapping[str, tuple[_Batch, int]] = {
            **_BATCHES,
            "chunk_days": (partial(chunk_retention.expire_chunks, keyed=keyed), BATCH_CHUNKS),
        }
        self._tenant_id = tenant_id
        self._lease_id = lease_id

    async def run(self, policy: Retention, after_name: str, *, next_seconds: float) -> None:
        """Visits all sessions after a name. Raises TurnLost, StorageError."""
        everyone = bool(policy.over(NO_POLICY))
        while True:
            async with self._database.transaction(self._tenant_id, name="retention") as tx:
                await self._renew(tx)
                page = await retention.page_sessions(
                    tx, after_name, PAGE_SESSIONS, all_sessions=everyone
                )
                policies = {one.session_key: one.retention.over(policy) for one in page}
                due = await retention.due(tx, policies)
            for one in page:
                if one.session_key in due:
                    await self._visit(one, policies[one.session_key], due[one.session_key])
            async with self._database.transaction(self._tenant_id, name="retention") as tx:
                if len(page) < PAGE_SESSIONS:
                    await retention_turns.end(tx, self._lease_id, next_seconds)
                    return
                after_name = page[-1].name
                await self._renew(tx, after_name)

    async def _visit(
        self, session: RetainedSession, policy: Mapping[str, int], due: Sequence[str]
    ) -> None:
        key = session.session_key
        is_over = any(name in due for name in retention.SESSION_NAMES)
        if is_over and await self._expire_session(key, policy):
            return
        for name in self._batches:
            while name in due and await self._remove_some(name, key, policy[name]):
                pass
        if "chunk_days" in due:
            await self._batch("chunk_days", partial(_relist, session_key=key))

    async def _remove_some(self, name: str, key: UUID, days: int) -> int:
        remove, limit = self._batches[name]
        return await self._batch(name, lambda tx: remove(tx, key, days, limit))

    async def _expire_session(self, key: UUID, policy: Mapping[str, int]) -> bool:
        deleted = await self._batch(
            "session_days", lambda tx: retention.expire_session(tx, key, policy)
        )
        if deleted:
            item = WorkItem(
                kind=WorkKind.REMOVAL, tenant_id=self._tenant_id, session_key=key, item_id=key
            )
            self._wake_ups.add([item])
        return bool(deleted)

    async def _batch(self, name: str, remove: Callable[[Transaction], Awaitable[int]]) -> int:
        """Runs one batch in a transaction of its own; returns what it returns."""
        begun = time.monotonic()
        async with self._database.transaction(self._tenant_id, name="retention-remove") as tx:
            removed = await remove(tx)
            await self._renew(tx)
        if removed:
            _REMOVED.add(removed, {Attribute.KIND: name.removesuffix("_days")})
            await asyncio.sleep(REST_FACTOR * (time.monotonic() - begun))
        return removed

    async def _renew(self, tx: Transaction, after_name: str | None = None) -> None:
        await retention_turns.renew(tx, self._lease_id, LEASE_SECONDS, after_name=after_name)


async def _relist(tx: Transaction, session_key: UUID) -> int:
    await chunk_retention.relist(tx, session_key)
    return 0
