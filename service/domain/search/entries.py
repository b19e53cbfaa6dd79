"""Defines entries, which searches in memories find: small parts of a memory with a path."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.values.json_values import Json, restore
from service.domain.values.paths import Path

#: Characters of an entry's text; a longer one is several entries of one path.
TEXT_CHARACTERS = 1200
#: Where a long text is cut, best first.
_ENDS = ("\n\n", "\n", ". ", "! ", "? ", "。", "; ", ", ", " ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A part of a memory that a search finds."""

    #: A normalized path of a PRISM memory; the id of a node of a tree; level and revision of a
    #: state vector.
    path: str
    #: 0, 1, 2 …: the parts of a long text.
    part: int = 0
    #: JSON with sorted keys; of a long text the part as a string.
    value: str

    @property
    def entry_id(self) -> UUID:
        """Its key within the memory. A path may be too long for one."""
        name = f"{self.part} {self.path}".encode()
        return UUID(bytes=hashlib.sha256(name).digest()[:16])

    @property
    def text(self) -> str:
        """What is searched, embedded and shown: the keys of the path, then the value."""
        return entry_text(self.path, self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenEntry:
    """An entry as a revision writes it."""

    entry: Entry
    #: The revision that wrote what it says.
    revision: int
    #: The chunks that it rests on; both 0: none. None: those of its source, or none without one.
    first_position: int | None
    last_position: int | None
    #: The id of the entry that it replaces, or that moved here; None: it is new.
    source: UUID | None = None
    #: Whether it says what its source says: then revision, chunks and vector are the source's.
    is_moved: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryChanges:
    """What a revision changes in the entries of its memory."""

    written: Sequence[WrittenEntry] = ()
    #: Ids of the entries that are no more.
    dropped: Sequence[UUID] = ()

    def __bool__(self) -> bool:
        return bool(self.written or self.dropped)


#: What a revision changes that leaves the entries as they are.
UNCHANGED = EntryChanges()


def text_entries(path: str, text: str) -> Iterator[Entry]:
    """Yields the entries of a text: one, or several where it is long; none where it is blank."""
    for part, piece in enumerate(_pieces(text)):
        yield Entry(path=path, part=part, value=sorted_json(piece))


def sorted_json(value: Json) -> str:
    """Returns JSON that is the same whatever the order of keys is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def entry_text(path: str, value: str) -> str:
    """Returns the text of an entry from its path and its JSON."""
    keys = Path.parse(path).tokens if path.startswith("$") else ()
    named = " / ".join(_plain(key) for key in keys if isinstance(key, str))
    text = _spoken(restore(value))
    return f"{named}: {text}" if named else text


def _plain(key: str) -> str:
    return key.replace("_", " ")


def _spoken(value: Json, *, is_inner: bool = False) -> str:
    """Returns a value as people write it."""
    if isinstance(value, dict):
        pairs = ((_plain(key), _spoken(one, is_inner=True)) for key, one in value.items())
        text = "; ".join(f"{key}: {said}" for key, said in pairs if said)
        return f"({text})" if is_inner and text else text
    if isinstance(value, list):
        return ", ".join(filter(None, (_spoken(one, is_inner=True) for one in value)))
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def _pieces(text: str) -> Iterator[str]:
    while len(text) > TEXT_CHARACTERS:
        end = _end_of_piece(text)
        if text[:end].strip():
            yield text[:end].strip()
        text = text[end:]
    if text.strip():
        yield text.strip()


def _end_of_piece(text: str) -> int:
    for end in _ENDS:
        at = text.rfind(end, TEXT_CHARACTERS // 2, TEXT_CHARACTERS)
        if at >= 0:
            return at + len(end)
    return TEXT_CHARACTERS


def changed_entries(
    before: Iterable[Entry],
    after: Iterable[Entry],
    *,
    revision: int,
    positions: tuple[int, int] | None,
) -> EntryChanges:
    """Returns what makes the entries `before` those `after`.

    Entries that a revision changes rest on the chunks `positions`; None: on those of what they
    replace. One that moved, since an element of a list before it went, stays what it was.
    """
    old = {one.entry_id: one for one in before}
    new = {one.entry_id: one for one in after}
    changed = {key: one for key, one in new.items() if key not in old or old[key] != one}
    places: dict[str, list[UUID]] = {}
    for key, one in old.items():
        if key in changed or key not in new:
            places.setdefault(one.text, []).append(key)
    first, last = positions or (None, None)
    written: list[WrittenEntry] = []
    for key, one in changed.items():
        moved_from = places.get(one.text)
        is_moved = bool(moved_from)
        written.append(
            WrittenEntry(
                entry=one,
                revision=revision,
                first_position=first,
                last_position=last,
                source=moved_from.pop(0) if moved_from else key if key in old else None,
                is_moved=is_moved,
            )
        )
    return EntryChanges(written=written, dropped=[key for key in old if key not in new])
