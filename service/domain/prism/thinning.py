"""Thinning the history of a memory: which amendments the days that are kept do without.

And which chunks its entries rest on, where some of the amendments that wrote them are gone.
"""

from collections.abc import Iterable, Mapping, Sequence

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.entries import NO_POSITIONS
from service.domain.search.entries import WrittenEntry

#: A revision, and the number of an amendment within it.
Place = tuple[int, int]


def superseded(amendments: Mapping[Place, Amendment]) -> set[Place]:
    """Returns those whose place in the memory a later revision wrote as a whole.

    `amendments` are in order, oldest first. What is left says where each value came from. Removals
    of elements of lists stay: those after them move up, so that their places mean others before.
    """
    found: set[Place] = set()
    written: set[tuple[str | int, ...]] = set()
    pending: list[tuple[str | int, ...]] = []
    revision = -1
    for place, one in reversed(list(amendments.items())):
        if place[0] != revision:
            written.update(pending)
            pending.clear()
            revision = place[0]
        tokens = one.path.tokens
        if one.op is Op.REMOVE and tokens and isinstance(tokens[-1], int):
            of_list = tokens[:-1]
            written = {other for other in written if not _is_below(other, of_list)}
            pending = [other for other in pending if not _is_below(other, of_list)]
            continue
        if any(tokens[:depth] in written for depth in range(len(tokens) + 1)):
            found.add(place)
        else:
            pending.append(tokens)
    return found


def _is_below(lower: tuple[str | int, ...], upper: tuple[str | int, ...]) -> bool:
    return len(lower) > len(upper) and lower[: len(upper)] == upper


class ThinnedDays:
    """Goes through the revisions of a memory, to know which chunks each thinned day read."""

    def __init__(self) -> None:
        #: The revision that the last thinned day kept, and how far the log was read then.
        self.last_revision = 0
        self.last_position = 0
        #: The chunks that this day read; both 0: none.
        self.positions = NO_POSITIONS
        self._begun: int | None = None

    def end_at(self, revision: int, from_position: int, to_position: int, expired: bool) -> bool:
        """Notes the next revision; returns whether it is kept of a day of which others expired."""
        if expired and self._begun is None:
            self._begun = from_position
        if expired or self._begun is None:
            return False
        read = (self._begun + 1, to_position)
        self.positions = read if to_position > self._begun else NO_POSITIONS
        self.last_revision, self.last_position = revision, to_position
        self._begun = None
        return True

    def with_origins(
        self, made: Iterable[WrittenEntry], stored: Iterable[WrittenEntry]
    ) -> Sequence[WrittenEntry]:
        """Returns entries with their origins as they were stored before amendments expired."""
        before = {one.entry.entry_id: one for one in stored}
        return [
            kept if (kept := before.get(one.entry.entry_id)) and self._knows(kept, one) else one
            for one in made
        ]

    def _knows(self, stored: WrittenEntry, made: WrittenEntry) -> bool:
        """Returns whether the origin of an entry may be as it is stored."""
        if stored.entry != made.entry or (stored.last_position or 0) > self.last_position:
            return False
        return stored.revision == made.revision or (
            max(stored.revision, made.revision) <= self.last_revision
        )
