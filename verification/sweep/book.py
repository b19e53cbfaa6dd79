"""The book of a sweep: how often each point has fired with each action, and what is next.

It outlives a sweep that is ended, in a file: a hundred times each may take several sittings.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from verification.chaos.points import Point, points
from verification.chaos.switches import Action

#: What is known by these names may be chosen.
ACTIONS = {one.name.lower(): one for one in Action if one is not Action.NOTHING}
#: How far a pair may be ahead of the one that has fired least: all get their share at
#: any time, and those that are passed often do not keep processes from getting further.
SPREAD = 3

Pair = tuple[Point, Action]


class Book:
    """Counts of all pairs, and what is wanted of them."""

    def __init__(self, pairs: Sequence[Pair], times: int, path: Path | None = None) -> None:
        """Each of `pairs` is to fire `times` times, counting on from `path`."""
        self._path = path
        self._times = times
        #: In the order in which they come where nothing else decides.
        self._pairs = list(pairs)
        self._given_up: set[Pair] = set()
        self._fired: Counter[Pair] = Counter()
        #: Pairs of this run.
        self.run: Counter[Pair] = Counter()
        self._set: Counter[Pair] = Counter()
        if path is not None and path.exists():
            self._load(json.loads(path.read_text()))

    def next(self, taken: Collection[Point]) -> Pair | None:
        """Returns the pair to set next, of those that fired least, at none of `taken`; or None."""
        open_ = [pair for pair in self._wanted() if self._fired[pair] < self._times]
        if not open_:
            return None
        most = min(self._fired[pair] for pair in open_) + SPREAD
        free = [
            pair
            for pair in open_
            if pair[0] not in taken and self._due(pair) < min(most, self._times)
        ]
        return min(free, key=self._due) if free else None

    def _due(self, pair: Pair) -> int:
        return self._fired[pair] + self._set[pair]

    def set(self, pair: Pair) -> None:
        """Records that the pair is set."""
        self._set[pair] += 1

    def unset(self, pair: Pair) -> None:
        """Records that the pair was unset without firing."""
        self._set[pair] -= 1

    def fired(self, pair: Pair) -> None:
        """Records that the pair has fired and is no longer set."""
        self._set[pair] -= 1
        self._fired[pair] += 1
        self.run[pair] += 1

    def give_up(self, pair: Pair) -> None:
        """Never sets the pair again in this run, since nothing reaches its point."""
        self._given_up.add(pair)

    def is_done(self) -> bool:
        """Returns whether everything has fired so often."""
        return all(self._fired[pair] >= self._times for pair in self._wanted())

    def _wanted(self) -> list[Pair]:
        return [pair for pair in self._pairs if pair not in self._given_up]

    def missing(self) -> int:
        """Firings that are wanted still."""
        return sum(max(self._times - self._fired[pair], 0) for pair in self._pairs)

    def least(self) -> tuple[str, int]:
        """Returns the pair that has fired least of all, in all runs, and how often."""
        pair = min(self._pairs, key=lambda one: self._fired[one])
        return _name(pair), self._fired[pair]

    def total(self) -> int:
        """Firings of all runs."""
        return self._fired.total()

    def save(self) -> None:
        """Writes the file anew: all of it, or nothing."""
        if self._path is None:
            return
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(_table(self._fired), indent=1) + "\n")
        os.replace(new, self._path)

    def table(self) -> dict[str, dict[str, int]]:
        """Returns what has fired in this run, by point and action."""
        return _table(self.run)

    def _load(self, table: Mapping[str, Mapping[str, int]]) -> None:
        for name, counts in table.items():
            # A point that is no more is left out of the next file.
            for action, count in counts.items() if name in points() else ():
                self._fired[name, ACTIONS[action]] = count


def pairs_of(
    seed: int, chosen: Sequence[Point], actions: Sequence[Action], *, one_each: bool
) -> list[Pair]:
    """Returns all pairs, or one for each point, as the seed chooses; in an order that it makes."""
    rng = random.Random(seed)
    pairs = [
        (point, action)
        for point in chosen
        for action in ([rng.choice(actions)] if one_each else actions)
    ]
    rng.shuffle(pairs)
    return pairs


def _name(pair: Pair) -> str:
    return f"{pair[0]} ({pair[1].name.lower()})"


def _table(counts: Counter[Pair]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for point in points():
        for name, action in ACTIONS.items():
            if counts[point, action]:
                table.setdefault(point, {})[name] = counts[point, action]
    return table
