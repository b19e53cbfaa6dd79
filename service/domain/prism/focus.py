"""Focuses a prompt on the parts of a large memory that fit a text best.

The names of its keys, how much there is where, and the entries that fit a text best. All of it
follows from stored rows and the text alone, so that a step that is made again has the same
prompt. An entry is a whole value: what holds many of them, or is too large for one, is taken
apart, and lists keep the indexes that they have.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from service.domain.prism import prompts
from service.domain.prism.amending import MISSING, value_at
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import (
    DictType,
    ListType,
    OptionalType,
    RecordType,
    TupleType,
    Type,
)
from service.domain.prompting.fitting import TextTooLong
from service.domain.prompting.flows import Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import fitting
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path

#: Shares of what is shown: of the names of keys and of the counts; of the entries, of those
#: that stand outside of lists and dicts, and of those that were changed last.
KEYS_SHARE = 1 / 8
COUNTS_SHARE = 1 / 16
STANDING_SHARE = 1 / 4
RECENT_SHARE = 1 / 4
#: Share of the room that what is below wanted places has, where it has more entries than that.
BELOW_SHARE = 1 / 2
#: What can be taken apart is, if it has more than this share.
ENTRY_SHARE = 1 / 8
#: After so many that did not fit, no smaller one is tried.
MAX_MISSES = 16

_Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FocusEntry:
    """A value that is shown as a whole, or not at all."""

    path: Path
    value: Json
    #: No list and no dict holds it, only records.
    stands: bool

    @property
    def line(self) -> str:
        """The line that shows it."""
        return prompts.entry_line(self.path, self.value)

    @property
    def words(self) -> str:
        """What it is found by: the names on the way to it, and what it says."""
        return f"{' '.join(map(str, self.path.tokens))} {canonical(self.value)}"


@dataclass(frozen=True, slots=True)
class _Holder:
    """A list or a dict that was taken apart."""

    path: Path
    value: dict[str, Json] | list[Json]


@dataclass(frozen=True, kw_only=True)
class FocusedView:
    """What a prompt shows of a memory."""

    #: The memory as it is.
    value: Json
    segments: tuple[Segment, ...]
    #: What is shown, in the memory's order; and what is not.
    entries: Sequence[FocusEntry]
    hidden: Sequence[FocusEntry]

    @cached_property
    def shown(self) -> frozenset[_Steps]:
        """The places of the entries that are shown."""
        return frozenset(one.path.tokens for one in self.entries)

    def hides(self, path: Path) -> bool:
        """Returns whether something is at `path` of which not all is shown."""
        way = [path.tokens[:end] for end in range(len(path.tokens) + 1)]
        if value_at(self.value, path) is MISSING or any(steps in self.shown for steps in way):
            return False
        return path.tokens in self._above or any(steps in self._ends for steps in way)

    def shows_more(self, than: "FocusedView", paths: Sequence[Path]) -> bool:
        """Returns whether it shows something at these paths that the other does not."""
        new = [one for one in self.entries if one.path.tokens not in than.shown]
        return any(_wanted(new, paths))

    @cached_property
    def _ends(self) -> frozenset[_Steps]:
        return frozenset(one.path.tokens for one in self.hidden)

    @cached_property
    def _above(self) -> frozenset[_Steps]:
        return frozenset(steps[:end] for steps in self._ends for end in range(len(steps)))


def focused(
    memory: PrismMemory, text: str, most_tokens: int, *, wanted: Sequence[Path] = ()
) -> FocusedView:
    """Returns what is shown of a memory beside `text`, in at most `most_tokens` and titles.

    First of all what is at the `wanted` paths, as far as it fits, and of what is below them
    what fits the text best.
    """
    held, holders = taken_apart(memory, most_tokens)
    keys, is_cut = _keys(holders, int(KEYS_SHARE * most_tokens), memory.count)
    counts = _counts(holders, int(COUNTS_SHARE * most_tokens), memory.count)
    left = most_tokens - memory.count(keys) - memory.count(counts)
    choice = _Choice(held, memory.count)
    fits = fitting(text, [one.words for one in held])
    at, below = _wanted(held, wanted)
    left -= choice.take(at, left)
    left -= choice.take(_first(fits, below), int(BELOW_SHARE * left))
    standing = (number for number, one in enumerate(held) if one.stands)
    left -= choice.take(standing, min(left, int(STANDING_SHARE * most_tokens)))
    left -= choice.take(_recent(held, memory), min(left, int(RECENT_SHARE * most_tokens)))
    choice.take(fits, left)
    shown = [held[number] for number in sorted(choice.lines)]
    lines = "".join(choice.lines[number] for number in sorted(choice.lines))
    return FocusedView(
        value=memory.value,
        segments=(
            # The names that came first stay as they are once there are too many of them.
            Segment(kind=SegmentKind.BASE, text=prompts.keys_segment(keys), lasting=is_cut),
            Segment(
                kind=SegmentKind.AMENDMENTS,
                text=prompts.entries_segment(counts, lines),
                reusable=False,
            ),
        ),
        entries=shown,
        hidden=[one for number, one in enumerate(held) if number not in choice.lines],
    )


def sections(memory: PrismMemory, most_tokens: int, *, room_tokens: int = 0) -> list[FocusedView]:
    """Returns the whole memory in parts of at most `most_tokens`, the last one first.

    In this order what is removed from one of them moves no index of those that follow. A
    single entry may have `room_tokens`, if that is more.
    Raises TextTooLong for an entry that no prompt has room for.
    """
    held, _ = taken_apart(memory, most_tokens)
    views: list[FocusedView] = []
    end = len(held)
    while end > 0:
        start, left = end, most_tokens
        while start > 0 and (tokens := memory.count(held[start - 1].line)) <= left:
            start -= 1
            left -= tokens
        if start == end:
            start -= 1
            tokens, room = memory.count(held[start].line), max(most_tokens, room_tokens, 0)
            if tokens > room:
                raise TextTooLong(
                    f"a value of the memory has {tokens} tokens, and the model's window has room"
                    f" for {room} of them; shorten it by hand (`palimpsest memory set`)"
                )
        views.append(_section(memory.value, held[start:end], [*held[:start], *held[end:]]))
        end = start
    return views


def halves(section: FocusedView) -> list[FocusedView]:
    """Returns a section in two, the last one first; none where it is a single entry."""
    middle = len(section.entries) // 2
    first, last = section.entries[:middle], section.entries[middle:]
    if not first:
        return []
    return [
        _section(section.value, last, [*section.hidden, *first]),
        _section(section.value, first, [*section.hidden, *last]),
    ]


def _section(
    value: Json, entries: Sequence[FocusEntry], hidden: Sequence[FocusEntry]
) -> FocusedView:
    text = "".join(one.line for one in entries)
    base = Segment(kind=SegmentKind.BASE, text=text, reusable=False)
    return FocusedView(value=value, segments=(base,), entries=entries, hidden=hidden)


def taken_apart(memory: PrismMemory, most_tokens: int) -> tuple[list[FocusEntry], list[_Holder]]:
    """Returns the entries in the memory's order, and the lists and dicts that hold them."""
    entries: list[FocusEntry] = []
    holders: list[_Holder] = []
    most = int(ENTRY_SHARE * most_tokens)

    def walk(of: Type | None, value: Json, path: Path, *, stands: bool) -> None:
        of = of.inner if isinstance(of, OptionalType) else of
        apart = stands and not isinstance(of, TupleType)
        if not (
            isinstance(value, dict | list)
            and value
            and (apart or estimate_tokens(canonical(value)) > most)
        ):
            entries.append(FocusEntry(path, value, stands))
            return
        stands = stands and isinstance(of, RecordType)
        if not isinstance(of, RecordType):
            holders.append(_Holder(path, value))
        pairs: Iterable[tuple[str | int, Json]] = (
            value.items() if isinstance(value, dict) else enumerate(value)
        )
        for token, child in pairs:
            walk(_below(of, token), child, path / token, stands=stands)

    walk(memory.schema.root, memory.value, Path(), stands=True)
    return [one for one in entries if one.path.tokens], holders


def _below(of: Type | None, token: str | int) -> Type | None:
    match of:
        case RecordType():
            field = of.field(str(token))
            return field.type if field else None
        case DictType():
            return of.value
        case ListType():
            return of.item
    return None


class _Choice:
    """Entries that were chosen, by their numbers."""

    def __init__(self, held: Sequence[FocusEntry], count: Callable[[str], int]) -> None:
        self._held = held
        self._count = count
        self.lines: dict[int, str] = {}

    def take(self, numbers: Iterable[int], most_tokens: int) -> int:
        """Chooses in this order what fits into `most_tokens`. Returns what that has."""
        taken = misses = 0
        for number in numbers:
            if number in self.lines:
                continue
            line = self._held[number].line
            tokens = self._count(line)
            if taken + tokens <= most_tokens:
                self.lines[number] = line
                taken += tokens
                continue
            misses += 1
            if misses == MAX_MISSES:
                break
        return taken


def _wanted(held: Sequence[FocusEntry], paths: Sequence[Path]) -> tuple[list[int], list[int]]:
    """Returns the entries that hold these paths, in the paths' order; and those below them."""
    wanted: dict[_Steps, int] = {}
    holding: dict[_Steps, int] = {}
    for order, path in enumerate(paths):
        wanted.setdefault(path.tokens, order)
        for end in range(len(path.tokens) + 1):
            holding.setdefault(path.tokens[:end], order)
    at: list[tuple[int, int]] = []
    below: list[int] = []
    for number, one in enumerate(held if wanted else ()):
        steps = one.path.tokens
        if steps in holding:
            at.append((holding[steps], number))
        elif any(steps[:end] in wanted for end in range(len(steps))):
            below.append(number)
    return [number for _, number in sorted(at)], below


def _first(best: Iterable[int], numbers: Sequence[int]) -> Iterator[int]:
    """Yields these numbers, the best of them first; some come twice."""
    among = set(numbers)
    yield from (number for number in best if number in among)
    yield from numbers


def _recent(held: Sequence[FocusEntry], memory: PrismMemory) -> Iterator[int]:
    """Yields what was changed since the last fold, the newest first."""
    numbers = {one.path.tokens: number for number, one in enumerate(held)}
    for batch in reversed(memory.batches):
        for path in reversed(batch.paths):
            for end in range(len(path.tokens), 0, -1):
                if path.tokens[:end] in numbers:
                    yield numbers[path.tokens[:end]]
                    break


def _keys(
    holders: Sequence[_Holder], most_tokens: int, count: Callable[[str], int]
) -> tuple[str, bool]:
    """Returns the names of the dicts' keys, and whether some are left out."""
    dicts = [(one.path, one.value) for one in holders if isinstance(one.value, dict)]
    text, is_cut, left = "", False, most_tokens
    for number, (path, value) in enumerate(dicts):
        named = _named(path, value, left // (len(dicts) - number), count)
        is_cut = is_cut or len(named) < len(value)
        if named:
            line = prompts.keys_line(path, named)
            text += line
            left -= count(line)
    return text, is_cut


def _named(
    path: Path, keys: Iterable[str], most_tokens: int, count: Callable[[str], int]
) -> list[str]:
    named: list[str] = []
    left, misses = most_tokens - count(prompts.keys_line(path, ())), 0
    for key in keys:
        tokens = count(canonical(key) + ", ")
        if tokens <= left:
            named.append(key)
            left -= tokens
            continue
        misses += 1
        if misses == MAX_MISSES:
            break
    return named


def _counts(holders: Sequence[_Holder], most_tokens: int, count: Callable[[str], int]) -> str:
    """Returns how much each list and dict has, as far as there is room."""
    text, left = "", most_tokens
    for number, one in enumerate(holders):
        line = prompts.count_line(one.path, len(one.value), is_list=isinstance(one.value, list))
        rest = prompts.rest_line(len(holders) - number)
        if count(line) + count(rest) > left:
            return text + rest
        text += line
        left -= count(line)
    return text
