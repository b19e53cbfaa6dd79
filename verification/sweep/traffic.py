"""The traffic of a sweep: small sessions, one after the other, that reach every fail point.

Each has a producer by stream, one by single calls and appends without one, a PRISM memory
that folds, is consolidated, edited and stopped once, a tree that is sealed and a state memory
with episodes; and questions are asked. Whatever fails is done again until it is done: what is
there in the end is therefore known.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from grpc import aio

from palimpsest import (
    AlreadyExists,
    Client,
    Edit,
    Memory,
    MemoryInfo,
    MemoryStatus,
    PalimpsestError,
    Session,
)
from palimpsest._convert_chunks import digest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from verification.batches import append_batch
from verification.chaos.history import Acked, Edited, Requested, Sent, Writer
from verification.chaos.workload import chunk_text
from verification.sweep.model import REFUSES

SCHEMA = "class N:\n    topics: dict[str, str]\n    edits: dict[str, str]\n"
#: Chunks of the producer that streams, of the one that calls, and without one, in two requests.
STREAMED = 6
CALLED = 3
REQUESTED = 3
#: Pause before what failed is done again.
AGAIN_SECONDS = 0.05
#: Between two looks whether a session is done.
LOOK_SECONDS = 1.0
#: How long one call may take: a server that dies during it does not answer.
CALL_SECONDS = 10.0
#: A session that is not done after so long hangs.
HANG_SECONDS = 600.0

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class SessionRecord:
    """What a session was sent, and how the service responded."""

    name: str
    #: Position by producer and sequence, of what was acked.
    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Marks of the edits that came back.
    edits: set[str] = field(default_factory=set)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Returns what a call returns that may be made again."""
    while True:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call()
        except AlreadyExists:
            raise
        except (PalimpsestError, aio.AioRpcError, TimeoutError):
            await asyncio.sleep(AGAIN_SECONDS)


async def make(call: Callable[[], Awaitable[object]]) -> None:
    """Creates something that can exist only once, also after a reply that was lost."""
    with suppress(AlreadyExists):
        await insist(call)


class Traffic:
    """Runs sessions in lanes, until it is stopped."""

    def __init__(self, address: str, seed: int, prefix: str, history: Path) -> None:
        """The names of its sessions, and all that follows from them, begin with `prefix`.

        What is sent and acked is written to `history`.
        """
        self._address = address
        self._history = Writer(history)
        self._seed = seed
        self._prefix = prefix
        self.records: list[SessionRecord] = []
        #: Sessions that are done.
        self.done = 0
        #: Answers that came.
        self.answers = 0
        self.is_over = False

    async def run(self, lane: int) -> None:
        """One session after the other."""
        chosen = random.Random(f"{self._seed}:{self._prefix}:{lane}")
        async with Client(self._address) as client:
            number = 0
            while not self.is_over:
                number += 1
                record = SessionRecord(name=f"{self._prefix}l{lane}n{number}")
                self.records.append(record)
                async with asyncio.timeout(HANG_SECONDS):
                    await self._session(client, record, chosen)
                self.done += 1

    async def _session(self, client: Client, record: SessionRecord, chosen: random.Random) -> None:
        session = client.session(record.name)
        await make(session.create)
        await make(
            lambda: session.create_memory(
                "facts",
                schema_source=SCHEMA,
                task=f"Task of {record.name}.",
                encoding="amendments",
                chunk_tokens=60,
                fold_tokens=60,
            )
        )
        await make(lambda: session.create_tree("tree", segment_tokens=64, max_children=2))
        await make(
            lambda: session.create_state(
                "state",
                task=record.name,
                period=2,
                episode_vectors=2,
                # The model server refuses the key once for each of these models: work waits,
                # a probe finds out that it has passed, and work continues.
                model=f"openai/{REFUSES}{record.name}",
            )
        )
        produced = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._produce(session, record, chosen, produced))
            tasks.create_task(self._change(client, session, record))
            tasks.create_task(self._ask(session, produced))
        await self._finish(session)

    async def _produce(
        self,
        session: Session,
        record: SessionRecord,
        chosen: random.Random,
        produced: asyncio.Event,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._call(session, record, chosen))
            tasks.create_task(self._request(session, record, chosen))
            tasks.create_task(self._stream(session, record, chosen))
        produced.set()

    async def _stream(self, session: Session, record: SessionRecord, chosen: random.Random) -> None:
        name = record.name + "a"
        durable = 0
        while durable < STREAMED:
            try:
                async with (
                    asyncio.timeout(CALL_SECONDS),
                    session.producer(name, epoch=1, give_up_seconds=CALL_SECONDS) as producer,
                ):
                    durable = producer.last_acked_sequence
                    for sequence in range(durable + 1, STREAMED + 1):
                        self._sent(session.id, name, sequence)
                        await producer.append(chunk_text(name, sequence))
                        if chosen.random() < 0.7:
                            ack = await producer.flush()
                            assert ack is not None, "something was appended"
                            self._acked(
                                record, name, ack.producer_sequence, ack.position, ack.read_token
                            )
                            await asyncio.sleep(chosen.random() * AGAIN_SECONDS)
                    await producer.flush()
                    durable = producer.last_acked_sequence
            except (PalimpsestError, aio.AioRpcError, TimeoutError):
                await asyncio.sleep(AGAIN_SECONDS)

    async def _call(self, session: Session, record: SessionRecord, chosen: random.Random) -> None:
        name = record.name + "b"
        async with Client(self._address) as own:
            stub = session_service_pb2_grpc.SessionServiceStub(own.channel)
            for sequence in range(1, CALLED + 1):
                # After some of the other's, which so gets a log of its own for a while.
                await asyncio.sleep(4 * chosen.random() * AGAIN_SECONDS)
                chunk = chunks_pb2.Chunk(text=chunk_text(name, sequence))
                chunk.producer_sequence, chunk.digest = sequence, digest(chunk)
                opening = session_service_pb2.AppendChunksRequest.Open(
                    session=session.id, producer_id=name, epoch=1
                )
                self._sent(session.id, name, sequence)
                ack: session_service_pb2.AppendChunksResponse.Ack = await insist(
                    partial(append_batch, stub, opening, [chunk], timeout=CALL_SECONDS)
                )
                self._acked(record, name, sequence, ack.through_position, ack.read_token)

    async def _request(
        self, session: Session, record: SessionRecord, chosen: random.Random
    ) -> None:
        name = record.name + "c"
        for first, last in ((1, 1), (2, REQUESTED)):
            await asyncio.sleep(4 * chosen.random() * AGAIN_SECONDS)
            sequences = range(first, last + 1)
            for sequence in sequences:
                self._sent(session.id, name, sequence)
            texts = [chunk_text(name, sequence) for sequence in sequences]
            request_id = f"{name}-{first}"
            done = await insist(
                partial(session.append, texts, request_id=request_id, timeout=CALL_SECONDS)
            )
            for number, sequence in enumerate(sequences):
                record.acked[name, sequence] = done.positions.first + number
            self._history.write(
                Requested(
                    client=name,
                    session=session.id,
                    producer=name,
                    first_sequence=first,
                    last_sequence=last,
                    first_position=done.positions.first,
                    position=done.positions.last,
                    at=time.monotonic(),
                )
            )

    def _sent(self, session: str, producer: str, sequence: int) -> None:
        self._history.write(
            Sent(
                client=producer,
                session=session,
                producer=producer,
                epoch=1,
                first_sequence=sequence,
                last_sequence=sequence,
                at=time.monotonic(),
            )
        )

    def _acked(
        self, record: SessionRecord, producer: str, sequence: int, position: int, token: str
    ) -> None:
        record.acked[producer, sequence] = position
        self._history.write(
            Acked(
                client=producer,
                session=record.name,
                producer=producer,
                sequence=sequence,
                position=position,
                token=token,
                at=time.monotonic(),
            )
        )

    async def _change(self, client: Client, session: Session, record: SessionRecord) -> None:
        facts = session.memory("facts")
        for number in (1, 2):
            mark = f"e{number}"
            # An edit that came back twice is one: it puts a value where it is.
            await self._edit(facts, record, mark)
            record.edits.add(mark)
        await self._roll_back(facts)
        await insist(facts.consolidate)
        await insist(facts.retry)
        await insist(partial(client.retry_stalled, session.id))
        await insist(partial(facts.update, model=""))

    async def _edit(self, facts: Memory, record: SessionRecord, mark: str) -> None:
        tries = 0

        def note(revision: int, returned: float) -> None:
            self._history.write(
                Edited(
                    client=record.name,
                    session=record.name,
                    memory="facts",
                    expected_revision=0,
                    mark=mark,
                    revision=revision,
                    invoked=time.monotonic(),
                    returned=returned,
                )
            )

        async def once() -> int:
            nonlocal tries
            tries += 1
            note(0, 0.0)
            return (await facts.edit([Edit.put(f"$.edits.{mark}", mark)])).info.revision

        revision = await insist(once)
        # Which of several tries made it is unknown.
        note(revision if tries == 1 else 0, time.monotonic())

    async def _roll_back(self, facts: Memory) -> None:
        """To what it is now, else what it was: nothing is lost."""
        for _ in range(20):
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    revision = (await facts.get()).revision
                    await facts.rollback(revision, expected_revision=revision)
                    return
            except (PalimpsestError, TimeoutError):
                await asyncio.sleep(AGAIN_SECONDS)

    async def _ask(self, session: Session, produced: asyncio.Event) -> None:
        await self._answer(lambda: session.memory("facts").ask("What bends?", timeout=9))
        await produced.wait()
        await self._answer(lambda: session.ask("Who waits?", reader="whole", timeout=9))

    async def _answer(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Asks once: an answer that fails, or comes too late, is no matter of traffic."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await ask()
                self.answers += 1
        except (PalimpsestError, aio.AioRpcError, TimeoutError):
            pass

    async def _finish(self, session: Session) -> None:
        """Waits until all is applied; then a last consolidation and the seal, and again."""
        await self._until(session, lambda info: info.applied_position == info.head)
        facts = session.memory("facts")
        before = (await insist(facts.get)).revision
        await insist(facts.consolidate)
        await insist(lambda: session.tree("tree").seal())
        await self._until(
            session, lambda info: info.kind == "prism" or info.status is MemoryStatus.SEALED
        )
        while not await insist(partial(_is_consolidated, facts, before)):
            await self._until(session, lambda _: True)
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(self, session: Session, done: Callable[[MemoryInfo], bool]) -> None:
        """Waits until `done` of all memories but the state; retries memories that stalled."""
        while True:
            infos = await insist(session.memories)
            for info in infos:
                if info.status is MemoryStatus.STALLED:
                    await insist(session.memory(info.id).retry)
            if all(done(info) for info in infos if info.kind != "state"):
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _is_consolidated(memory: Memory, after_revision: int) -> bool:
    kinds = [one.kind async for one in memory.revisions() if one.revision > after_revision]
    return "consolidation" in kinds
