"""Puts values at paths of a memory, and removes them.

`put`, `remove` and `amend` leave the old memory as it is and copy what lies on the way.
`replay` changes a memory of the caller's own in place, with the same result: its cost
grows with an amendment's depth and value, not with the memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    ListType,
    LiteralType,
    Mismatch,
    OptionalType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
)
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path

_Token = str | int


class Missing:
    """What is at a path where nothing is."""


MISSING: Final = Missing()


def value_at(value: Json, path: Path) -> Json | Missing:
    """Returns what is at `path`, or MISSING."""
    here = value
    for token in path.tokens:
        if isinstance(token, str):
            if not isinstance(here, dict) or token not in here:
                return MISSING
            here = here[token]
        else:
            if not isinstance(here, list) or not 0 <= token < len(here):
                return MISSING
            here = here[token]
    return here


def settle(schema: Schema, value: Json, path: Path) -> tuple[Path, Type]:
    """Returns the path with definite keys and indexes, and the type at it.

    "-" becomes the index after the last element, and an index that counts from the end
    one that counts from the beginning. Raises Mismatch.
    """
    resolved, of = schema.type_at(path)
    settled = Path()
    for token, original in zip(resolved.tokens, path.tokens, strict=True):
        if isinstance(token, int) and token < 0:
            token = _from_the_end(value_at(value, settled), token, settled)
        if token == "-" and original == "-":
            held = value_at(value, settled)
            # "-" is also a good key; only a list takes it for an index.
            if isinstance(_bare(schema.type_at(settled)[1]), ListType):
                token = len(held) if isinstance(held, list) else 0
        settled /= token
    return settled, of


def _from_the_end(held: Json | Missing, index: int, at: Path) -> int:
    count = len(held) if isinstance(held, list) else 0
    if count + index < 0:
        raise Mismatch(f"the list at {at} has {count} items; none is at {index}")
    return count + index


def put(schema: Schema, value: Json, path: Path, new: Json) -> Json:
    """Returns `value` with `new` at `path`; copies only what lies on the way.

    Missing records, dicts, lists and tuples on the way are made. Raises Mismatch when
    an index lies beyond a list's end, or something known would be lost on the way.
    """
    return _put(schema, value, path, new, owned=False)


def remove(schema: Schema, value: Json, path: Path) -> Json:
    """Returns `value` without what is at `path`; copies only what lies on the way.

    A key of a dict, a field of a record, or an element of a list, whose later elements
    move up. Raises Mismatch when nothing is there, or it is a part of a tuple.
    """
    return _remove(schema, value, path, owned=False)


def amend(schema: Schema, value: Json, amendments: Iterable[Amendment]) -> Json:
    """Returns `value` after the amendments, one after the other. Raises Mismatch."""
    for one in amendments:
        value = _amend(schema, value, one, owned=False)
    return value


def replay(schema: Schema, value: Json, amendments: Iterable[Amendment]) -> Json:
    """Returns the same as `amend`, but changes `value` in place.

    Values of amendments are copied. Raises Mismatch, and leaves `value` undefined then.
    """
    for one in amendments:
        value = _amend(schema, value, one, owned=True)
    return value


def _amend(schema: Schema, value: Json, one: Amendment, *, owned: bool) -> Json:
    if one.op is Op.REMOVE:
        return _remove(schema, value, one.path, owned=owned)
    new = copied(one.value) if owned else one.value
    return _put(schema, value, one.path, new, owned=owned)


def copied(value: Json) -> Json:
    """Returns the value, sharing nothing that can change."""
    if isinstance(value, dict):
        return {key: copied(child) for key, child in value.items()}
    if isinstance(value, list):
        return [copied(child) for child in value]
    return value


def _put(schema: Schema, value: Json, path: Path, new: Json, *, owned: bool) -> Json:
    if not path.tokens:
        return new
    top, holder, of = _holder(schema, value, path, owned=owned)
    token = path.tokens[-1]
    _inner(of, holder, path, len(path.tokens) - 1)
    _set(holder, token, new)
    return top


def _remove(schema: Schema, value: Json, path: Path, *, owned: bool) -> Json:
    if not path.tokens or value_at(value, path) is MISSING:
        raise Mismatch(f"nothing that could be removed is at {path}")
    top, holder, of = _holder(schema, value, path, owned=owned)
    if isinstance(of, TupleType):
        raise Mismatch(f"the tuple at {path.parent} keeps all its items")
    del holder[path.tokens[-1]]  # type: ignore[arg-type]
    return top


def _holder(
    schema: Schema, value: Json, path: Path, *, owned: bool
) -> tuple[Json, "_Container", Type | None]:
    """Returns the memory, the container of `path`'s last token, and its type."""
    of = _bare(schema.root)
    top = here = _opened(of, value, path, 0, owned=owned)
    for depth, token in enumerate(path.tokens[:-1]):
        of = _bare(_inner(of, here, path, depth))
        below = _opened(of, _get(here, token), path, depth + 1, owned=owned)
        _set(here, token, below)
        here = below
    return top, here, of


_Container = dict[str, Json] | list[Json]


def _opened(of: Type | None, here: Json, path: Path, depth: int, *, owned: bool) -> _Container:
    """Returns the container of `path`'s token number `depth`: `here`, its copy, or a new one."""
    match of:
        case RecordType() | DictType():
            keyed = True
        case ListType() | TupleType():
            keyed = False
        case Scalar() | LiteralType():
            raise Mismatch(f"nothing can be put below {Path(path.tokens[:depth])}")
        case _:
            # A type that leaves it to the values; the path says what it means.
            keyed = isinstance(path.tokens[depth], str)
    if isinstance(here, dict if keyed else list):
        # A tuple that has no items yet cannot hold one of them.
        if here or not isinstance(of, TupleType):
            return here if owned else here.copy()
    elif here is not None and here != PLACEHOLDER:
        raise Mismatch(f"{Path(path.tokens[:depth])} holds something else already")
    if isinstance(of, TupleType):
        return [PLACEHOLDER for _ in of.items]
    return {} if keyed else []


def _inner(of: Type | None, here: _Container, path: Path, depth: int) -> Type | None:
    """Returns the type after token number `depth`, for which `here` has a place.

    None where a type does not say what is below it. Raises Mismatch.
    """
    token = path.tokens[depth]
    match of:
        case RecordType():
            field = of.field(str(token))
            if field is None:
                raise Mismatch(f"{of.name} has no field {token!r}")
            return field.type
        case DictType():
            return of.value
    if not isinstance(here, list):
        return None
    items = of.items if isinstance(of, TupleType) else here
    end = len(items) - isinstance(of, TupleType)
    if not isinstance(token, int) or not 0 <= token <= end:
        at = Path(path.tokens[:depth])
        raise Mismatch(f"the list at {at} has {len(items)} items; the next index is {len(items)}")
    if isinstance(of, TupleType):
        return of.items[token]
    return of.item if isinstance(of, ListType) else None


def _bare(of: Type | None) -> Type | None:
    return of.inner if isinstance(of, OptionalType) else of


def _get(here: _Container, token: _Token) -> Json:
    if isinstance(here, dict):
        return here.get(token)  # type: ignore[arg-type]
    return here[token] if token != len(here) else None  # type: ignore[index]


def _set(here: _Container, token: _Token, new: Json) -> None:
    if isinstance(here, list) and token == len(here):
        here.append(new)
    else:
        here[token] = new  # type: ignore[index]


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
