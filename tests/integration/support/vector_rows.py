"""State memories that no worker keeps: their vectors are written by hand, beside a plain
model of what each revision has."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from service.domain.log.appending import Submission, SubmittedChunk
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import (
    STEPS_LEVEL,
    State,
    StateVector,
    VectorLevels,
    VectorSource,
    first_state,
)
from service.domain.state.working_context import WorkingContext
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.claims import Claim
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories, revisions
from storage.memories.revisions import NewRevision
from storage.state import vectors
from tests.integration.support.writing import drop_wake_ups

#: Of chunks that only the model has.
NOBODY_KNOWS_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


async def append(database: Database, session: str, chunks: Sequence[Chunk], first: int = 1) -> None:
    """Appends chunks of any kind, the first of them as the producer's `first`."""
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        for start in range(0, len(chunks), 256):
            part = chunks[start : start + 256]
            await appender.submit(
                DEFAULT_TENANT,
                Submission(
                    session=session,
                    session_key=session_key(DEFAULT_TENANT, session),
                    producer_id="p",
                    epoch=0,
                    expected_head=None,
                    chunks=tuple(
                        SubmittedChunk(
                            sequence=first + start + n,
                            chunk=chunk,
                            digest=chunk.digest(),
                            size_bytes=chunk.size_bytes(),
                        )
                        for n, chunk in enumerate(part)
                    ),
                ),
            )
    finally:
        running.cancel()


def chunk(number: int) -> Chunk:
    """Returns a chunk that is known by its number; every kind comes in turn."""
    match number % 3:
        case 0:
            return Chunk(kind=ChunkKind.TEXT, text=f"text {number}", metadata={"n": str(number)})
        case 1:
            return Chunk(kind=ChunkKind.STEP, observation=f"saw {number}", action=f"did {number}")
    return Chunk(kind=ChunkKind.MESSAGE, role="user", text=f"said {number}")


@dataclass(kw_only=True)
class Keeper:
    """A state memory in a test's hands."""

    database: Database
    spec: StateSpec
    session: str = "s"
    name: str = "state"
    head: int = 0
    #: What each revision has, by its number: written, and never read back.
    states: list[State] = field(default_factory=list)
    made: dict[int, StateVector] = field(default_factory=dict)

    @property
    def key(self) -> tuple[UUID, UUID]:
        """The session's and the memory's."""
        key = session_key(DEFAULT_TENANT, self.session)
        return key, memory_id(key, self.name)

    @property
    def newest(self) -> State:
        """What the newest revision has."""
        return self.states[-1]

    def at(self, position: int) -> State:
        """Returns what the newest revision has that holds nothing after a position."""
        return [one for one in self.states if one.applied_position <= position][-1]

    def context(self, position: int) -> WorkingContext:
        """Returns what a context is when the log ends at a position."""
        state = self.at(position)
        recent = [
            SizedStep.of(
                LoggedChunk(
                    position=number,
                    chunk=chunk(number),
                    producer_id="p",
                    producer_sequence=number,
                    created_at=NOBODY_KNOWS_WHEN,
                )
            )
            for number in range(state.applied_position + 1, position + 1)
        ]
        return WorkingContext(state=state, recent=recent)

    async def create(self) -> None:
        """Makes the session and the memory."""
        first = first_state(self.spec)
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, self.key[0], self.session)
            assert await memories.create(
                tx,
                session_key=self.key[0],
                memory_id=self.key[1],
                name=self.name,
                spec=self.spec,
                head=0,
                digest=first.digest,
            )
            await vectors.add_first(tx, *self.key, first.current)
        self.adopt()

    def adopt(self) -> None:
        """Adopts a memory at revision 0 that was made elsewhere."""
        first = first_state(self.spec)
        self.states, self.made = [first], {0: first.current}

    async def append(self, count: int) -> None:
        """Appends the next chunks."""
        chunks = [chunk(self.head + n) for n in range(1, count + 1)]
        await append(self.database, self.session, chunks, self.head + 1)
        self.head += count

    async def step(self, count: int, text: str = "") -> None:
        """Compresses the next chunks, into `text` if one is given."""
        now = self.newest
        number, start = now.revision + 1, now.applied_position
        vector = StateVector(
            revision=number,
            level=STEPS_LEVEL,
            text=text or f"vector {number} up to {start + count}",
            tokens=number,
            made=VectorSource.MODEL,
            after_position=start
            if now.current.made is VectorSource.TASK
            else now.current.from_position,
            from_position=start,
            to_position=start + count,
            replies=1,
        )
        levels = now.levels.with_steps(number, episode_vectors=self.spec.episode_vectors)
        await self._commit("step", start + count, vector, levels)

    async def episode(self) -> None:
        """Compresses the vectors of the level that is full."""
        now = self.newest
        number = now.revision + 1
        level = now.levels.full_level(self.spec.episode_vectors)
        assert level is not None
        children = now.levels.run(level)
        vector = StateVector(
            revision=number,
            level=level + 1,
            text=f"episode {number} of {children}",
            tokens=number,
            made=VectorSource.MODEL,
            after_position=self.made[children[0]].from_position,
            from_position=self.made[children[0]].from_position,
            to_position=self.made[children[-1]].to_position,
            children=children,
            replies=1,
        )
        levels = now.levels.with_episode(number, level + 1)
        await self._commit("episode", now.applied_position, vector, levels)

    def rolled_back(self, revision: int) -> None:
        """Restores the vectors of a revision."""
        now, then = self.newest, self.states[revision]
        self.states.append(
            replace(then, revision=now.revision + 1, applied_position=now.applied_position)
        )

    async def _commit(
        self, kind: str, to_position: int, vector: StateVector, levels: VectorLevels
    ) -> None:
        self.made[vector.revision] = vector
        after = State.of(vector.revision, to_position, levels, self.made)
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            held: Claim | None = await revisions.lock(tx, *self.key)
            assert held is not None
            new = NewRevision(kind=kind, to_position=to_position, digest=after.digest)
            await vectors.commit(tx, held, new, levels, vector, has_work=None)
        self.states.append(after)
