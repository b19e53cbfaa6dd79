"""Provenance: which amendments a value of a PRISM memory came from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from service.domain.prism.amending import Missing, value_at
from service.domain.prism.amendments import Op
from service.domain.values.json_values import Json
from service.domain.values.paths import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """An amendment as the log has it."""

    revision: int
    #: 1, 2, 3 … within the revision.
    ordinal: int
    path: Path
    op: Op
    #: None for REMOVE.
    value: Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Touch:
    """An amendment that touched a place."""

    write: Write
    #: Where the place was then: elements of a list move up when one before them goes.
    path: Path
    #: No later amendment has replaced it as a whole.
    in_effect: bool


def search_path(path: Path) -> Path:
    """Returns the place to look for amendments in, so that none is missed: the topmost list."""
    for number, token in enumerate(path.tokens):
        if isinstance(token, int):
            return Path(path.tokens[:number])
    return path


class ValueTracer:
    """Goes back in time from what a place holds now."""

    def __init__(self, path: Path, *, exists: bool) -> None:
        #: `exists`: whether there is something at `path` now.
        self._path = path
        self._follows_lists = exists
        #: Paths of later amendments, as they were when they were made. A set, since a
        #: place may have been written any number of times.
        self._replaced: set[Path] = set()

    def touch(self, write: Write) -> Touch | None:
        """Returns what `write` did to the place; None when it did not touch it.

        To be called with all amendments at, above and below `search_path`, newest first.
        """
        if write.op is Op.REMOVE and self._moves(write.path):
            return None
        if not (_covers(write.path, self._path) or _covers(self._path, write.path)):
            return None
        region = max(write.path, self._path, key=_depth)
        in_effect = not any(above in self._replaced for above in _way(region))
        self._replaced.add(write.path)
        return Touch(write=write, path=self._path, in_effect=in_effect)

    def _moves(self, removed: Path) -> bool:
        """Returns whether the place moved up by one when `removed` went; then it moves back."""
        index, level = removed.tokens[-1], len(removed.tokens) - 1
        tokens = self._path.tokens
        if not self._follows_lists or not isinstance(index, int) or len(tokens) <= level:
            return False
        place = tokens[level]
        if tokens[:level] != removed.tokens[:-1] or not isinstance(place, int) or place < index:
            return False
        self._path = Path((*tokens[:level], place + 1, *tokens[level + 1 :]))
        self._replaced = {_moved_back(one, removed, level) for one in self._replaced}
        return True


def _moved_back(path: Path, removed: Path, level: int) -> Path:
    tokens = path.tokens
    if len(tokens) <= level or tokens[:level] != removed.tokens[:-1]:
        return path
    place, index = tokens[level], removed.tokens[-1]
    if isinstance(place, int) and isinstance(index, int) and place >= index:
        return Path((*tokens[:level], place + 1, *tokens[level + 1 :]))
    return path


class OriginSearch:
    """Looks for the amendment that first wrote what a place holds now.

    A model that extends a list repeats what was there, so the newest write is not where a
    value came from: the search goes back as long as the older writes hold it as well.
    """

    def __init__(self, value: Json) -> None:
        self._value = value
        #: The oldest write so far that holds the value; None when no write does.
        self.found: Write | None = None
        #: Nothing older can change that.
        self.is_over = False

    def look(self, touch: Touch) -> None:
        """Notes what touched the place; called for each, newest first."""
        if self.is_over:
            return
        if _holds(touch, self._value):
            self.found = touch.write
        elif _covers(touch.write.path, touch.path):
            self.is_over = True


def origin(value: Json, touches: Iterable[Touch]) -> Write | None:
    """Returns the amendment that first wrote `value`; `touches` are newest first."""
    search = OriginSearch(value)
    for touch in touches:
        search.look(touch)
    return search.found


def _depth(path: Path) -> int:
    return len(path.tokens)


def _way(path: Path) -> Iterator[Path]:
    """Yields the root, the places on the way to `path`, and itself."""
    return (Path(path.tokens[:depth]) for depth in range(len(path.tokens) + 1))


def _covers(upper: Path, lower: Path) -> bool:
    return lower.tokens[: len(upper.tokens)] == upper.tokens


def _holds(touch: Touch, value: Json) -> bool:
    write, path = touch.write, touch.path
    if write.op is Op.REMOVE:
        return False
    if _covers(path, write.path):
        return write.value == value
    rest = path.tokens[len(write.path.tokens) :]
    here = value_at(write.value, Path(rest[:-1]))
    # An element keeps being the same one when elements before it come or go.
    if isinstance(here, list):
        return value in here
    # What is not there is not null.
    return not isinstance(here, Missing) and value_at(here, Path(rest[-1:])) == value
