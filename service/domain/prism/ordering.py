"""The order of a memory's keys: what seldom changes comes first.

A new base is found in the provider's cache up to its first change. JSON does not mind the
order of keys, so a fold may put those that change often, and are small, after those that
rarely do: ascending by the odds that a key has changed by the next fold, per character.
New keys otherwise stay at the end, where amending puts them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.domain.values.beginnings import common_characters
from service.domain.values.json_values import Json, canonical

#: Levels of objects that are ordered: the memory's own keys, and those of their values.
LEVELS = 2
#: Keys whose changes are counted; the others are taken for seldom changed.
MAX_KEYS = 64
#: Folds after which all counts are halved, so that old habits are forgotten.
MEMORY_FOLDS = 32
#: Folds that must have looked before keys are moved.
MIN_FOLDS = 4
#: By how much the expected saving must exceed what moving the keys costs.
CAUTION = 4
#: Stands for the place after an object's last key, where new ones come.
GROWTH = ""

Keys = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """How often keys were found changed by folds."""

    #: Folds that looked; 0 to MEMORY_FOLDS.
    folds: int = 0
    #: How many of them found a key changed, by the keys from the root on.
    counts: Mapping[Keys, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Changes":
        """Reads `to_json` back. Raises KeyError, TypeError or ValueError for anything else."""
        counts = {tuple(map(str, keys)): int(count) for keys, count in stored["counts"]}
        return cls(folds=int(stored["folds"]), counts=counts)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as plain JSON."""
        return {
            "folds": self.folds,
            "counts": [[list(keys), count] for keys, count in self.counts.items()],
        }

    def since(self, old: Json, new: Json) -> "Changes":
        """Returns the counts with what a fold finds changed between the old base and the new."""
        counts = dict(self.counts)
        for keys in _changed(old, new, ()):
            counts[keys] = counts.get(keys, 0) + 1
        folds = self.folds + 1
        if folds > MEMORY_FOLDS:
            folds //= 2
            counts = {keys: count // 2 for keys, count in counts.items() if count > 1}
        if len(counts) > MAX_KEYS:
            # The order of the keys decides between equals, so that a replay does alike.
            most = sorted(counts, key=lambda keys: (-counts[keys], keys))[:MAX_KEYS]
            counts = {keys: counts[keys] for keys in most}
        return Changes(folds=folds, counts=counts)

    def odds(self, keys: Keys) -> float:
        """Returns the odds that a key has changed by the next fold.

        Once is no habit: a single change counts as none.
        """
        count = max(self.counts.get(keys, 0) - 1, 0)
        return count / (self.folds - count)


def _changed(old: Json, new: Json, at: Keys) -> Iterator[Keys]:
    """Yields the keys that both have, of `LEVELS` levels, with different values."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return
    if any(key not in old for key in new):
        yield (*at, GROWTH)
    for key, value in new.items():
        if key in old and canonical(old[key]) != canonical(value):
            yield (*at, key)
            if len(at) + 1 < LEVELS:
                yield from _changed(old[key], value, (*at, key))


def arranged(value: Json, changes: Changes, at: Keys = ()) -> Json:
    """Returns the same value with its keys in the best order by `changes`."""
    if not isinstance(value, dict) or len(at) >= LEVELS:
        return value
    below = {key: arranged(one, changes, (*at, key)) for key, one in value.items()}
    weights = {key: changes.odds((*at, key)) / _size(key, one) for key, one in below.items()}
    return {key: below[key] for key in sorted(below, key=weights.__getitem__)}


def ordered(base_json: str, value: Json, changes: Changes, *, is_cold: bool) -> Json:
    """Returns the same value, in the best order if that pays for what it moves, else as it is.

    It pays when about as many folds as there have been will save several times what is
    written once. When the cache is cold, all is written anyway.
    """
    if changes.folds < MIN_FOLDS:
        return value
    best = arranged(value, changes)
    as_is, moved = canonical(value), canonical(best)
    if as_is == moved:
        return value
    saving = _rewritten(value, changes) - _rewritten(best, changes)
    once = 0
    if not is_cold:
        once = common_characters(base_json, as_is) - common_characters(base_json, moved)
    return best if saving > 0 and saving * changes.folds > CAUTION * once else value


def _rewritten(value: Json, changes: Changes) -> float:
    """Characters that the next fold is expected to write: those after the first change."""
    unchanged = 1.0
    written = 0.0
    for keys, size in _leaves(value, ()):
        odds = changes.odds(keys)
        unchanged /= 1 + odds
        written += size * (1 - unchanged)
    return written


def _leaves(value: Json, at: Keys) -> Iterator[tuple[Keys, int]]:
    if isinstance(value, dict):
        for key, one in value.items():
            keys = (*at, key)
            if isinstance(one, dict) and len(keys) < LEVELS:
                yield from _leaves(one, keys)
            else:
                yield keys, _size(key, one)
        yield (*at, GROWTH), 1


def _size(key: str, value: Json) -> int:
    return len(key) + len(canonical(value)) + 4
