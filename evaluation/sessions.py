"""Documents in the service: one session for each, which all strategies of a run share."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import palimpsest
from evaluation.datasets import Document
from evaluation.strategies import Failed, Spent, added
from palimpsest import Memory
from service.domain.log.chunks import Chunk, ChunkKind

PRODUCER = "eval"
#: How often it is looked whether a memory is done.
LOOK_SECONDS = 0.1
#: What the ledger calls the making of memories.
_BUILDING = frozenset({"revise", "consolidate", "schema", "summarize", "compress"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a run's documents are."""

    client: palimpsest.Client
    #: The name of a document's session.
    session_of: Callable[[Document], str]
    #: How long an answer may take, and how long a memory may make no progress.
    timeout_seconds: float

    async def opened(self, document: Document) -> palimpsest.Session:
        """Returns its session, with all of it in the log; what is there already is kept.

        Raises PalimpsestError.
        """
        name = self.session_of(document)
        session = await self.client.create_session(name, exist_ok=True, default_memory=False)
        async with session.producer(PRODUCER) as producer:
            # A resumed run, and the next strategy, find what was appended.
            for chunk in document.chunks[producer.last_acked_sequence :]:
                await _append(producer, chunk)
        return session


async def _append(producer: palimpsest.Producer, chunk: Chunk) -> None:
    match chunk.kind:
        case ChunkKind.TEXT:
            # Parts of a document are paragraphs, and say so by what is after them.
            await producer.append(f"{chunk.text}\n")
        case ChunkKind.MESSAGE:
            await producer.append_message(chunk.role, chunk.text)
        case ChunkKind.STEP:
            await producer.append_step(
                observation=chunk.observation,
                thought=chunk.thought,
                action=chunk.action,
                observed_first=bool(chunk.observed_first),
            )


async def create(
    make: Callable[[], Awaitable[object]],
) -> None:
    """Makes a memory, unless it is there already. Raises PalimpsestError."""
    try:
        await make()
    except palimpsest.PalimpsestError as error:
        if error.reason != "MEMORY_EXISTS":
            raise


async def until(
    memory: Memory, is_done: Callable[[palimpsest.MemoryInfo], bool], timeout_seconds: float
) -> palimpsest.MemoryInfo:
    """Waits for a memory. Raises PalimpsestError when it stalled, Failed without progress."""
    patience = Patience(f"memory {memory.id!r}", timeout_seconds)
    while True:
        info = await memory.look()
        if is_done(info):
            return info
        patience.look(info.revision)
        await asyncio.sleep(LOOK_SECONDS)


async def building(session: palimpsest.Session, memory: str) -> Spent:
    """Returns the usage of building a memory, without questions. Raises PalimpsestError."""
    report = await session.usage(memory)
    return added(spent_of(line.usage) for line in report.lines if line.purpose in _BUILDING)


def spent_of(used: palimpsest.Usage) -> Spent:
    """Sums of the ledger."""
    return Spent(
        calls=used.calls,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost_micro_usd=used.cost_micro_usd if used.unpriced_calls < used.calls else None,
    )


class Patience:
    """Gives up what does not get on."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._reached = -1
        self._until = 0.0

    def look(self, reached: int) -> None:
        """Raises Failed when it was no further than this for too long."""
        now = time.monotonic()
        if reached != self._reached:
            self._reached, self._until = reached, now + self._seconds
        elif now > self._until:
            raise Failed(f"{self._name} did not get on for {self._seconds:g} s")
