"""The entries of a PRISM memory, and what its revisions change in them.

An entry is a scalar, or a record with all that is in it, as long as it is short: what its fields
say belongs together. Elements of lists and values of dicts are entries of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from service.domain.prism.amending import MISSING, Missing, amend, value_at
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    ListType,
    OptionalType,
    RecordType,
    Schema,
    TupleType,
    Type,
)
from service.domain.search.entries import (
    Entry,
    EntryChanges,
    WrittenEntry,
    changed_entries,
    sorted_json,
    text_entries,
)
from service.domain.values.json_values import Json
from service.domain.values.paths import Path

#: Characters of a record's JSON up to which it is one entry.
RECORD_CHARACTERS = 600

#: The positions of an entry that rests on no chunk, since a person wrote it.
NO_POSITIONS = (0, 0)

_ROOT = (Path(),)


def entries(schema: Schema, value: Json, at: Path | None = None) -> Iterator[Entry]:
    """Yields the entries of a memory's value, in its order; with `at` those of a part of it."""
    of: Type | None = schema.root
    here: Json | Missing = value
    for token in (at or Path()).tokens:
        of, here = _inner(of, token), value_at(here, Path((token,)))  # type: ignore[arg-type]
        if here is MISSING:
            return
    yield from _entries(of, here, at or Path())  # type: ignore[arg-type]


def _entries(of: Type | None, value: Json, path: Path) -> Iterator[Entry]:
    if isinstance(value, dict | list) and not _is_whole(of, value, path):
        keyed = value.items() if isinstance(value, dict) else enumerate(value)
        for token, child in keyed:
            yield from _entries(_inner(of, token), child, path / token)
    elif isinstance(value, str):
        if value != PLACEHOLDER:
            yield from text_entries(str(path), value)
    elif not _is_blank(value):
        yield Entry(path=str(path), value=sorted_json(value))


def _is_blank(value: Json) -> bool:
    """Returns whether nothing is said."""
    if isinstance(value, dict):
        return all(map(_is_blank, value.values()))
    if isinstance(value, list):
        return all(map(_is_blank, value))
    return value is None or value == PLACEHOLDER or (isinstance(value, str) and not value.strip())


def _is_whole(of: Type | None, value: Json, path: Path) -> bool:
    """Returns whether a dict or list is one entry."""
    if not path.tokens or isinstance(_bare(of), DictType | ListType):
        return False
    return len(sorted_json(value)) <= RECORD_CHARACTERS


def _bare(of: Type | None) -> Type | None:
    return of.inner if isinstance(of, OptionalType) else of


def _inner(of: Type | None, token: str | int) -> Type | None:
    """Returns the type of what is at a key or index; None where the type does not say."""
    match _bare(of), token:
        case RecordType() as record, str():
            field = record.field(token)
            return None if field is None else field.type
        case DictType(value=value), str():
            return value
        case ListType(item=item), int():
            return item
        case TupleType(items=items), int() if token < len(items):
            return items[token]
    return None


def entries_after(
    schema: Schema,
    before: Json,
    after: Json,
    amendments: Sequence[Amendment] | None,
    *,
    revision: int,
    positions: tuple[int, int] | None,
) -> EntryChanges:
    """Returns what a revision changes in the entries of its memory.

    `amendments` are what it made of `before`; only what they can have changed is compared. None:
    all is. `positions` as in `changed_entries`.
    """
    where = _ROOT if amendments is None else _regions(schema, before, after, amendments)
    return changed_entries(
        (one for region in where for one in entries(schema, before, region)),
        (one for region in where for one in entries(schema, after, region)),
        revision=revision,
        positions=positions,
    )


def _regions(
    schema: Schema, before: Json, after: Json, amendments: Sequence[Amendment]
) -> Sequence[Path]:
    """Returns the places outside of which both values have the same entries; none in another."""
    found = set[Path]()
    for one in amendments:
        path = one.path
        if one.op is Op.REMOVE and isinstance(path.tokens[-1], int):
            # The elements after it move up.
            path = path.parent
        regions = (_region(schema, before, path), _region(schema, after, path))
        found.add(min(regions, key=lambda region: len(region.tokens)))
    return [one for one in sorted(found, key=_tokens) if not _has_upper(one, found)]


def _tokens(path: Path) -> list[str]:
    return [str(token) for token in path.tokens]


def _has_upper(path: Path, among: set[Path]) -> bool:
    return any(Path(path.tokens[:depth]) in among for depth in range(len(path.tokens)))


def _region(schema: Schema, value: Json, path: Path) -> Path:
    """Returns `path`, or the entry, or what is missing, on the way to it."""
    of: Type | None = schema.root
    here: Json | Missing = value
    for depth, token in enumerate(path.tokens):
        at = Path(path.tokens[:depth])
        if not isinstance(here, dict | list) or _is_whole(of, here, at):
            return at
        of, here = _inner(of, token), value_at(here, Path((token,)))
    return path


def positions_of(kind: str, from_position: int, to_position: int) -> tuple[int, int] | None:
    """Returns the chunks on which rests what a revision writes: those that it read.

    None for a consolidation, which says the same in other words.
    """
    if kind == "consolidation":
        return None
    return (from_position + 1, to_position) if to_position > from_position else NO_POSITIONS


class EntryReplay:
    """Goes through all revisions of a memory, to know what each of its entries rests on."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        #: The value at the last revision.
        self.value: Json = {}
        #: Its entries by id, in any order; the chunks that they rest on are known.
        self.written: dict[UUID, WrittenEntry] = {}

    def revise(
        self,
        revision: int,
        amendments: Sequence[Amendment],
        *,
        positions: tuple[int, int] | None,
        restored: Json | Missing = MISSING,
    ) -> None:
        """Applies the next revision; `restored` is the value that a rollback restored.

        Raises Mismatch for amendments that do not fit the memory.
        """
        after = restored
        if isinstance(after, Missing):
            after = amend(self._schema, self.value, amendments)
        changes = entries_after(
            self._schema,
            self.value,
            after,
            amendments if restored is MISSING else None,
            revision=revision,
            positions=positions,
        )
        written = [self._resolved(one) for one in changes.written]
        for key in changes.dropped:
            del self.written[key]
        self.written.update((one.entry.entry_id, one) for one in written)
        self.value = after

    def _resolved(self, one: WrittenEntry) -> WrittenEntry:
        """Returns an entry with the positions of its source in place of the source."""
        source = None if one.source is None else self.written[one.source]
        if one.is_moved and source is not None:
            return replace(source, entry=one.entry)
        kept = one if one.first_position is not None else source
        return replace(
            one,
            first_position=0 if kept is None else kept.first_position,
            last_position=0 if kept is None else kept.last_position,
            source=None,
        )
