"""Undoing what came from a source: a memory's amendments again, without some of its revisions.

Places must mean the same as when the amendments were made. So an element of a list that is undone
keeps its place until the end, and what else would move or cannot be placed is undone as well.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from service.domain.prism.amending import MISSING, amend, copied, value_at
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.tree import Mismatch, Schema
from service.domain.values.json_values import Json
from service.domain.values.paths import Path

#: Characters from which a text is looked for within others: shorter ones are everywhere.
TELLING_CHARACTERS = 8


_Place = tuple[str | int, ...]


class _Undone(str):
    """Keeps the place of an element of a list that is undone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRevision:
    """A revision that led to the present state."""

    revision: int
    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    amendments: Sequence[Amendment]

    @property
    def is_by_hand(self) -> bool:
        """Returns whether a person made it: it stays as far as it can be placed."""
        return self.kind == "edit"


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueWithout:
    """A memory's value without some of its revisions."""

    value: Json
    #: The revisions that are undone: those that were named, and those that rest on them.
    undone: frozenset[int]
    #: Changes by hand that have no place any more.
    dropped_edits: int


def without(
    schema: Schema, start: Json, past: Sequence[PastRevision], tainted: Collection[int]
) -> ValueWithout:
    """Returns the value that `past` makes of `start` without the revisions `tainted`.

    Undone besides: consolidations after them, which say the same in other words, and revisions
    that repeat what they say or that need what they made.
    """
    return _Replay(schema, start, tainted).run(past)


class _Replay:
    def __init__(self, schema: Schema, start: Json, tainted: Collection[int]) -> None:
        self._schema = schema
        self._value = copied(start)
        self._tainted = tainted
        self._undone: set[int] = set()
        #: Places whose lists have other elements than when the amendments were made.
        self._moved: set[Path] = set()
        self._said = _Said()
        self._dropped = 0

    def run(self, past: Sequence[PastRevision]) -> ValueWithout:
        for one in past:
            if one.is_by_hand:
                self._edit(one)
            elif not self._is_undone(one) and self._applied(one):
                continue
            else:
                self._undo(one)
        value = _without_places(self._value)
        return ValueWithout(
            value=value, undone=frozenset(self._undone), dropped_edits=self._dropped
        )

    def _is_undone(self, one: PastRevision) -> bool:
        if one.revision in self._tainted:
            return True
        if not self._undone:
            return False
        return one.kind == "consolidation" or any(map(self._said.has, one.amendments))

    def _applied(self, one: PastRevision) -> bool:
        """Applies a revision as a whole; False, and nothing is changed, where it has no place."""
        if any(map(self._is_displaced, one.amendments)):
            return False
        try:
            self._value = amend(self._schema, self._value, one.amendments)
        except Mismatch:
            return False
        return True

    def _edit(self, one: PastRevision) -> None:
        """Applies what can be placed of a change by hand."""
        for change in one.amendments:
            try:
                if self._is_displaced(change):
                    raise Mismatch("its list has other elements")
                self._value = amend(self._schema, self._value, (change,))
            except Mismatch:
                self._dropped += 1

    def _is_displaced(self, one: Amendment) -> bool:
        tokens = one.path.tokens
        elements = [at for at, token in enumerate(tokens) if isinstance(token, int)]
        upto = elements[-1] + 1 if elements else 0
        return any(Path(tokens[:end]) in self._moved for end in range(upto))

    def _undo(self, one: PastRevision) -> None:
        self._undone.add(one.revision)
        for change in one.amendments:
            self._said.add(change)
            self._keep_place(change)

    def _keep_place(self, one: Amendment) -> None:
        path = one.path
        in_list = bool(path.tokens) and isinstance(path.tokens[-1], int)
        if one.op is Op.REMOVE:
            if in_list:
                self._moved.add(path.parent)
            return
        if in_list and value_at(self._value, path) is MISSING:
            try:
                place = Amendment(path=path, op=Op.ADD, value=_Undone())
                self._value = amend(self._schema, self._value, (place,))
            except Mismatch:
                self._moved.add(path.parent)
        elif isinstance(one.value, list | dict):
            self._moved.add(path)


def _without_places(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_places(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_without_places(child) for child in value if not isinstance(child, _Undone)]
    return value


def _leaves(value: Json) -> Iterator[Json]:
    if isinstance(value, dict):
        for key, child in value.items():
            # Names of fields have no blanks, and are in many values.
            if " " in key:
                yield key
            yield from _leaves(child)
    elif isinstance(value, list):
        for child in value:
            yield from _leaves(child)
    else:
        yield value


class _Said:
    """What undone revisions say, to find what repeats it: there may be thousands of each."""

    def __init__(self) -> None:
        #: By place, and by each place above.
        self._at: defaultdict[_Place, set[Json]] = defaultdict(set)
        self._below: defaultdict[_Place, set[Json]] = defaultdict(set)
        #: Texts of so many characters, by their beginning.
        self._long: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, one: Amendment) -> None:
        """Adds what an amendment says."""
        place = one.path.tokens
        for leaf in _leaves(one.value):
            if isinstance(leaf, str) and len(leaf) >= TELLING_CHARACTERS:
                self._long[leaf[:TELLING_CHARACTERS]].add(leaf)
            if leaf not in (None, ""):
                self._at[place].add(leaf)
                for end in range(len(place)):
                    self._below[place[:end]].add(leaf)

    def has(self, one: Amendment) -> bool:
        """Returns whether an amendment has one of the longer texts, anywhere.

        Or anything that was said at its place, above it or below it.
        """
        place = one.path.tokens
        near = [self._at.get(place[:end]) for end in range(len(place) + 1)]
        near.append(self._below.get(place))
        leaves = list(_leaves(one.value))
        if any(said and leaf in said for said in near for leaf in leaves):
            return True
        return any(self._repeats(leaf) for leaf in leaves if isinstance(leaf, str))

    def _repeats(self, text: str) -> bool:
        # One comprehension for all places: it is most of the time that a quarantine takes.
        known, width = self._long, TELLING_CHARACTERS
        places = range(len(text) - width + 1)
        begun = [at for at in places if text[at : at + width] in known]
        return any(text.startswith(one, at) for at in begun for one in known[text[at : at + width]])
