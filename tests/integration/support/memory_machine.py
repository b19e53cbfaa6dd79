"""Runs memories of a kind step by step: what the state machines of all kinds share.

Chunks are appended, two workers process them, the model fails and lies, workers die at any fail
point or lose a memory during a call, clients read and edit. All that they see is written down as
in a campaign, and the checker of campaigns judges it.
"""

import asyncio
import hashlib
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from service.app.kinds import memories_of, use_cases
from service.domain.operations.verifying.chain import Difference
from service.domain.values import fault_hook
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.edit import Editor
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.verify import Verifier
from storage.engine.database import Database
from storage.log import sessions
from storage.memories.memories import StoredMemory
from tests.integration.support.machine_workers import FAULTS, Death, Model, Worker, worker_of
from tests.integration.support.machines import Machine
from tests.integration.support.writing import drop_wake_ups, submission
from verification.chaos.checker import check
from verification.chaos.final_from_tables import final_from
from verification.chaos.history import Acked, Event, ReadMemory, Sent
from verification.chaos.workload import chunk_text

PRODUCERS = ("pa", "pb")
#: Of a batch; most steps of workers have something to read.
MOST_CHUNKS = 7
CHUNKS = st.integers(0, MOST_CHUNKS)
#: Fail points that a worker passes at most before it is killed.
MOST_POINTS = 60
#: Batches of chunks after which the checker may look at everything again.
LOOK_BATCHES = 5
#: How long what is left of a dead worker may take until it is cancelled.
DEATH_SECONDS = 0.5
#: Tries after which what is left to do will never be done.
PATIENCE = 200


class MemoryMachine(Machine):
    """See above; those of each kind say which spec, and what people do."""

    kind: str

    def start(self, *specs: MemorySpec) -> None:
        """A session with memories that are kept so."""
        self.name = self.bench.name()
        self.key = session_key(DEFAULT_TENANT, self.name)
        self.events: list[Event] = []
        self.times = count(1)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.head = 0
        self.batches = 0
        self.memory_names: list[str] = []
        self.bench.run(self._start(specs))

    async def _start(self, specs: tuple[MemorySpec, ...]) -> None:
        self.database = Database.connect(self.bench.url, pool_size=8, name="machine")
        wake_ups, limits = WakeUps(drop_wake_ups), Limits()
        self.watcher = ProgressWatcher(self.database)
        self.memories = memories_of(self.database, wake_ups, self.watcher, b"token-key", limits)
        self.editor = Editor(self.database, self.memories, limits)
        self.appender = Appender(self.database, wake_ups, b"token-key", limits)
        loop = asyncio.get_running_loop()
        self.running = [loop.create_task(one.run()) for one in (self.watcher, self.appender)]
        self.model = Model(events=self.events, times=self.times)
        # Its pool has tasks of its own, which must not be taken for those of a worker.
        async with self.database.direct(DEFAULT_TENANT) as direct:
            await direct.fetch("SELECT 1", ())
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, self.key, self.name)
        for number, spec in enumerate(specs):
            await self.make(f"m{number}", spec)

    async def make(self, name: str, spec: MemorySpec, rebuilt_from: str | None = None) -> None:
        """Another memory."""
        if rebuilt_from is None:
            await self.memories.create(DEFAULT_TENANT, self.name, name, spec)
        else:
            await self.memories.rebuild(DEFAULT_TENANT, self.name, name, spec, rebuilt_from)
        self.memory_names.append(name)

    def now(self) -> float:
        """Returns the time of the next event."""
        return float(next(self.times))

    def teardown(self) -> None:
        """Lets all work end, and checks the result."""
        if not hasattr(self, "model"):
            return
        try:
            self.bench.run(self.settle())
            self.check_all(drained=True)
        finally:
            self.bench.run(self._stop())

    async def _stop(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        await self.database.close()

    def check_all(self, *, drained: bool) -> None:
        """Holds what is there against what was seen."""
        final = self.bench.run(final_from(self.bench.superuser_url, self.database, self.name))
        report = check(self.events, final, drained=drained)
        assert report.violations == []
        assert self.bench.run(self._wrong_entries()) == []

    async def _wrong_entries(self) -> list[Difference]:
        """Returns what is wrong with what searches find in the memories."""
        verifier = Verifier(self.database, use_cases())
        async with self.database.snapshot(DEFAULT_TENANT) as tx:
            found = [await verifier.wrong_entries(tx, self.key, one) for one in self.memory_names]
        return [one for differences in found for one in differences]

    async def settle(self) -> None:
        """Completes the work of all memories, with a model that replies."""
        self.model.faults.clear()
        for name in self.memory_names:
            await self._settle(name)

    async def _settle(self, name: str) -> None:
        for _ in range(PATIENCE):
            stored = await self.stored(name)
            if stored.status == "stalled":
                await self.memories.retry(DEFAULT_TENANT, self.name, name)
            elif self.is_settled(stored):
                return
            # Calls that were under way when their worker died are waited for.
            await self._drain(worker_of(self.kind, self.database, self.model), name)
            await asyncio.sleep(0.002)
        raise AssertionError(f"{name} never comes to its end: {await self.stored(name)}")

    def is_settled(self, stored: StoredMemory) -> bool:
        """Returns whether nothing is left to do."""
        return stored.status == "sealed" or (
            stored.applied_position == stored.head and stored.consolidate_position is None
        )

    async def stored(self, name: str) -> StoredMemory:
        """Returns the memory's row."""
        return await self.memories.get(DEFAULT_TENANT, self.name, name)

    @rule(producer=st.sampled_from(PRODUCERS), chunks=st.integers(1, MOST_CHUNKS))
    def append(self, producer: str, chunks: int) -> None:
        """Chunks come."""
        self.feed(chunks, producer)
        self.did("append")

    def feed(self, chunks: int, producer: str = PRODUCERS[0]) -> None:
        """Appends so many chunks, if any."""
        if not chunks:
            return
        self.batches += 1
        first = self.sequences[producer] + 1
        last = first + chunks - 1
        place: dict[str, Any] = {"client": producer, "session": self.name, "producer": producer}
        self.events.append(
            Sent(**place, epoch=0, first_sequence=first, last_sequence=last, at=self.now())
        )
        texts = [chunk_text(producer, one) for one in range(first, last + 1)]
        sent = submission(self.name, texts, first=first, producer=producer)
        acked = self.bench.run(self._append(sent))
        assert acked.position == self.head + chunks
        self.events.append(
            Acked(
                **place,
                sequence=acked.sequence,
                position=acked.position,
                token=acked.token,
                at=self.now(),
            )
        )
        self.sequences[producer], self.head = last, acked.position

    async def _append(self, sent: Any) -> Any:
        return await self.appender.submit(DEFAULT_TENANT, sent)

    def pick(self, number: int) -> str:
        """Returns one of the memories."""
        return self.memory_names[number % len(self.memory_names)]

    @rule(memory=st.integers(0, 9), chunks=CHUNKS)
    def drain(self, memory: int, chunks: int) -> None:
        """Has a worker advance a memory to the head."""
        self.feed(chunks)
        name = self.pick(memory)
        worker = worker_of(self.kind, self.database, self.model)
        self.bench.run(self._drain(worker, name))
        self.did("drain")

    async def _drain(self, worker: Worker, name: str) -> None:
        stored = await self.stored(name)
        await worker.drain(
            WorkItem(
                kind=WorkKind.MEMORY,
                tenant_id=DEFAULT_TENANT,
                session_key=stored.session_key,
                item_id=stored.memory_id,
            )
        )

    @rule(
        memory=st.integers(0, 9),
        chunks=CHUNKS,
        faults=st.lists(st.sampled_from(FAULTS), max_size=4),
    )
    def poison(self, memory: int, chunks: int, faults: list[str]) -> None:
        """A worker whose model fails, or says what is no use."""
        self.feed(chunks)
        self.model.faults[:] = faults
        self.bench.run(
            self._drain(worker_of(self.kind, self.database, self.model), self.pick(memory))
        )
        self.did("poison")

    @rule(memory=st.integers(0, 9), chunks=CHUNKS, points=st.integers(0, MOST_POINTS))
    def die(self, memory: int, chunks: int, points: int) -> None:
        """A worker dies at a boundary."""
        self.feed(chunks)
        death = Death(points)
        self.bench.run(self._die(self.pick(memory), death))
        self.did("die" if death.point is not None else "drain")

    async def _die(self, name: str, death: Death) -> None:
        others = asyncio.all_tasks()
        fault_hook.install(death)
        draining = asyncio.ensure_future(
            self._drain(worker_of(self.kind, self.database, self.model), name)
        )
        try:
            while not draining.done() and death.point is None:
                await asyncio.wait((draining,), timeout=0.01)
            if death.point is None:
                await draining
            else:
                await _buried((asyncio.all_tasks() - others) | {draining})
        finally:
            fault_hook.install(None)

    @rule(memory=st.integers(0, 9), chunks=CHUNKS)
    def overtake(self, memory: int, chunks: int) -> None:
        """A worker loses a memory to another one right before it commits."""
        self.feed(chunks)
        name = self.pick(memory)
        slow = worker_of(self.kind, self.database, self.model)
        fast = worker_of(self.kind, self.database, self.model)
        slow.meanwhile = lambda: self._drain(fast, name)
        self.bench.run(self._drain(slow, name))
        self.did("overtake" if slow.was_interrupted else "drain")

    @rule(memory=st.integers(0, 9))
    def retry(self, memory: int) -> None:
        """Retries a stalled memory."""
        self.bench.run(self._retry(self.pick(memory)))
        self.did("retry")

    async def _retry(self, name: str) -> None:
        await self.memories.retry(DEFAULT_TENANT, self.name, name)
        assert (await self.stored(name)).status != "stalled"

    @rule(memory=st.integers(0, 9))
    def read(self, memory: int) -> None:
        """Reads a memory as it is."""
        self.bench.run(self._read(self.pick(memory)))
        self.did("read")

    async def _read(self, name: str) -> None:
        invoked = self.now()
        reading = await self.memories.read(
            DEFAULT_TENANT, self.name, name, Consistency(), deadline=None
        )
        value = reading.value_json if self.kind == "prism" else None
        self.events.append(
            ReadMemory(
                client="reader",
                session=self.name,
                memory=name,
                wanted_position=0,
                revision=reading.revision,
                applied_position=reading.applied_position,
                digest="" if value is None else hashlib.sha256(value.encode()).hexdigest(),
                invoked=invoked,
                returned=self.now(),
            )
        )

    @precondition(lambda self: self.batches >= LOOK_BATCHES)
    @rule()
    def look(self) -> None:
        """The checker looks at everything in the middle of it."""
        self.batches = 0
        self.check_all(drained=False)
        self.did("look")


async def _buried(left: set[asyncio.Task[Any]]) -> None:
    """Ends what is left of a dead worker.

    It fails at its next point. Code that gives a connection back may finish, as the server
    does that for a process that is gone.
    """
    _, late = await asyncio.wait(left, timeout=DEATH_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
