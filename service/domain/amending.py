"""Amending: putting a value at a path of a memory, without touching the old memory."""

from typing import Final

from service.domain.json_values import Json
from service.domain.paths import Path
from service.domain.schema import (
    PLACEHOLDER,
    DictType,
    ListType,
    Mismatch,
    OptionalType,
    RecordType,
    Schema,
    TupleType,
    Type,
)


class _Missing:
    """What is at a path where nothing is."""


MISSING: Final = _Missing()


def value_at(value: Json, path: Path) -> Json | _Missing:
    """What is at `path`; MISSING when there is nothing."""
    here = value
    for token in path.tokens:
        if isinstance(token, str):
            if not isinstance(here, dict) or token not in here:
                return MISSING
            here = here[token]
        else:
            if not isinstance(here, list) or token >= len(here):
                return MISSING
            here = here[token]
    return here


def settle(schema: Schema, value: Json, path: Path) -> tuple[Path, Type]:
    """The path with its keys and indexes settled, and the type at it.

    "-" becomes the index behind the last element. Raises Mismatch.
    """
    resolved, of = schema.type_at(path)
    settled = Path()
    for token, original in zip(resolved.tokens, path.tokens, strict=True):
        if token == "-" and original == "-":
            held = value_at(value, settled)
            # "-" is also a good key; only a list takes it for an index.
            if isinstance(schema.type_at(settled)[1], ListType):
                token = len(held) if isinstance(held, list) else 0
        settled /= token
    return settled, of


def put(schema: Schema, value: Json, path: Path, new: Json) -> Json:
    """`value` with `new` at `path`; copies only what lies on the way.

    Missing records, dicts, lists and tuples on the way are made. Raises Mismatch when
    an index lies beyond a list's end.
    """
    return _put(schema.root, value, path.tokens, new, Path())


def _put(of: Type, here: Json, rest: tuple[str | int, ...], new: Json, at: Path) -> Json:
    if not rest:
        return new
    if isinstance(of, OptionalType):
        of = of.inner
    token, below = rest[0], rest[1:]
    match of:
        case RecordType() | DictType():
            return _put_key(of, here, str(token), below, new, at)
        case ListType() | TupleType() if isinstance(token, int):
            return _put_index(of, here, token, below, new, at)
    raise Mismatch(f"nothing can be put below {at}")


def _put_key(
    of: RecordType | DictType,
    here: Json,
    key: str,
    below: tuple[str | int, ...],
    new: Json,
    at: Path,
) -> Json:
    held = here if isinstance(here, dict) else {}
    if isinstance(of, RecordType):
        field = of.field(key)
        if field is None:
            raise Mismatch(f"{of.name} has no field {key!r}")
        inner = field.type
    else:
        inner = of.value
    return {**held, key: _put(inner, held.get(key), below, new, at / key)}


def _put_index(
    of: ListType | TupleType,
    here: Json,
    index: int,
    below: tuple[str | int, ...],
    new: Json,
    at: Path,
) -> Json:
    held: list[Json] = list(here) if isinstance(here, list) else []
    if isinstance(of, TupleType):
        inner = of.items[index]
        held = held or [PLACEHOLDER for _ in of.items]
    else:
        if index == len(held):
            held.append(None)
        inner = of.item
    if index >= len(held):
        raise Mismatch(f"the list at {at} has {len(held)} items; the next index is {len(held)}")
    held[index] = _put(inner, held[index], below, new, at / index)
    return held
