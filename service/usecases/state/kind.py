"""Defines what the use cases need of state memories."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.operations.verifying.state import StateCheck
from service.domain.search.entries import WrittenEntry
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import (
    State,
    StateVector,
    entry_changes,
    first_state,
    state_entries,
)
from service.domain.state.working_context import as_value, by_level
from service.domain.values.json_values import Json, canonical
from service.domain.values.memory_specs import MemorySpec
from service.settings.config import Limits
from service.usecases.log.lookup import item_key
from service.usecases.memories import step_traces
from service.usecases.memories.kinds import Findings, FirstRevision, KindUseCases
from service.usecases.memories.memories import MemoryReading, ValueReader
from service.usecases.memories.verifying import RevisionChain
from service.usecases.state.working_contexts import WorkingContexts
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories.memories import StoredMemory
from storage.memories.revisions import NewRevision
from storage.state import contexts, vectors


class StateUseCases(KindUseCases):
    """What is different for state memories."""

    def first(self, spec: MemorySpec) -> FirstRevision:
        """Returns the task prompt as the first vector."""
        assert isinstance(spec, StateSpec), "the registry has it for these"
        first = first_state(spec)
        return FirstRevision(
            digest=first.digest,
            write=lambda tx, key, memory: vectors.add_first(tx, key, memory, first.current),
        )

    async def shown_bytes(
        self, tx: Transaction, stored: Sequence[StoredMemory], upto: int
    ) -> Sequence[int]:
        """Returns the sizes of the working contexts."""
        used = [await _state(tx, one, one.revision) for one in stored]
        recent = await contexts.recent_sizes(
            tx, stored[0].session_key, after=[one.applied_position for one in used], upto=upto
        )
        return [
            sum(len(vector.text.encode()) for vector in one.stack) + recent[one.applied_position]
            for one in used
        ]

    async def state(self, tx: Transaction, stored: StoredMemory, revision: int) -> tuple[Json, int]:
        """Returns the vectors of a revision that exists by level, and its applied position."""
        state = await _state(tx, stored, revision)
        return by_level(state), state.applied_position

    async def restore(
        self, tx: Transaction, held: Claim, revision: int, *, comment: str, limits: Limits
    ) -> None:
        """Commits a new revision with the vectors of an earlier one."""
        restored = await _state(tx, held, revision)
        newest = await _state(tx, held, held.revision)
        new = NewRevision(
            kind="rollback",
            to_position=held.applied_position,
            digest=restored.digest,
            comment=comment,
            restored_revision=revision,
            entries=entry_changes(newest, restored),
        )
        with step_traces.commit(held, new) as traced:
            await vectors.commit(tx, held, traced, restored.levels, None, has_work=None)
        # With other vectors something else may be due.
        await vectors.rouse(tx, held)

    async def entries(self, tx: Transaction, stored: StoredMemory) -> Sequence[WrittenEntry]:
        """Returns the vectors in use."""
        return list(state_entries(await _state(tx, stored, stored.revision)))

    async def verify(self, tx: Transaction, stored: StoredMemory) -> Findings:
        """Yields what differs in a memory. `tx` is a snapshot."""
        key = (stored.session_key, stored.memory_id)
        chain, check = RevisionChain(tx, stored), StateCheck(StateSpec.of(stored))
        known: Mapping[int, StateVector] = {}
        async for row, told in chain.rows():
            for one in told:
                yield one
            levels = await vectors.read_levels(tx, *key, row.revision)
            restored = None
            if row.restored_revision is not None:
                restored = await vectors.read_levels(tx, *key, row.restored_revision)
            wanted = {row.revision, *check.in_use()}
            if restored is not None:
                wanted |= {number for run in restored.runs for number in run}
            missing = sorted(wanted - known.keys())
            read = {one.revision: one for one in await vectors.read_vectors(tx, *key, missing)}
            known = {number: one for number, one in {**known, **read}.items() if number in wanted}
            for difference in check.revision(row, levels, known, restored):
                yield difference
        for one in chain.finish():
            yield one


async def _state(tx: Transaction, memory: StoredMemory | Claim, revision: int) -> State:
    state = await vectors.read_state(tx, *item_key(memory), revision)
    assert state is not None, "revisions have no gaps, and none goes away"
    return state


class StateValues(ValueReader):
    """Reads working contexts as the values of memories."""

    def __init__(self, contexts: WorkingContexts) -> None:
        self._contexts = contexts

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the context at a revision, at a position of the log, or the newest.

        Raises NotFound, OutOfRange.
        """
        if revision is not None:
            found = await self._contexts.read_revision(tenant_id, session, name, revision)
        else:
            found = await self._contexts.read(tenant_id, session, name, position=position)
        return MemoryReading(
            memory=found.memory,
            value_json=canonical(as_value(found.context)),
            revision=found.context.state.revision,
            applied_position=found.context.head,
            token=found.token,
        )

    async def catch_up(
        self, tenant_id: UUID, session: str, name: str, *, deadline: float | None
    ) -> None:
        """Returns once no compression is due. Raises as `WorkingContexts.read`."""
        await self._contexts.catch_up(tenant_id, session, name, deadline=deadline)
