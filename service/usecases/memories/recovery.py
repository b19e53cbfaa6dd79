"""Recovery: wakes what waits for a model, one item as a probe, and all when it has passed."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import structlog

from service.domain.calls.conditions import Condition
from service.domain.prompting.faults import Fault
from service.llm.gateway.circuits import Circuits
from service.telemetry import meter
from service.telemetry.names import Metric
from service.usecases.log.wake_ups import WakeUps
from storage.calls import conditions
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.memories import stalls, waiting
from storage.memories.waiting import WaitingWork
from storage.operations import tenants

_log = structlog.get_logger("palimpsest.recovery")

#: How often a worker looks for conditions that have passed, in seconds.
LOOK_SECONDS = 1.0
#: It lists what waits at least once in so many looks: a condition may have passed in the moment
#: in which work was put off.
IDLE_LOOKS = 5
#: Items of one kind and tenant that a look wakes.
WAKE_ITEMS = 500
#: A condition for which nothing waits is forgotten when its probe has been due for so long.
UNWANTED_SECONDS = 60.0
#: Tenants that are read at once.
_TENANTS = 1000

_WOKEN = meter().create_counter(
    Metric.RECOVERY_WOKEN, description="Work that was woken when its model replied again"
)


class StoredConditions:
    """Keeps conditions in the database, for `Circuits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> Sequence[Condition]:
        """Returns all conditions. Raises StorageError."""
        async with self._database.without_tenant(name="recovery") as tx:
            return await conditions.read(tx)

    async def add(
        self, *, deployment: str, model: str, fault: Fault, cause: str, probe_seconds: float
    ) -> bool:
        """Notes a condition; False when one of that deployment was noted before, or it cannot."""
        added = False
        with _noted():
            async with self._database.without_tenant(name="recovery.note") as tx:
                added = await conditions.add(
                    tx,
                    deployment=deployment,
                    model=model,
                    fault=fault,
                    cause=cause,
                    probe_seconds=probe_seconds,
                )
        return added

    async def take_probe(self, deployment: str, next_seconds: float) -> bool:
        """Takes the one probe that is due. Raises StorageError."""
        async with self._database.without_tenant(name="recovery.probe") as tx:
            return await conditions.take_probe(tx, deployment, next_seconds)

    async def keep(
        self, *, deployment: str, fault: Fault, cause: str, probe_seconds: float
    ) -> None:
        """Notes that a probe failed."""
        with _noted():
            async with self._database.without_tenant(name="recovery") as tx:
                await conditions.keep(
                    tx,
                    deployment=deployment,
                    fault=fault,
                    cause=cause,
                    probe_seconds=probe_seconds,
                )

    async def remove(self, condition: Condition) -> None:
        """Forgets a condition that has passed."""
        with _noted():
            async with self._database.without_tenant(name="recovery.forget") as tx:
                await conditions.remove(tx, condition)


@contextmanager
def _noted() -> Iterator[None]:
    """Surrounds what a call must not fail by: its reply is durable, whatever is noted of it."""
    try:
        yield
    except StorageError as error:
        _log.warning("a condition is not noted", cause=str(error))


class Recovery:
    """Wakes what waits for models, in one worker process. Any number of them may do so."""

    def __init__(
        self,
        database: Database,
        circuits: Circuits,
        wake_ups: WakeUps,
        deployments_of: Callable[[str], Sequence[str]],
    ) -> None:
        """`deployments_of`: the deployments that serve a model."""
        self._database = database
        self._circuits = circuits
        self._wake_ups = wake_ups
        self._deployments_of = deployments_of
        self._idle = 0
        #: Places that were open at the last look that woke anything.
        self._seen: set[str] = set()
        #: Ambiguous conditions of which the first that were refused wait with the others.
        self._joined: set[tuple[str, datetime]] = set()
        self._looking = asyncio.Lock()

    async def look(self) -> None:
        """Wakes what can go on, and one item where a probe is due. Raises StorageError."""
        async with self._looking:
            found = {one.deployment: one for one in await self._circuits.refresh()}
            for one in found.values():
                await self._join_first(one)
            self._idle += 1
            due = any(one.probe_seconds <= 0 for one in found.values())
            # What waits is listed only where some of it may go on.
            if not due and found.keys() == self._seen and self._idle < IDLE_LOOKS:
                return
            self._idle, self._seen = 0, set(found)
            async with self._database.sweeping(name="recovery") as tx:
                waits = await waiting.list_waiting(tx)
            for model in {one.model for one in waits}:
                await self._wake(model, [one for one in waits if one.model == model], found)
            await self._forget_unwanted(found, {one.model for one in waits})

    async def _join_first(self, condition: Condition) -> None:
        """Retries memories that stalled before it was known that the model is the cause.

        They then wait with the others. The first that are refused cannot know that others will be.
        """
        key = condition.deployment, condition.since
        if not condition.fault.is_ambiguous or key in self._joined:
            return
        after: UUID | None = UUID(int=0)
        while after is not None:
            async with self._database.sweeping(name="recovery") as tx:
                found = await tenants.list_after(tx, after, _TENANTS)
            for one in found:
                await self._join_of(one.tenant_id, condition.model)
            after = found[-1].tenant_id if len(found) == _TENANTS else None
        self._joined.add(key)

    async def _join_of(self, tenant_id: UUID, model: str) -> None:
        async with self._database.transaction(tenant_id, name="recovery") as tx:
            found = await waiting.list_ambiguous(tx, model)
        for key, memory_id in found:
            # A worker tries it again, and it meets the open circuit.
            async with self._database.transaction(tenant_id, name="recovery") as tx:
                await stalls.retry(tx, key, memory_id)

    async def _wake(
        self, model: str, waits: Sequence[WaitingWork], found: dict[str, Condition]
    ) -> None:
        open_ones = [found.get(deployment) for deployment in self._deployments_of(model)]
        if None in open_ones:
            for one in waits:
                await self._wake_some(one, WAKE_ITEMS)
        elif any(one is not None and one.probe_seconds <= 0 for one in open_ones):
            # Another one each time: what is wrong with its text must not keep it closed.
            await self._wake_some(random.choice(waits), 1)

    async def _wake_some(self, waits: WaitingWork, limit: int) -> None:
        async with self._database.transaction(waits.tenant_id, name="recovery.wake") as tx:
            woken = await waiting.wake(tx, waits, limit)
        self._wake_ups.add(woken)
        if 1 < limit == len(woken):
            # There may be more: the next look lists again.
            self._idle = IDLE_LOOKS
        if limit > 1 and woken:
            _WOKEN.add(len(woken))
            _log.info("work goes on", model=waits.model, kind=waits.kind.value, items=len(woken))

    async def _forget_unwanted(self, found: dict[str, Condition], wanted: set[str]) -> None:
        for one in found.values():
            if one.model not in wanted and one.probe_seconds < -UNWANTED_SECONDS:
                async with self._database.without_tenant(name="recovery") as tx:
                    await conditions.remove(tx, one)
