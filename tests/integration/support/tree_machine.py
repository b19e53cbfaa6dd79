"""Summary trees, step by step: they grow, and are closed while workers die."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from service.domain.memories.long_operations import OperationKind
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.tree.trees import Trees
from tests.integration.support.machine_workers import worker_of
from tests.integration.support.memory_machine import CHUNKS, MemoryMachine

#: Leaves of a few chunks, and groups of a few leaves.
SPEC = TreeSpec(segment_tokens=64, max_children=3, summary_tokens=20, model="test/scripted")


class TreeMachine(MemoryMachine):
    """See above."""

    kind = "tree"

    @initialize(on_failure=st.sampled_from(OnFailure), children=st.integers(2, 4))
    def begin(self, on_failure: OnFailure, children: int) -> None:
        """Two trees of the same log."""
        spec = replace(SPEC, on_failure=on_failure)
        self.start(spec, replace(spec, max_children=children))
        self.trees = Trees(self.database, self.memories)

    @rule(memory=st.integers(0, 9), chunks=CHUNKS, meanwhile=st.booleans())
    def seal(self, memory: int, chunks: int, meanwhile: bool) -> None:
        """Seals a tree, maybe while a worker is about to commit."""
        self.feed(chunks)
        name = self.pick(memory)
        if meanwhile:
            worker = worker_of(self.kind, self.database, self.model)
            worker.meanwhile = lambda: self._seal(name)
            self.bench.run(self._drain(worker, name))
        else:
            self.bench.run(self._seal(name))
        self.did("seal")

    async def _seal(self, name: str) -> None:
        found = await self.trees.seal(DEFAULT_TENANT, self.name, name)
        assert found.operation.kind is OperationKind.SEAL
