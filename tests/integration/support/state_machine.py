"""State memories, step by step: periods, episodes, flushes and rollbacks."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from service.domain.state.spec import StateSpec
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.memories.edit import Target
from storage.memories.memories import StoredMemory
from tests.integration.support.memory_machine import MemoryMachine
from verification.chaos.history import RolledBack


class StateMachine(MemoryMachine):
    """See above."""

    kind = "state"

    @initialize(
        period=st.integers(1, 4),
        episode_vectors=st.sampled_from((0, 2, 3)),
        on_failure=st.sampled_from(OnFailure),
    )
    def begin(self, period: int, episode_vectors: int, on_failure: OnFailure) -> None:
        """A memory with a short period, and one that makes episodes."""
        spec = StateSpec(
            task="Find the town.",
            period=period,
            state_tokens=64,
            model="test/scripted",
            episode_vectors=episode_vectors,
            on_failure=on_failure,
        )
        self.period = period
        self.start(spec)

    def is_settled(self, stored: StoredMemory) -> bool:
        """Returns whether what is recent is less than a period."""
        return stored.is_idle

    @rule()
    def flush(self) -> None:
        """Flushes: all chunks in the log are compressed."""
        self.bench.run(self.memories.flush(DEFAULT_TENANT, self.name, ""))
        self.did("flush")

    @rule(memory=st.integers(0, 9), back=st.integers(0, 9))
    def rollback(self, memory: int, back: int) -> None:
        """Rolls a memory back."""
        self.bench.run(self._rollback(self.pick(memory), back))
        self.did("rollback")

    async def _rollback(self, name: str, back: int) -> None:
        stored = await self.stored(name)
        restored = max(0, stored.revision - back)
        target = Target(session=self.name, memory=name)
        behind = await self.editor.rollback(DEFAULT_TENANT, target, restored)
        assert behind.revision == stored.revision + 1
        assert behind.applied_position == stored.applied_position
        self.events.append(
            RolledBack(
                client="editor",
                session=self.name,
                memory=name,
                expected_revision=0,
                restored_revision=restored,
                revision=behind.revision,
                invoked=self.now(),
                returned=self.now(),
            )
        )
