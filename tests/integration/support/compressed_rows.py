"""A state memory written straight into the database, for tests of what reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import update

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import State, StateVector, VectorLevels, VectorSource, first_state
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.claims import Claim
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories, revisions
from storage.memories.revisions import NewRevision
from storage.state import vectors
from storage.tables import memory
from tests.integration.support.writing import append_texts

KEY = session_key(DEFAULT_TENANT, "s")
STATE = memory_id(KEY, "w")
SPEC = StateSpec(task="Find the red key.", model="test/scripted")


@dataclass
class StateRows:
    """The session `s` and the state memory `w` over it, compressed by hand."""

    database: Database
    spec: StateSpec
    head: int = 0
    revision: int = 0
    applied: int = 0
    levels: VectorLevels = field(default_factory=VectorLevels)
    vectors: dict[int, StateVector] = field(default_factory=dict)
    #: After each revision.
    past: dict[int, VectorLevels] = field(default_factory=dict)

    async def steps(self, *texts: str) -> None:
        """Appends chunks to the log."""
        await append_texts(self.database, "s", texts, first=self.head + 1)
        self.head += len(texts)

    async def compress(self, text: str, steps: int) -> int:
        """Compresses the next `steps` into a vector of level 1; returns its revision."""
        current = self.vectors[self.levels.stack()[-1]]
        begin, end = self.applied, self.applied + steps
        number = self.revision + 1
        vector = StateVector(
            revision=number,
            level=1,
            text=text,
            tokens=estimate_tokens(text),
            made=VectorSource.MODEL,
            after_position=current.after_position if current.revision else begin,
            from_position=begin,
            to_position=end,
            replies=1,
        )
        levels = self.levels.with_steps(number, episode_vectors=self.spec.episode_vectors)
        await self._commit("step", end, levels, vector)
        return number

    async def close_episode(self, text: str) -> int:
        """Compresses the lowest full level into a vector of the next; returns its revision."""
        level = self.levels.full_level(self.spec.episode_vectors)
        assert level is not None, "no level is full"
        children = self.levels.run(level)
        above = self.levels.run(level + 1)
        number = self.revision + 1
        first, last = self.vectors[children[0]], self.vectors[children[-1]]
        begin = first.from_position
        vector = StateVector(
            revision=number,
            level=level + 1,
            text=text,
            tokens=estimate_tokens(text),
            made=VectorSource.MODEL,
            after_position=self.vectors[above[-1]].after_position if above else begin,
            from_position=begin,
            to_position=last.to_position,
            children=children,
            replies=1,
        )
        levels = self.levels.with_episode(number, level + 1)
        await self._commit("episode", self.applied, levels, vector)
        return number

    async def roll_back(self, revision: int) -> int:
        """Rolls back to the vectors of an earlier revision; returns the new one."""
        await self._commit("rollback", self.applied, self.past[revision], None, revision)
        return self.revision

    async def _commit(
        self,
        kind: str,
        to_position: int,
        levels: VectorLevels,
        vector: StateVector | None,
        restored: int | None = None,
    ) -> None:
        if vector is not None:
            self.vectors[vector.revision] = vector
        number = self.revision + 1
        state = State.of(number, to_position, levels, self.vectors)
        new = NewRevision(
            kind=kind,
            to_position=to_position,
            digest=state.digest,
            restored_revision=restored,
            comment="back" if restored is not None else "",
        )
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            held = await self._claim(tx)
            await vectors.commit(tx, held, new, levels, vector, has_work=False)
        self.revision, self.applied, self.levels = number, to_position, levels
        self.past[number] = levels

    async def _claim(self, tx: Any) -> Claim:
        await tx.execute(
            update(memory)
            .where(memory.c.session_key == KEY, memory.c.memory_id == STATE)
            .values(has_work=True)
        )
        held = await revisions.claim(tx, KEY, STATE, StateSpec.kind)
        assert held is not None
        return held


async def make_state(database: Database, texts: Sequence[str] = (), **changes: Any) -> StateRows:
    """Returns the session with these chunks, and the memory with `changes` of the spec."""
    spec = replace(SPEC, **changes)
    first = first_state(spec)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
        assert await memories.create(
            tx,
            session_key=KEY,
            memory_id=STATE,
            name="w",
            spec=spec,
            head=0,
            digest=first.digest,
        )
        await vectors.add_first(tx, KEY, STATE, first.current)
    rows = StateRows(database, spec, vectors={0: first.current}, past={0: VectorLevels()})
    if texts:
        await rows.steps(*texts)
    return rows
