"""Evolution: a schema for a live memory may get more fields, and nothing else."""

from service.domain.prism.schemas.tree import (
    DictType,
    ListType,
    OptionalType,
    RecordType,
    Schema,
    TupleType,
    Type,
    describe,
)


class Incompatible(ValueError):
    """A schema that would not hold what the memory holds; `place` is where."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place


def check_extends(old: Schema, new: Schema) -> None:
    """Raises Incompatible unless every value that fits `old` fits `new` at the same paths.

    Fields may be added to any record, and guidance may change. A memory may lack any
    field, so a new one needs nothing from what is there.
    """
    _check_record(old.root, new.root, new.root.name, set())


def _check_record(old: RecordType, new: RecordType, place: str, seen: set[tuple[int, int]]) -> None:
    # A record may be reached in more ways than could ever be walked.
    if (id(old), id(new)) in seen:
        return
    seen.add((id(old), id(new)))
    for field in old.fields:
        here = f"{place}.{field.name}"
        kept = new.field(field.name)
        if kept is None:
            raise Incompatible(here, "the field is missing")
        _check(field.type, kept.type, here, seen)


def _check(old: Type, new: Type, place: str, seen: set[tuple[int, int]]) -> None:
    match old, new:
        case RecordType(), RecordType():
            _check_record(old, new, place, seen)
        case OptionalType(), OptionalType():
            _check(old.inner, new.inner, place, seen)
        case ListType(), ListType():
            _check(old.item, new.item, place, seen)
        case DictType(), DictType():
            _check(old.value, new.value, place, seen)
        case TupleType(), TupleType() if len(old.items) == len(new.items):
            for before, after in zip(old.items, new.items, strict=True):
                _check(before, after, place, seen)
        case _ if old != new:
            raise Incompatible(place, f"it is {describe(old)} and would be {describe(new)}")
