"""Thins the history of PRISM memories to the last state of each day, as policies of retention say.

A batch locks one memory, and thins whole days of it. Of a day that has more revisions than a batch
may have, the last one of each batch is kept as well.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

import structlog

from service.domain.prism.amending import replay
from service.domain.prism.amendments import Amendment
from service.domain.prism.schemas.tree import Mismatch, Schema
from service.domain.prism.spec import PrismSpec
from service.domain.prism.thinning import Place, superseded
from service.domain.values.json_values import canonical, restore
from service.llm.offloading import beside
from service.usecases.log.lookup import item_key
from storage.engine.database import Transaction
from storage.memories import history, memories
from storage.memories.memories import StoredMemory
from storage.memories.revisions import most_unsaved
from storage.prism import states, thinning
from storage.prism.thinning import OldRevision, SavedState, Thinned

#: Values of amendments that a batch reads, in bytes.
BATCH_BYTES = 8 * 1024 * 1024

_log = structlog.get_logger("palimpsest.retention")


async def thin_history(tx: Transaction, session_key: UUID, days: int, limit: int) -> int:
    """Thins up to `limit` revisions of one of a session's memories; returns how many it read."""
    for memory_id in await thinning.list_due(tx, session_key, days):
        window = await thinning.lock(tx, session_key, memory_id)
        if window is None or window.upto <= window.after:
            continue
        rows = await thinning.read_window(tx, session_key, memory_id, window.after, days, limit + 1)
        parts = list(_days([one for one in rows if one.revision <= window.upto + 1], limit))
        stored = await memories.get(tx, session_key, memory_id)
        if not parts or stored is None:
            continue
        thinned = await _Thinning.read(tx, stored, window.after, parts)
        if thinned is not None:
            await thinning.remove(tx, session_key, memory_id, thinned)
            return thinned.upto - window.after
    return 0


def _days(rows: Sequence[OldRevision], limit: int) -> Iterator[Sequence[OldRevision]]:
    """Yields the revisions up to each that is kept; the last of `rows` says what is after them."""
    part: list[OldRevision] = []
    read = 0
    is_whole = False
    for one, following in pairwise(rows):
        if not one.is_old:
            return
        part.append(one)
        read += one.bytes
        is_last = one.day != following.day
        if is_last or one.is_pinned or (not is_whole and _is_full(len(part), read, limit)):
            yield part
            is_whole = True
            part = []
        if is_whole and read >= BATCH_BYTES:
            return


def _is_full(count: int, read: int, limit: int) -> bool:
    """Returns whether a day has more than one batch may."""
    return count >= limit or read >= BATCH_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class _Day:
    """The revisions of a day, of which the last is kept."""

    revisions: Sequence[OldRevision]
    amendments: Mapping[Place, Amendment]
    #: Amendments that do not say where a value after it came from.
    superseded: set[Place]
    #: Bases and snapshots of its revisions.
    saved: Sequence[SavedState]
    #: Canonical JSON of the states before and after it.
    before: str
    after: str

    @property
    def kept(self) -> int:
        """The revision that is kept."""
        return self.revisions[-1].revision

    def removed_bytes(self) -> int:
        """Returns how much is removed with what is superseded."""
        states = sum(one.bytes for one in self.saved if one.revision != self.kept)
        return states + sum(len(canonical(self.amendments[one].value)) for one in self.superseded)

    def is_made_by(self, schema: Schema, gone: set[Place]) -> bool:
        """Returns whether the amendments without some make the state after it, byte by byte."""
        left = (one for place, one in self.amendments.items() if place not in gone)
        try:
            return canonical(replay(schema, restore(self.before), left)) == self.after
        except Mismatch:
            return False


@dataclass(kw_only=True, slots=True)
class _Thinning:
    """What a batch removes, day by day."""

    schema: Schema
    #: Amendments since the last saved state.
    unsaved: int
    expired: list[int] = field(default_factory=list)
    gone: set[Place] = field(default_factory=set)
    bases: dict[int, str] = field(default_factory=dict)

    @classmethod
    async def read(
        cls,
        tx: Transaction,
        stored: StoredMemory,
        after: int,
        parts: Sequence[Sequence[OldRevision]],
    ) -> Thinned | None:
        """Returns what to remove of days; None where a state is not what it was."""
        key = item_key(stored)
        schema = PrismSpec.of(stored).schema()
        found = cls(schema=schema, unsaved=await thinning.count_unsaved(tx, *key, after))
        before = (await states.get_nearest(tx, *key, after)).memory(schema).value_json
        for part in parts:
            day = await _read_day(tx, stored, part, before)
            if hashlib.sha256(day.after.encode()).digest() != part[-1].digest:
                _log.warning(
                    "history is not thinned: a state differs from its digest",
                    memory=str(stored.memory_id),
                    revision=day.kept,
                )
                return None
            if len(part) > 1:
                await beside(found._thin, day)
            else:
                found._keep(day)
            before = day.after
        return Thinned(
            upto=parts[-1][-1].revision,
            expired=found.expired,
            amendments=found.gone,
            bases=found.bases,
        )

    def _keep(self, day: _Day) -> None:
        self.unsaved = 0 if day.saved else self.unsaved + len(day.amendments)

    def _thin(self, day: _Day) -> None:
        """Chooses how the state after a day is kept: as a base only where amendments need more."""
        self.expired += (one.revision for one in day.revisions[:-1])
        is_saved = {one.is_base for one in day.saved if one.revision == day.kept}
        most = most_unsaved(day.after)
        options = [day.superseded]
        if day.superseded and day.removed_bytes() < len(day.after):
            # A base would need more room than it saves.
            options.append(set())
        for gone in options:
            left = self.unsaved + len(day.amendments) - len(gone)
            if (is_saved or left < most) and day.is_made_by(self.schema, gone):
                self.gone |= gone
                self.unsaved = 0 if is_saved else left
                return
        self.gone |= day.superseded
        self.unsaved = 0
        if True not in is_saved:
            self.bases[day.kept] = day.after


async def _read_day(
    tx: Transaction, stored: StoredMemory, part: Sequence[OldRevision], before: str
) -> _Day:
    key = item_key(stored)
    begin, kept = part[0].revision - 1, part[-1].revision
    amendments = await thinning.read_amendments(tx, *key, begin, kept)
    lineage = await history.committed_lineage(tx, *key, kept)
    # What a rollback undid leads to no state that is kept.
    leading = {
        place: one
        for place, one in amendments.items()
        if any(after < place[0] <= upto for after, upto in lineage)
    }
    after = await states.get_nearest(tx, *key, kept)
    return _Day(
        revisions=part,
        amendments=amendments,
        superseded=superseded(leading) | (amendments.keys() - leading.keys()),
        saved=await thinning.read_saved(tx, *key, begin, kept),
        before=before,
        after=after.memory(PrismSpec.of(stored).schema()).value_json,
    )
