"""Schemas: the typed hierarchy that a memory conforms to (definitions 3.2 and 3.3).

One tree of types, whatever a schema was written in. It checks values, says which type
a path has, and is shown to the model as class source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum

from service.domain.values.json_values import Json
from service.domain.values.paths import Path

#: What stands for a part that is not known yet (the paper's prompt, appendix D).
PLACEHOLDER = "????"

#: Up to here a float says which whole number it is.
_MAX_WHOLE_FLOAT = 2.0**53


class Scalar(StrEnum):
    """A type without parts, as class source names it."""

    STR = "str"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"


@dataclass(frozen=True, kw_only=True, slots=True)
class LiteralType:
    """One of some values."""

    #: At least one.
    values: tuple[str | int | bool, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionalType:
    """A value, or null."""

    inner: "Type"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListType:
    """Any number of values of one type."""

    item: "Type"


@dataclass(frozen=True, kw_only=True, slots=True)
class DictType:
    """Values of one type by free keys."""

    value: "Type"


@dataclass(frozen=True, kw_only=True, slots=True)
class TupleType:
    """A fixed number of values, each of its own type."""

    items: tuple["Type", ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A named part of a record."""

    name: str
    type: "Type"
    #: Guidance for the model; may be empty.
    doc: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordType:
    """Named parts, each of its own type. A memory may not have all of them yet."""

    name: str
    #: At least one; names differ. Not hashed: a record may be reached in more ways
    #: than could ever be walked.
    fields: tuple[Field, ...] = dataclass_field(hash=False)
    #: Guidance for the model; may be empty.
    doc: str = ""

    def field(self, name: str) -> Field | None:
        """Returns the part of that name; None when there is none."""
        return next((field for field in self.fields if field.name == name), None)


Type = Scalar | LiteralType | OptionalType | ListType | DictType | TupleType | RecordType


def inner_types(of: Type) -> Sequence[Type]:
    """Returns the types of a type's parts, in their order."""
    match of:
        case OptionalType():
            return (of.inner,)
        case ListType():
            return (of.item,)
        case DictType():
            return (of.value,)
        case TupleType():
            return of.items
        case RecordType():
            return [field.type for field in of.fields]
    return ()


class Mismatch(ValueError):
    """A value that does not fit its type; the message names the place within it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """What a memory looks like."""

    root: RecordType

    def type_at(self, path: Path) -> tuple[Path, Type]:
        """Returns the type of the values at `path`, and the path as the types have it.

        A JSON Pointer does not say whether "0" is a key or an index; the types do.
        Raises Mismatch when no value can be there.
        """
        here: Type = self.root
        resolved = Path()
        for token in path.tokens:
            token, here = _descend(here, token, resolved)
            resolved /= token
        return resolved, here

    def fields_of(self, path: Path) -> str:
        """Returns a path with `[*]` for free keys and places in lists, which are content.

        It ends where no value can be.
        """
        here: Type = self.root
        shown, at = "$", Path()
        for token in path.tokens:
            try:
                named, below = _descend(here, token, at)
            except Mismatch:
                break
            is_field = isinstance(_without_null(here), RecordType)
            shown += str(Path((named,)))[1:] if is_field else "[*]"
            here, at = below, at / named
        return shown


def _without_null(of: Type) -> Type:
    return of.inner if isinstance(of, OptionalType) else of


def _descend(here: Type, token: str | int, at: Path) -> tuple[str | int, Type]:
    here = _without_null(here)
    match here:
        case RecordType():
            field = here.field(str(token))
            if field is None:
                names = ", ".join(field.name for field in here.fields)
                raise Mismatch(f"{here.name} has no field {token!r}; it has {names}")
            return field.name, field.type
        case DictType():
            return str(token), here.value
        case ListType():
            return _index(token, at), here.item
        case TupleType():
            index = _index(token, at)
            count = len(here.items)
            if not isinstance(index, int) or not -count <= index < count:
                raise Mismatch(f"the tuple at {at} has {len(here.items)} items")
            return index, here.items[index]
    raise Mismatch(f"nothing can be below {at}, which is {describe(here)}")


def _index(token: str | int, at: Path) -> int | str:
    if isinstance(token, int):
        return token
    if token == "-":
        return token
    if token.isascii() and token.isdigit() and len(token) <= 9:
        return int(token)
    raise Mismatch(f"the list at {at} has indexes, not {token!r}")


def describe(of: Type) -> str:
    """Returns a type in the notation of class source."""
    match of:
        case Scalar():
            return of.value
        case LiteralType():
            return f"Literal[{', '.join(repr(value) for value in of.values)}]"
        case OptionalType():
            return f"{describe(of.inner)} | None"
        case ListType():
            return f"list[{describe(of.item)}]"
        case DictType():
            return f"dict[str, {describe(of.value)}]"
        case TupleType():
            return f"tuple[{', '.join(describe(item) for item in of.items)}]"
        case RecordType():
            return of.name


def fit(of: Type, value: Json, at: str = "the value") -> Json:
    """Returns `value` as a value of the type: the same, but for lossless conversions.

    A whole number is taken for a float, and a float without fraction for an int. The
    placeholder and null stand for any part that is not known yet. Raises Mismatch.
    """
    if value is None or value == PLACEHOLDER:
        return value
    match of:
        case OptionalType():
            return fit(of.inner, value, at)
        case Scalar():
            return _fit_scalar(of, value, at)
        case LiteralType():
            # True == 1, so the type is compared as well.
            if any(value == one and type(value) is type(one) for one in of.values):
                return value
        case ListType():
            if isinstance(value, list):
                return [fit(of.item, item, f"{at}[{n}]") for n, item in enumerate(value)]
        case TupleType():
            if isinstance(value, list):
                return _fit_tuple(of, value, at)
        case DictType():
            if isinstance(value, dict):
                return {key: fit(of.value, item, f"{at}[{key!r}]") for key, item in value.items()}
        case RecordType():
            if isinstance(value, dict):
                return _fit_record(of, value, at)
    raise Mismatch(f"{at} is {_kind(value)}, not {describe(of)}")


def _fit_scalar(of: Scalar, value: Json, at: str) -> Json:
    match of, value:
        case Scalar.STR, str():
            return value
        case Scalar.BOOL, bool():
            return value
        case ((Scalar.INT | Scalar.FLOAT), bool()):
            pass
        case Scalar.INT, int():
            return value
        case Scalar.INT, float() if value.is_integer() and abs(value) <= _MAX_WHOLE_FLOAT:
            return int(value)
        case Scalar.FLOAT, int() | float():
            return value
    raise Mismatch(f"{at} is {_kind(value)}, not {describe(of)}")


def _fit_tuple(of: TupleType, value: list[Json], at: str) -> Json:
    if len(value) != len(of.items):
        raise Mismatch(f"{at} has {len(value)} items, not {len(of.items)}")
    return [
        fit(item, part, f"{at}[{n}]")
        for n, (item, part) in enumerate(zip(of.items, value, strict=True))
    ]


def _fit_record(of: RecordType, value: dict[str, Json], at: str) -> Json:
    fitted: dict[str, Json] = {}
    for key, part in value.items():
        field = of.field(key)
        if field is None:
            names = ", ".join(field.name for field in of.fields)
            raise Mismatch(f"{at} has the field {key!r}; {of.name} has {names}")
        fitted[key] = fit(field.type, part, f"{at}.{key}")
    return fitted


def _kind(value: Json) -> str:
    match value:
        case bool():
            return "a bool"
        case int():
            return "an int"
        case float():
            return "a float"
        case str():
            return "a str"
        case list():
            return "a list"
        case dict():
            return "a dict"
    return "null"


def render(schema: Schema) -> str:
    """Returns the schema as class source: what the model is shown.

    Deterministic, and stable: parsing it gives the same schema. The records that the
    root uses, at any depth, stand at the top of its body, each after those it uses.
    """
    used: dict[RecordType, None] = {}
    _collect(schema.root, used)
    del used[schema.root]
    root = schema.root
    lines = [f"class {root.name}:", *_docstring(root.doc)]
    for record in used:
        lines.append(f"    class {record.name}:")
        lines += (f"    {line}".rstrip() for line in (*_docstring(record.doc), *_fields(record)))
    return "\n".join([*lines, *_fields(root)]) + "\n"


def _collect(record: RecordType, used: dict[RecordType, None]) -> None:
    for field in record.fields:
        for inner in _records(field.type):
            if inner not in used:
                _collect(inner, used)
    used[record] = None


def _fields(record: RecordType) -> Iterator[str]:
    for field in record.fields:
        yield f"    {field.name}: {describe(field.type)}"
        yield from _docstring(field.doc)


def _docstring(doc: str) -> Iterator[str]:
    if not doc:
        return
    text = doc.replace("\\", "\\\\")
    if '"""' in text or text.endswith('"'):
        text = text.replace('"', '\\"')
    first, *rest = text.split("\n")
    if rest and all(line[0].isspace() for line in rest if line):
        # Blanks that all lines but the first have in common do not count in a docstring.
        first, rest = "", [first, *rest]
    yield f'    """{first}' + ('"""' if not rest else "")
    for number, line in enumerate(rest, start=1):
        yield f"    {line}".rstrip() + ('"""' if number == len(rest) else "")


def _records(of: Type) -> Iterator[RecordType]:
    """Yields the records that a type uses, itself included, but not those within them."""
    if isinstance(of, RecordType):
        yield of
        return
    for inner in inner_types(of):
        yield from _records(inner)


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
    before, after = inner_types(old), inner_types(new)
    if isinstance(old, RecordType) and isinstance(new, RecordType):
        _check_record(old, new, place, seen)
    elif before and type(old) is type(new) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            _check(one, other, place, seen)
    elif old != new:
        raise Incompatible(place, f"it is {describe(old)} and would be {describe(new)}")
