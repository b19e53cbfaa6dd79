"""PRISM memories, step by step: edits, rollbacks, folds, consolidations, schemas, rebuilds."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import Encoding, PrismSpec, StepScope
from service.domain.values.errors import Conflict
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.memories.edit import Edit, MemoryUpdate, Target
from storage.memories.memories import StoredMemory
from tests.integration.support.machine_workers import worker_of
from tests.integration.support.memory_machine import CHUNKS, MemoryMachine
from verification.chaos.history import Edited, Refused, RolledBack

SPEC = PrismSpec(
    schema_source="class N:\n    topics: dict[str, str]\n    edits: dict[str, str]\n",
    chunk_tokens=30,
    model="test/scripted",
)
#: Small enough to be folded and consolidated by themselves.
FOLD_TOKENS, MEMORY_TOKENS = 120, 150
#: Memories of a session, rebuilt ones included.
MOST_MEMORIES = 3


class PrismMachine(MemoryMachine):
    """See above."""

    kind = "prism"

    @initialize(
        encoding=st.sampled_from(Encoding),
        on_failure=st.sampled_from(OnFailure),
        is_small=st.booleans(),
        steps=st.sampled_from(StepScope),
    )
    def begin(
        self, encoding: Encoding, on_failure: OnFailure, is_small: bool, steps: StepScope
    ) -> None:
        """A memory that is kept in one of the ways that there are."""
        spec = replace(SPEC, encoding=encoding, on_failure=on_failure, steps=steps)
        if is_small:
            spec = replace(spec, fold_tokens=FOLD_TOKENS, memory_tokens=MEMORY_TOKENS)
        self.marks = 0
        self.start(spec)

    def _target(self, stored: StoredMemory, off: int | None) -> Target:
        expected = None if off is None else max(0, stored.revision - off)
        return Target(session=self.name, memory=stored.name, expected_revision=expected)

    @rule(memory=st.integers(0, 9), off=st.sampled_from((None, 0, 0, 1)))
    def edit(self, memory: int, off: int | None) -> None:
        """Edits a memory, maybe for a revision that is not the newest any more."""
        self.bench.run(self._edit(self.pick(memory), off))
        self.did("edit")

    async def _edit(self, name: str, off: int | None = None) -> None:
        stored = await self.stored(name)
        target = self._target(stored, off)
        self.marks += 1
        mark = f"e{self.marks}"
        expected = target.expected_revision or 0
        try:
            edit = Edit(op=None, path=f"$.edits.{mark}", value_json=f'"{mark}"')
            behind, amendments = await self.editor.revise(DEFAULT_TENANT, target, [edit])
        except Conflict:
            assert expected != stored.revision
            self.events.append(
                Refused(
                    client="editor",
                    session=self.name,
                    name=name,
                    sequence=0,
                    reason="REVISION_CONFLICT",
                    mark=mark,
                    at=self.now(),
                )
            )
            return
        assert (behind.revision, len(amendments)) == (stored.revision + 1, 1)
        assert target.expected_revision in (None, stored.revision)
        self.events.append(
            Edited(
                client="editor",
                session=self.name,
                memory=name,
                expected_revision=expected,
                mark=mark,
                revision=behind.revision,
                invoked=self.now(),
                returned=self.now(),
            )
        )

    @rule(memory=st.integers(0, 9), back=st.integers(0, 12), off=st.sampled_from((None, 0, 1)))
    def rollback(self, memory: int, back: int, off: int | None) -> None:
        """Rolls a memory back."""
        self.bench.run(self._rollback(self.pick(memory), back, off))
        self.did("rollback")

    async def _rollback(self, name: str, back: int, off: int | None) -> None:
        stored = await self.stored(name)
        target, restored = self._target(stored, off), max(0, stored.revision - back)
        try:
            behind = await self.editor.rollback(DEFAULT_TENANT, target, restored)
        except Conflict:
            assert off
            return
        assert behind.revision == stored.revision + 1
        self.events.append(
            RolledBack(
                client="editor",
                session=self.name,
                memory=name,
                expected_revision=target.expected_revision or 0,
                restored_revision=restored,
                revision=behind.revision,
                invoked=self.now(),
                returned=self.now(),
            )
        )

    @rule(memory=st.integers(0, 9), chunks=CHUNKS)
    def edit_meanwhile(self, memory: int, chunks: int) -> None:
        """Edits a memory while a worker waits for its model."""
        self.feed(chunks)
        name = self.pick(memory)
        worker = worker_of(self.kind, self.database, self.model)
        worker.meanwhile = lambda: self._edit(name)
        self.bench.run(self._drain(worker, name))
        self.did("edit meanwhile" if worker.was_interrupted else "drain")

    @rule(memory=st.integers(0, 9))
    def fold(self, memory: int) -> None:
        """Folds a memory."""
        self.bench.run(self._fold(self.pick(memory)))
        self.did("fold")

    async def _fold(self, name: str) -> None:
        before = await self.stored(name)
        behind, is_folded = await self.editor.fold(DEFAULT_TENANT, self._target(before, None))
        assert behind.revision == before.revision + is_folded
        again, _ = await self.editor.fold(DEFAULT_TENANT, self._target(before, None))
        assert again.revision == behind.revision

    @rule(memory=st.integers(0, 9))
    def consolidate(self, memory: int) -> None:
        """Requests a consolidation."""
        self.bench.run(self._consolidate(self.pick(memory)))
        self.did("consolidate")

    async def _consolidate(self, name: str) -> None:
        await self.editor.consolidate(DEFAULT_TENANT, Target(session=self.name, memory=name))

    @rule(memory=st.integers(0, 9), is_new=st.booleans())
    def change_schema(self, memory: int, is_new: bool) -> None:
        """Adds a field, or sets the schema that the memory already has."""
        self.bench.run(self._change_schema(self.pick(memory), is_new))
        self.did("schema")

    async def _change_schema(self, name: str, is_new: bool) -> None:
        stored = await self.stored(name)
        source = PrismSpec.of(stored).schema_source.rstrip()
        # A rebuilt memory begins with the fields that were added, at revision 0.
        more = f"\n    extra{source.count('extra')}: str\n" if is_new else "\n"
        behind = await self.editor.update(
            DEFAULT_TENANT,
            self._target(stored, 0),
            PrismSpec.kind,
            MemoryUpdate(schema=parse_source(source + more)),
        )
        assert behind.revision == stored.revision + is_new

    @precondition(lambda self: len(self.memory_names) < MOST_MEMORIES)
    @rule(memory=st.integers(0, 9), encoding=st.sampled_from(Encoding))
    def rebuild(self, memory: int, encoding: Encoding) -> None:
        """Rebuilds a memory into another one."""
        self.bench.run(self._rebuild(self.pick(memory), encoding))
        self.did("rebuild")

    async def _rebuild(self, name: str, encoding: Encoding) -> None:
        stored = await self.stored(name)
        spec = replace(PrismSpec.of(stored), encoding=encoding)
        await self.make(f"m{len(self.memory_names)}", spec, rebuilt_from=name)
