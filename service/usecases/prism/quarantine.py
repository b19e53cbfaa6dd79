"""Undoes in PRISM memories what came from quarantined sources, and restores it on release."""

import hashlib
from collections.abc import Sequence

from service.domain.prism import losses
from service.domain.prism.amendments import Rules
from service.domain.prism.entries import NO_POSITIONS, entries_after
from service.domain.prism.spec import PrismSpec
from service.domain.prism.undoing import without
from service.domain.values.json_values import canonical
from service.llm.offloading import beside
from service.usecases.memories import step_traces
from service.usecases.memories.going_back import ReleasedSource, UndoneRevisions
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories import history, revisions
from storage.memories.revisions import NewRevision
from storage.prism import quarantine, states


async def apply_quarantines(
    tx: Transaction,
    held: Claim,
    *,
    max_memory_bytes: int,
    comment: str,
    released: ReleasedSource | None = None,
) -> UndoneRevisions | None:
    """Commits the value that rests on no quarantined source, as one revision.

    None, and nothing is written, where that is the value already and nothing is to be read again:
    what was edited by hand and read since an earlier quarantine stays.
    The caller has the memory from `lock`, and its work fenced off.
    """
    key = (held.session_key, held.memory_id)
    lineage = await history.committed_lineage(tx, *key, held.revision)
    scope = await quarantine.read_scope(tx, held)
    rests = {one for one in scope.tainted if _leads(lineage, one)}
    before = set(await history.quarantined(tx, *key, held.revision))
    if released is None and rests <= before:
        return None
    tainted = await quarantine.read_days(tx, held, scope.tainted)
    moved = [one for one in tainted | scope.quarantines if _leads(lineage, one)]
    passed: Sequence[int] = ()
    if released is not None:
        passed = await quarantine.read_held(tx, held, released.source, released.since)
    if not moved and not passed:
        return None
    # What was there before the first of them is there as it was, to the order of its keys.
    first = await quarantine.kept_before(tx, held, min(moved, default=held.revision + 1) - 1)
    schema = PrismSpec.of(held).schema()
    newest = (await states.get_nearest(tx, *key, held.revision)).memory(schema)
    start = newest if not moved else (await states.get_nearest(tx, *key, first)).memory(schema)
    past = await quarantine.read_past(tx, held, first, lineage)
    made = await beside(without, schema, start.value, past, tainted)
    # Of some all amendments have expired.
    spoiled = {one for one in tainted - scope.tainted if _leads(lineage, one)}
    undone = sorted(made.undone | spoiled)
    text = canonical(made.value)
    # A release of what the memory has never read, beside another quarantine.
    is_same = set(undone) == before - scope.quarantines and text == canonical(newest.value)
    if is_same and released is not None and not passed:
        return None
    left = await quarantine.read_left(tx, held, undone, releases=released is not None)
    reread = sorted({*passed, *left})
    new = NewRevision(
        kind="quarantine",
        to_position=held.applied_position,
        digest=hashlib.sha256(text.encode()).digest(),
        value=text,
        base=text,
        comment=comment,
        undone=undone,
        # Another release has to read them again: no step has.
        read_positions=list(passed) or None,
        consolidated_tokens=0,
        entries=entries_after(
            schema,
            newest.value,
            made.value,
            None,
            revision=held.revision + 1,
            positions=NO_POSITIONS,
        ),
        losses=losses.after_change(
            held.losses, made.value, Rules(max_memory_bytes=max_memory_bytes)
        ),
    )
    with step_traces.commit(held, new) as traced:
        await revisions.commit_revision(tx, held, traced, has_work=None)
    await quarantine.read_again(tx, held, reread)
    return UndoneRevisions(
        revision=held.revision + 1,
        undone=len(undone),
        reread=len(reread),
        dropped_edits=made.dropped_edits,
    )


def _leads(lineage: Sequence[tuple[int, int]], revision: int) -> bool:
    """Returns whether a revision is one of those that led to the present state."""
    return any(after < revision <= upto for after, upto in lineage)
