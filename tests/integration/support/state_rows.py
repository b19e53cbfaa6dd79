"""A state memory's revisions written straight into the database, with made-up vectors."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from service.domain.log.appending import Submission, SubmittedChunk
from service.domain.log.chunks import Chunk
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import (
    TASK_REVISION,
    StateVector,
    VectorLevels,
    VectorSource,
    first_state,
)
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories, revisions
from storage.memories.memories import StoredMemory
from storage.memories.revisions import NewRevision
from storage.state import vectors
from tests.integration.support.writing import drop_wake_ups
from tests.support.loops import Held

BATCH = 256


async def append(database: Database, session: str, chunks: Sequence[Chunk]) -> None:
    """Appends chunks of any kind, as a producer of its own that has sent nothing before."""
    key = session_key(DEFAULT_TENANT, session)
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        for start in range(0, len(chunks), BATCH):
            sent = tuple(
                SubmittedChunk(
                    sequence=number,
                    chunk=chunk,
                    digest=chunk.digest(),
                    size_bytes=chunk.size_bytes(),
                )
                for number, chunk in enumerate(chunks[start : start + BATCH], start + 1)
            )
            batch = Submission(
                session=session,
                session_key=key,
                producer_id="p",
                epoch=0,
                expected_head=None,
                chunks=sent,
            )
            await appender.submit(DEFAULT_TENANT, batch)
    finally:
        running.cancel()


class StateRows:
    """A memory, and what it held at each revision."""

    def __init__(self, database: Database, session: str, spec: StateSpec) -> None:
        self._database = database
        self._session = session
        self._spec = spec
        self.key = session_key(DEFAULT_TENANT, session)
        self.memory = memory_id(self.key, "m")
        task = first_state(spec).current
        self._tokens = {TASK_REVISION: task.tokens}
        self._levels = [VectorLevels()]
        self._position = 0
        #: For `tests.support.loops.simulate`.
        self.held = [Held(to_position=0, tokens=task.tokens, newest=0)]
        #: Of steps, skipped ones too.
        self.compressions = 0

    @classmethod
    async def made(
        cls, database: Database, session: str, spec: StateSpec, chunks: Sequence[Chunk]
    ) -> "StateRows":
        """Returns a session with these chunks, and a memory that has compressed nothing."""
        rows = cls(database, session, spec)
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, rows.key, session)
        await append(database, session, chunks)
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await memories.create(
                tx,
                session_key=rows.key,
                memory_id=rows.memory,
                name="m",
                spec=spec,
                head=len(chunks),
                digest=b"",
            )
            await vectors.add_first(tx, rows.key, rows.memory, first_state(spec).current)
        return rows

    async def compress(self, steps: int, tokens: int, *, skipped: bool = False) -> None:
        """The next steps become a vector of so many tokens."""
        end = self._position + steps
        vector = self._vector(tokens, 1, self._position, end, skipped=skipped)
        levels = self._levels[-1].with_steps(
            vector.revision, episode_vectors=self._spec.episode_vectors
        )
        self.compressions += 1
        await self._commit("skip" if skipped else "step", end, levels, vector)

    async def lift(self, tokens: int) -> None:
        """The full level becomes a vector of the next one."""
        before = self._levels[-1]
        level = before.full_level(self._spec.episode_vectors)
        assert level is not None, "a level is full"
        vector = self._vector(tokens, level + 1, 0, self._position, children=before.run(level))
        levels = before.with_episode(vector.revision, level + 1)
        await self._commit("episode", self._position, levels, vector)

    async def roll_back(self, revision: int) -> None:
        """Restores what was in use at a revision."""
        levels = self._levels[revision]
        await self._commit("rollback", self._position, levels, None, restored=revision)

    async def read(self) -> StoredMemory:
        """Returns the memory's row."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            stored = await memories.get(tx, self.key, self.memory)
        assert stored is not None
        return stored

    def _vector(
        self,
        tokens: int,
        level: int,
        start: int,
        end: int,
        *,
        children: Sequence[int] = (),
        skipped: bool = False,
    ) -> StateVector:
        revision = len(self._levels)
        self._tokens[revision] = tokens
        return StateVector(
            revision=revision,
            level=level,
            text=f"what is known at {end}",
            tokens=tokens,
            made=VectorSource.SKIPPED if skipped else VectorSource.MODEL,
            after_position=0,
            from_position=start,
            to_position=end,
            children=tuple(children),
            replies=0 if skipped else 1,
        )

    async def _commit(
        self,
        kind: str,
        end: int,
        levels: VectorLevels,
        vector: StateVector | None,
        *,
        restored: int | None = None,
    ) -> None:
        new = NewRevision(kind=kind, to_position=end, digest=b"", restored_revision=restored)
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            claim = await revisions.lock(tx, self.key, self.memory)
            assert claim is not None
            await vectors.commit(tx, claim, new, levels, vector, has_work=None)
        self._levels.append(levels)
        self._position = end
        stack = levels.stack()
        tokens = sum(self._tokens[one] for one in stack)
        self.held.append(Held(to_position=end, tokens=tokens, newest=max(stack)))

    @property
    def ids(self) -> tuple[UUID, UUID]:
        """Session and memory."""
        return self.key, self.memory
