"""What the use cases need of counters, with their values and their reader."""

from collections.abc import Sequence
from uuid import UUID

from service.app.kinds import RegisteredKind
from service.domain.operations.verifying.chain import Difference
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.work_items import WorkItem
from service.usecases.answers.readers.answering import MadeAnswer, ReaderKit
from service.usecases.log.lookup import find_memory, item_key, revision_not_found
from service.usecases.memories.kinds import Findings, FirstRevision, KindUseCases
from service.usecases.memories.memories import MemoryReading, ValueReader, reading_of
from service.usecases.memories.verifying import RevisionChain
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.engine.database import Database, Transaction
from storage.memories import history
from storage.memories.memories import StoredMemory
from tests.integration.memories.counter_kind import rows
from tests.integration.memories.counter_kind.method import CounterMethod


class CounterUseCases(KindUseCases):
    """The use cases that differ for counters."""

    def first(self, spec: MemorySpec) -> FirstRevision:
        """Returns the count of no chunks."""
        return FirstRevision(
            digest=rows.digest(0), write=lambda tx, key, memory: rows.add(tx, key, memory, 0, 0)
        )

    async def shown_bytes(
        self, tx: Transaction, stored: Sequence[StoredMemory], upto: int
    ) -> Sequence[int]:
        """Returns the sizes of counts."""
        return [len(str(one.applied_position)) for one in stored]

    async def verify(self, tx: Transaction, stored: StoredMemory) -> Findings:
        """Yields the revisions whose counts are not those of the log."""
        chain = RevisionChain(tx, stored)
        async for row, told in chain.rows():
            for one in told:
                yield one
            counted = await rows.read(tx, *item_key(stored), row.revision)
            if counted != row.to_position or row.digest != rows.digest(counted):
                said = f"it is {counted} after {row.to_position} chunks"
                place = f"revision {row.revision}"
                yield Difference(name="counter.value", place=place, said=said)
        for one in chain.finish():
            yield one


class CounterValues(ValueReader):
    """Reads counts as the values of memories."""

    def __init__(self, database: Database, token_key: bytes) -> None:
        self._database = database
        self._token_key = token_key

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the count at a revision, or the newest. Raises NotFound, OutOfRange."""
        assert position is None, "a counter has a revision for each position"
        async with self._database.snapshot(tenant_id, name="memories") as tx:
            stored = await find_memory(tx, session, name)
            at = stored.revision if revision is None else revision
            counted = await rows.read(tx, *item_key(stored), at)
            if counted is None:
                raise revision_not_found(name, at, stored.revision)
            known = (await history.read_revisions(tx, *item_key(stored), [at]))[at]
        return reading_of(self._token_key, stored, str(counted), at, known.to_position)


class CounterReader:
    """Answers every question with the count."""

    def __init__(self, kit: ReaderKit) -> None:
        self._database = kit.database

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Returns the count as it was when the question came, and the last chunk of it."""
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            counted = await rows.read(tx, asked.session_key, asked.memory_id, asked.revision)
        last = StoredCitation(
            position=asked.applied_position, path="", revision=asked.revision, excerpt=""
        )
        return MadeAnswer(text=f"{counted} chunks.", citations=[last], model="")


COUNTER = RegisteredKind(
    use_cases=CounterUseCases(),
    method=CounterMethod,
    reader=CounterReader,
    values=lambda database, _, token_key, __: CounterValues(database, token_key),
)
