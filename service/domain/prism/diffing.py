"""Diffing: where two states of a memory differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.domain.prism.amending import MISSING, Missing
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueDifference:
    """A place where two states differ."""

    path: Path
    #: What each side has there; MISSING when nothing.
    old: Json | Missing
    new: Json | Missing


def differences(old: Json, new: Json, at: Path | None = None) -> Iterator[ValueDifference]:
    """Yields the places where the states differ, each as deep as it can be named.

    In the order of the old state's keys, then of the new one's. Elements of lists are
    compared place by place.
    """
    at = at or Path()
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            yield from _compare(old.get(key, MISSING), new.get(key, MISSING), at / key)
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            before = old[number] if number < len(old) else MISSING
            after = new[number] if number < len(new) else MISSING
            yield from _compare(before, after, at / number)
    elif canonical(old) != canonical(new):
        # As text: in Python 1 equals True and 1.0.
        yield ValueDifference(path=at, old=old, new=new)


def _compare(old: Json | Missing, new: Json | Missing, at: Path) -> Iterator[ValueDifference]:
    if isinstance(old, Missing) or isinstance(new, Missing):
        yield ValueDifference(path=at, old=old, new=new)
    else:
        yield from differences(old, new, at)
