"""Judges proposals against a memory, its schema and its rules.

Any proposals give a list of amendments that apply, and a list of rejections with their reasons.
`service.domain.prism.reading` reads the format of replies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from service.domain.prism.amending import MISSING, Missing, put, remove, settle, value_at
from service.domain.prism.amendments import (
    Amendment,
    Op,
    Proposal,
    Rejection,
    RejectionCause,
    Revision,
    Rules,
    rejected,
)
from service.domain.prism.coercion import coerce
from service.domain.prism.reading import UnreadRemoval, read_proposals, says_nothing_changes
from service.domain.prism.replies import value_of
from service.domain.prism.schemas.tree import PLACEHOLDER, Schema, Type, fit
from service.domain.prompting.asking import Unusable
from service.domain.prompting.replies import MAX_REVISION_CHARACTERS
from service.domain.values.json_values import MAX_DEPTH, Json, canonical, checked
from service.domain.values.paths import MAX_PATH_CHARACTERS, Path

#: Proposals of a reply that are considered.
MAX_PROPOSALS = 500

#: A memory that was full has room again once it is no larger than this share of its limits.
ROOM_SHARE = 0.9

#: Whether the prompt did not show all of what is at a place.
Hides = Callable[[Path], bool]

_DEFAULT = Rules()
_NO_CHANGE = 'there is none, and it is not {"changes": []}'


class _Unchanged(ValueError):
    """The value is there already: nothing is lost."""


class _NoRoom(ValueError):
    """The memory would be too large."""


def hides_nothing(_: Path) -> bool:
    """Hides nothing: the whole memory was shown."""
    return False


def parse_reply(
    text: str,
    schema: Schema,
    value: Json,
    rules: Rules = _DEFAULT,
    hides: Hides = hides_nothing,
) -> Revision:
    """Judges what a model's reply proposes for a memory whose value is `value`.

    Raises Unusable for a reply that is too long, and for one without a proposal, except one
    that says in one of the forms that nothing is to be changed.

    Proposals apply one after the other: a later one sees what earlier ones did. An
    invalid one is rejected by itself and does not sink its neighbours. Removals come
    last: none moves what another one names, and none takes what the reply has changed.
    What is there and was not shown is not replaced: `Revision.unseen` names it.
    """
    return _parsed(text, _Judge(schema, value, rules, hides=hides))


def parse_consolidation(
    text: str, schema: Schema, value: Json, rules: Rules, hides: Hides = hides_nothing
) -> Revision:
    """Judges a reply that says the same in fewer words. Raises Unusable.

    As `parse_reply`, but updates and removals are allowed and additions are not:
    nothing new has been read. When anything but a removal is rejected nothing is
    removed: what was to go may have been meant to live on in what was rejected.
    """
    rules = replace(rules, add_only=False, may_remove=True)
    return _parsed(text, _Judge(schema, value, rules, consolidates=True, hides=hides))


class InvalidEdit(ValueError):
    """One of a set of edits is invalid; the message says why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        #: Which one; the first is 0.
        self.number = number


def edited(
    proposals: Iterable[Proposal], schema: Schema, value: Json, rules: Rules
) -> tuple[Amendment, ...]:
    """Returns the amendments of edits by hand, in their order. Raises InvalidEdit.

    What is there already makes no amendment.
    """
    judge = _Judge(schema, value, rules)
    for number, proposal in enumerate(proposals):
        try:
            judge.take(proposal)
        except _Unchanged:
            continue
        except ValueError as error:
            raise InvalidEdit(number, str(error)) from error
    return tuple(judge.amendments)


def has_room(value: Json, rules: Rules) -> bool:
    """Returns whether a memory that was full can take proposals again; walks all of it."""
    return (
        _bytes(value) <= ROOM_SHARE * rules.max_memory_bytes
        and _extent(value)[1] <= ROOM_SHARE * rules.max_breadth
    )


def _parsed(text: str, judge: "_Judge") -> Revision:
    removals: list[Proposal] = []
    if len(text) > MAX_REVISION_CHARACTERS:
        raise Unusable(f"it has more than {MAX_REVISION_CHARACTERS:,} characters")
    everything = list(read_proposals(text))
    if not any(isinstance(one, Proposal) for one in everything):
        if says_nothing_changes(text):
            return judge.revision()
        why = next((one.reason for one in everything if isinstance(one, Rejection)), _NO_CHANGE)
        raise Unusable(f"no change could be read in it: {why}")
    found = iter(everything)
    for one in islice(found, MAX_PROPOSALS):
        if isinstance(one, Rejection):
            judge.rejections.append(one)
            judge.has_lost = judge.has_lost or not _is_removal(one)
        elif one.op is Op.REMOVE:
            removals.append(one)
        else:
            judge.hear(one)
    rest = list(found)
    judge.has_lost = judge.has_lost or not all(map(_is_removal, rest))
    judge.hear_removals(removals)
    if rest:
        judge.reject(text[-200:], f"a reply has at most {MAX_PROPOSALS} proposals")
    return judge.revision()


def _is_removal(one: Proposal | Rejection) -> bool:
    return isinstance(one, UnreadRemoval) or (isinstance(one, Proposal) and one.op is Op.REMOVE)


@dataclass(slots=True)
class _Judge:
    """Checks proposals against the schema and the memory as it changes."""

    schema: Schema
    value: Json
    rules: Rules
    #: Nothing may be added, and nothing lost.
    consolidates: bool = False
    hides: Hides = hides_nothing
    unseen: list[Path] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    #: Something was rejected that was to be kept.
    has_lost: bool = False
    #: Bytes of `value` as canonical JSON; -1 until they are needed.
    bytes: int = -1

    def revision(self) -> Revision:
        """Returns the judgements so far."""
        return Revision(
            amendments=tuple(self.amendments),
            rejections=tuple(self.rejections),
            unseen=tuple(self.unseen),
        )

    def reject(
        self, proposal: str, reason: str, cause: RejectionCause = RejectionCause.INVALID
    ) -> None:
        """Notes a rejection."""
        self.rejections.append(rejected(proposal, reason, cause))

    def hear(self, proposal: Proposal) -> None:
        """Takes a proposal in, or rejects it."""
        try:
            self.take(proposal)
        except ValueError as error:
            cause = _cause_of(error)
            self.has_lost = self.has_lost or cause is not RejectionCause.UNCHANGED
            self.reject(_shown(proposal), str(error), cause)

    def take(self, proposal: Proposal) -> None:
        """Takes a proposal in. Raises ValueError with the reason why not."""
        self._take(proposal, *self._settle(proposal.path))

    def hear_removals(self, removals: Iterable[Proposal]) -> None:
        """Takes removals in so that each means the place that its author saw.

        The last elements of a list go first, so that the others keep their indexes.
        """
        settled: dict[Path, tuple[Proposal, Type]] = {}
        changed = {one.path for one in self.amendments}
        above = {place for path in changed for place in _way(path)}
        for proposal in removals:
            try:
                if self.consolidates and self.has_lost:
                    raise ValueError("nothing is removed, since a part of the reply was rejected")
                path, of = self._settle(proposal.path)
                if path in settled:
                    raise ValueError("it is removed already")
                if path in above or any(place in changed for place in _way(path)):
                    # An index may be that of what was there before.
                    raise ValueError("the same reply has changed what is there")
                settled[path] = proposal, of
            except ValueError as error:
                self.reject(_shown(proposal), str(error))
        for path in sorted(settled, key=_removal_order):
            proposal, of = settled[path]
            try:
                self._take(proposal, path, of)
            except ValueError as error:
                self.reject(_shown(proposal), str(error))

    def _settle(self, text: str) -> tuple[Path, Type]:
        path, of = settle(self.schema, self.value, Path.parse(text))
        if len(str(path)) > MAX_PATH_CHARACTERS:
            raise ValueError(f"the path is longer than {MAX_PATH_CHARACTERS} characters")
        if not path.tokens:
            raise ValueError("the memory as a whole cannot be replaced; name a field")
        return path, of

    def _take(self, proposal: Proposal, path: Path, of: Type) -> None:
        """Makes the proposal an amendment. Raises ValueError with the reason."""
        held = value_at(self.value, path)
        removes = proposal.op is Op.REMOVE
        op = Op.REMOVE if removes else Op.ADD if held is MISSING else Op.UPDATE
        if proposal.op in (Op.REMOVE, Op.UPDATE):
            # What may not be done needs no look at what is there. An addition may be meant for
            # what is below.
            self._check_op(op, proposal.op)
        if not isinstance(held, Missing) and _is_known(held) and self.hides(path):
            self._check_unchanged(proposal, path, of, held)
        self._check_op(op, proposal.op)
        new = None if removes else self._fitting(of, value_of(proposal, of))
        if removes:
            after = remove(self.schema, self.value, path)
        else:
            if held is not MISSING:
                _check_update(held, new, may_remove=self.rules.may_remove)  # type: ignore[arg-type]
            self._check_shape(path, new, is_new=held is MISSING)
            self._check_index(path)
            after = put(self.schema, self.value, path, new)
        self._count(after, path, op)
        self.value = after
        corrected = proposal.op is not None and op is not proposal.op
        self.amendments.append(Amendment(path=path, op=op, value=new, op_corrected=corrected))

    def _check_unchanged(self, proposal: Proposal, path: Path, of: Type, held: Json) -> None:
        """Raises ValueError for what would replace a value that was not shown."""
        if proposal.op is not Op.REMOVE:
            new = self._fitting(of, value_of(proposal, of))
            if canonical(new) == canonical(held):
                return
        self.unseen.append(path)
        raise ValueError("something is there already that the step was not shown, or not all of it")

    def _check_index(self, path: Path) -> None:
        """Notes a list that is named by an index beyond its end, when it was not shown."""
        holder, last = value_at(self.value, path.parent), path.tokens[-1]
        is_beyond = isinstance(holder, list) and isinstance(last, int) and last > len(holder)
        if is_beyond and self.hides(path.parent):
            self.unseen.append(path.parent)

    def _check_op(self, op: Op, proposed: Op | None) -> None:
        if op is Op.REMOVE and not self.rules.may_remove:
            raise ValueError("nothing may be removed from this memory now")
        if op is Op.UPDATE and self.rules.add_only:
            why = "it is there already, and this memory takes no updates"
            raise ValueError(why if proposed is Op.ADD else "this memory takes no updates")
        if op is Op.ADD and self.consolidates:
            raise ValueError("nothing may be added by a consolidation, and nothing is there yet")

    def _fitting(self, of: Type, value: Json) -> Json:
        value = checked(value)
        new = coerce(of, value) if self.rules.coerce else fit(of, value)
        size, limit = len(canonical(new).encode()), self.rules.max_value_bytes
        if size > limit:
            raise ValueError(f"the value has {size} bytes; the limit is {limit}")
        return new

    def _check_shape(self, path: Path, new: Json, *, is_new: bool) -> None:
        depth, breadth = _extent(new)
        limit = min(self.rules.max_depth, MAX_DEPTH)
        if len(path.tokens) + depth > limit:
            raise ValueError(
                f"the memory would have {len(path.tokens) + depth} levels; the limit is {limit}"
            )
        holder = value_at(self.value, path.parent)
        most = self.rules.max_breadth
        if breadth > most:
            raise ValueError(f"a list or dict would have {breadth} entries; the limit is {most}")
        if is_new and isinstance(holder, dict | list) and len(holder) + 1 > most:
            raise _NoRoom(
                f"a list or dict would have {len(holder) + 1} entries; the limit is {most}"
            )

    def _count(self, after: Json, path: Path, op: Op) -> None:
        """Updates `bytes` for `after`. Raises ValueError when the memory grows too large."""
        if self.bytes < 0:
            self.bytes = _bytes(self.value)
        change = _growth(self.value, after, path, op)
        size = _bytes(after) if change is None else self.bytes + change
        limit = self.rules.max_memory_bytes
        # What is too large already may become smaller.
        if size > limit and size > self.bytes:
            raise _NoRoom(f"the memory would have {size} bytes; the limit is {limit}")
        self.bytes = size


def _cause_of(error: ValueError) -> RejectionCause:
    if isinstance(error, _NoRoom):
        return RejectionCause.NO_ROOM
    return RejectionCause.UNCHANGED if isinstance(error, _Unchanged) else RejectionCause.INVALID


def _way(path: Path) -> list[Path]:
    """Returns the places from below the root to `path`, itself the last."""
    return [Path(path.tokens[: depth + 1]) for depth in range(len(path.tokens))]


def _removal_order(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sorts later list elements first, and what is within them before they are gone."""
    steps = ((0, -one, "") if isinstance(one, int) else (1, 0, one) for one in path.tokens)
    # Longer paths first among those that begin alike.
    return (*steps, (2, 0, ""))


def _check_update(held: Json, new: Json, *, may_remove: bool) -> None:
    """Raises ValueError when the update changes nothing, or forgets what was known."""
    # Compared as text: in Python 1 equals True and 1.0.
    if canonical(held) == canonical(new):
        raise _Unchanged("it changes nothing")
    if _forgets(held, new, may_empty=may_remove):
        why = 'an update must not replace what is known by null, "????" or nothing'
        raise ValueError(f"{why}; remove it instead" if may_remove else why)


def _forgets(held: Json, new: Json, *, may_empty: bool) -> bool:
    """Returns whether null, a placeholder, or an empty list or dict replaces what is known."""
    if not _is_known(new):
        return _is_known(held) and not (may_empty and new in ([], {}))
    if isinstance(held, dict) and isinstance(new, dict):
        both = ((child, new[key]) for key, child in held.items() if key in new)
        return any(_forgets(old, young, may_empty=may_empty) for old, young in both)
    if isinstance(held, list) and isinstance(new, list) and len(held) == len(new):
        pairs = zip(held, new, strict=True)
        return any(_forgets(old, young, may_empty=may_empty) for old, young in pairs)
    return False


def _is_known(value: Json) -> bool:
    """Returns whether anything but null and placeholders is in it."""
    if isinstance(value, dict):
        return any(_is_known(child) for child in value.values())
    if isinstance(value, list):
        return any(_is_known(child) for child in value)
    return value is not None and value != PLACEHOLDER


def _extent(value: Json) -> tuple[int, int]:
    """Levels of lists and dicts in a value, and the most entries that one has."""
    if not isinstance(value, dict | list):
        return 0, 0
    depth, breadth = 0, len(value)
    for child in value.values() if isinstance(value, dict) else value:
        below, wide = _extent(child)
        depth, breadth = max(depth, below), max(breadth, wide)
    return depth + 1, breadth


def _growth(before: Json, after: Json, path: Path, op: Op) -> int | None:
    """Returns by how many bytes `after` is longer, by what `path` changed; None: count anew."""
    if op is Op.REMOVE:
        holder = value_at(before, path.parent)
        several = isinstance(holder, dict | list) and len(holder) > 1
        return -_entry_bytes(before, path) - several
    top = _first_change(before, after, path)
    old, new = value_at(before, top.parent), value_at(after, top.parent)
    if not isinstance(old, dict | list) or not isinstance(new, dict | list):
        return None
    comma = len(old) > 0 and len(new) > len(old)
    if len(new) - len(old) not in (0, 1):
        return None
    return _entry_bytes(after, top) - _entry_bytes(before, top) + comma


def _first_change(before: Json, after: Json, path: Path) -> Path:
    """Returns the topmost place on the way to `path` that is new or of another kind, or `path`."""
    here = Path()
    for token in path.tokens:
        here /= token
        old, new = value_at(before, here), value_at(after, here)
        if not isinstance(old, dict | list) or type(old) is not type(new):
            break
    return here


def _entry_bytes(value: Json, path: Path) -> int:
    """Returns the bytes of the entry at `path`, with its key; 0 when there is none."""
    held = value_at(value, path)
    if held is MISSING:
        return 0
    token = path.tokens[-1]
    key = _bytes(token) + 1 if isinstance(token, str) else 0
    return key + _bytes(held)  # type: ignore[arg-type]


def _bytes(value: Json) -> int:
    return len(canonical(value).encode())


def _shown(proposal: Proposal) -> str:
    """Returns a proposal as a rejection repeats it."""
    try:
        if proposal.op is None:
            return canonical({proposal.path: proposal.value})
        return canonical({proposal.path: {proposal.op.value: proposal.value}})
    except (ValueError, TypeError, RecursionError):
        # What is no JSON value cannot be written as one.
        return proposal.path
