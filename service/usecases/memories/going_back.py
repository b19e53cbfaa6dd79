"""Undoes in trees and state memories what came from quarantined sources, and restores it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.domain.state.spec import StateSpec
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories import going_back, history
from storage.memories.going_back import PastMove


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedSource:
    """A source that is not quarantined any more."""

    source: str
    #: When it was quarantined: its chunks have been passed since then.
    since: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoneRevisions:
    """What a change of quarantines did to a memory."""

    revision: int
    #: The revisions before it that are undone now.
    undone: int
    #: Chunks that the memory reads again.
    reread: int
    #: Changes by hand that have no place any more.
    dropped_edits: int = 0


async def go_back(
    tx: Transaction, held: Claim, *, comment: str, released: ReleasedSource | None = None
) -> UndoneRevisions | None:
    """Restores the newest state that rests on no quarantined source, as one revision.

    After a release that may be one from before the quarantine, and rests on all that was held.
    The memory reads the log on from there. None, and nothing is written, where that is the state
    already. The caller has the memory from `lock`, and its work fenced off.
    """
    moves = await going_back.read_moves(tx, held)
    left = {step for one in moves for step in one.left}
    unfit = left | await going_back.read_tainted(tx, held)
    missed: set[int] = set()
    if released is not None:
        missed = await going_back.read_missed(tx, held, released.source, released.since)
    # A tree has no nodes any more of what was set aside.
    is_restorable = isinstance(held.spec, StateSpec)
    ends = [held.revision]
    if released is not None and is_restorable:
        ends += [one.revision - 1 for one in moves]
    fit = [await _last_fit(tx, held, end, unfit | missed) for end in ends]
    reached = await going_back.read_ends(tx, held, fit)
    restored = max(fit, key=lambda one: (reached[one], one))
    if restored == held.revision and not (is_restorable and missed - left):
        return None
    undone = await going_back.move(
        tx,
        held,
        restored,
        list(_standing(restored, moves)),
        left | missed if is_restorable else (),
        comment,
    )
    return UndoneRevisions(
        revision=held.revision + 1,
        undone=undone,
        reread=max(held.applied_position - reached[restored], 0),
    )


async def _last_fit(tx: Transaction, held: Claim, end: int, unfit: Collection[int]) -> int:
    """Returns the newest revision on the way to `end` that rests on no unfit one."""
    lineage = await history.committed_lineage(tx, held.session_key, held.memory_id, end)
    on_the_way = (one for one in unfit if any(after < one <= upto for after, upto in lineage))
    return min(on_the_way, default=end + 1) - 1


def _standing(restored: int, moves: Sequence[PastMove]) -> Iterator[tuple[int, int]]:
    """Yields the ranges of revisions that no move left on the way to `restored`."""
    last = restored
    for one in reversed(moves):
        if one.revision <= last:
            yield one.revision, last
            last = one.restored
    yield 0, last
