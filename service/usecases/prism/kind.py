"""Defines what the use cases need of PRISM memories."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from uuid import UUID

from service.domain.operations.verifying.chain import Difference, RevisionRow
from service.domain.operations.verifying.prism import PrismCheck
from service.domain.prism import losses
from service.domain.prism.amending import MISSING, Missing
from service.domain.prism.amendments import Amendment, Rules
from service.domain.prism.entries import (
    NO_POSITIONS,
    EntryReplay,
    entries_after,
    positions_of,
)
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import Mismatch
from service.domain.prism.spec import PrismSpec
from service.domain.prism.thinning import ThinnedDays
from service.domain.search.entries import WrittenEntry
from service.domain.values.errors import FailedPrecondition
from service.domain.values.json_values import Json
from service.domain.values.memory_specs import MemorySpec
from service.llm.offloading import beside
from service.settings.config import Limits
from service.usecases.log.lookup import item_key
from service.usecases.memories import step_traces
from service.usecases.memories.kinds import Findings, FirstRevision, KindUseCases
from service.usecases.memories.verifying import RevisionChain, RowsAhead
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories import entries, history, revisions
from storage.memories.memories import StoredMemory
from storage.memories.revisions import NewRevision
from storage.operations import verifying
from storage.prism import states


class PrismUseCases(KindUseCases):
    """What is different for PRISM memories."""

    def first(self, spec: MemorySpec) -> FirstRevision:
        """Returns the empty memory of the schema. Raises SchemaInvalid."""
        assert isinstance(spec, PrismSpec), "the registry has it for these"
        value = PrismMemory.create(spec.schema()).value_json
        return FirstRevision(digest=hashlib.sha256(value.encode()).digest(), value=value)

    async def shown_bytes(
        self, tx: Transaction, stored: Sequence[StoredMemory], upto: int
    ) -> Sequence[int]:
        """Returns the sizes of the newest values."""
        ids = [one.memory_id for one in stored]
        found = await states.value_sizes(tx, stored[0].session_key, ids)
        return [found.get(one, 0) for one in ids]

    async def state(self, tx: Transaction, stored: StoredMemory, revision: int) -> tuple[Json, int]:
        """Returns the value at a revision that exists, and its applied position."""
        rows = await states.get_nearest(tx, *item_key(stored), revision)
        return rows.memory(PrismSpec.of(stored).schema()).value, rows.applied_position

    async def restore(
        self, tx: Transaction, held: Claim, revision: int, *, comment: str, limits: Limits
    ) -> None:
        """Commits a new revision with the value of an earlier one."""
        rows = await states.get_nearest(tx, *item_key(held), revision)
        schema = PrismSpec.of(held).schema()
        restored = rows.memory(schema)
        newest = await states.get_nearest(tx, *item_key(held), held.revision)
        new = NewRevision(
            kind="rollback",
            to_position=held.applied_position,
            digest=hashlib.sha256(restored.value_json.encode()).digest(),
            value=restored.value_json,
            base=restored.value_json,
            comment=comment,
            restored_revision=revision,
            consolidated_tokens=0,
            entries=entries_after(
                schema,
                newest.memory(schema).value,
                restored.value,
                None,
                revision=held.revision + 1,
                positions=NO_POSITIONS,
            ),
            losses=losses.after_change(
                held.losses, restored.value, Rules(max_memory_bytes=limits.max_memory_bytes)
            ),
        )
        with step_traces.commit(held, new) as traced:
            await revisions.commit_revision(tx, held, traced, has_work=None)

    async def entries(self, tx: Transaction, stored: StoredMemory) -> Sequence[WrittenEntry]:
        """Returns the entries of the newest value, from all revisions."""
        key = (stored.session_key, stored.memory_id)
        schema = PrismSpec.of(stored).schema()
        replay = EntryReplay(schema)
        amended = RowsAhead(_amended(tx, *key))
        undone = await history.quarantined(tx, *key, stored.revision)
        days = ThinnedDays()
        async for row in verifying.revisions(tx, *key):
            restored: Json | Missing = MISSING
            if row.undone is not None or row.restored_revision is not None:
                restored = await _restored_by(tx, stored, row)
            amendments = [one for _, one in await amended.of(row.revision) if one is not None]
            is_end = days.end_at(row.revision, row.from_position, row.to_position, row.expired)
            if row.revision in undone:
                continue
            positions = positions_of(row.kind, row.from_position, row.to_position)
            if row.read_positions and row.undone is None:
                positions = row.read_positions[0], row.read_positions[-1]
            # A step may have much to compare.
            with suppress(Mismatch):
                # Its place was made by one that is undone, or has expired: the next state that is
                # restored has it.
                await beside(
                    replay.revise, row.revision, amendments, positions=positions, restored=restored
                )
            if is_end:
                kept = (await states.get_nearest(tx, *key, row.revision)).memory(schema).value
                await beside(
                    replay.revise, row.revision, (), positions=days.positions, restored=kept
                )
        made = list(replay.written.values())
        if not days.last_revision:
            return made
        # They were written when all of their history was there.
        return days.with_origins(made, await entries.read_all(tx, *key))

    async def verify(self, tx: Transaction, stored: StoredMemory) -> Findings:
        """Yields what differs in a memory. `tx` is a snapshot."""
        key = (stored.session_key, stored.memory_id)
        chain, check = RevisionChain(tx, stored), PrismCheck(PrismSpec.of(stored).schema())
        amended = RowsAhead(_amended(tx, *key))
        bases = RowsAhead(verifying.saved(tx, "prism_base", *key))
        snapshots = RowsAhead(verifying.saved(tx, "prism_snapshot", *key))
        async for row, told in chain.rows():
            for one in told:
                yield one
            restored = None
            if row.restored_revision is not None and not row.expired:
                restored = await _restored(tx, stored, row.restored_revision)
            found = check.revision(
                row,
                await amended.of(row.revision),
                base=next(iter(await bases.of(row.revision)), None),
                snapshot=next(iter(await snapshots.of(row.revision)), None),
                restored=restored,
            )
            for difference in found:
                yield difference
        newest = await verifying.newest_value(tx, *key)
        if newest is None:
            yield Difference(name="prism.value", place="newest value", said="there is none")
        else:
            revision, value, unsaved = newest
            for difference in check.finish(
                revision=stored.revision, stored_revision=revision, value=value, unsaved=unsaved
            ):
                yield difference
        for one in chain.finish():
            yield one


async def _amended(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> AsyncGenerator[tuple[int, tuple[int, Amendment | None]]]:
    async for revision, ordinal, one in verifying.amendments(tx, session_key, memory_id):
        yield revision, (ordinal, one)


async def _restored_by(tx: Transaction, stored: StoredMemory, row: RevisionRow) -> Json | Missing:
    """Returns the state that a rollback or a quarantine restored; MISSING if that has expired."""
    of = row.revision if row.undone is not None else row.restored_revision
    assert of is not None, "the caller has checked it"
    try:
        rows = await states.get_nearest(tx, *item_key(stored), of)
    except FailedPrecondition:
        return MISSING
    return rows.memory(PrismSpec.of(stored).schema()).value


async def _restored(tx: Transaction, stored: StoredMemory, revision: int) -> Json:
    """Returns an earlier state, which was compared before; None if it cannot be read."""
    try:
        rows = await states.read_nearest(tx, stored.session_key, stored.memory_id, revision)
        return None if rows is None else rows.memory(PrismSpec.of(stored).schema()).value
    except (Mismatch, ValueError, FailedPrecondition):
        return None
