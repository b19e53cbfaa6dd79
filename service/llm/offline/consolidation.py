"""How the offline model tidies a memory: what repeats goes, and nothing else.

An entry of a list goes when another entry of the list is the same or contains it, blanks
and case aside. Keys of a dict that differ in case or the plural only become one when
nothing of their values is lost by it.
"""

import re
from collections.abc import Iterator, Sequence

from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    ListType,
    OptionalType,
    RecordType,
    TupleType,
    Type,
)
from service.domain.values.json_values import Json, canonical
from service.llm.offline.replies import ReplyPath

#: What takes the old value's place at a path.
Update = tuple[ReplyPath, Json]

_BLANKS = re.compile(r"\s+")
#: Entries of one list that are looked at: each is compared with each.
MAX_COMPARED = 1000


def tidied(of: Type, value: Json) -> tuple[list[Update], list[ReplyPath]]:
    """The updates and the removals that tidy a memory, paths as they are before any."""
    updates: list[Update] = []
    removals: list[ReplyPath] = []
    for place, new in _tidy(of, value, ()):
        if new is None:
            removals.append(place)
        else:
            updates.append((place, new))
    return updates, removals


def _tidy(of: Type, value: Json, at: ReplyPath) -> Iterator[tuple[ReplyPath, Json]]:
    """ReplyPaths with their new values; null where one goes."""
    match of, value:
        case OptionalType(), _:
            yield from _tidy(of.inner, value, at)
        case RecordType(), dict():
            for field in of.fields:
                yield from _tidy(field.type, value.get(field.name), (*at, field.name))
        case DictType(), dict():
            yield from _tidy_dict(of, value, at)
        case ListType(), list():
            gone = _repeated(value)
            for number, item in enumerate(value):
                if number in gone:
                    yield (*at, number), None
                else:
                    yield from _tidy(of.item, item, (*at, number))
        case TupleType(), list():
            for number, part in enumerate(value[: len(of.items)]):
                yield from _tidy(of.items[number], part, (*at, number))


def _tidy_dict(
    of: DictType, value: dict[str, Json], at: ReplyPath
) -> Iterator[tuple[ReplyPath, Json]]:
    alike: dict[str, list[str]] = {}
    for key in value:
        alike.setdefault(_name(key), []).append(key)
    for first, *others in alike.values():
        merged, gone = value[first], []
        for other in others:
            both = _merged(merged, value[other])
            if both is not None:
                merged = both
                gone.append(other)
            else:
                yield from _tidy(of.value, value[other], (*at, other))
        if canonical(merged) == canonical(value[first]):
            yield from _tidy(of.value, merged, (*at, first))
        else:
            yield (*at, first), merged
        for other in gone:
            yield (*at, other), None


def _merged(one: Json, other: Json) -> Json:
    """What holds both values; null when none of their kind does."""
    if not _is_known(other):
        return one if one is not None else PLACEHOLDER
    if not _is_known(one):
        return other
    match one, other:
        case str(), str():
            if _says(_plain(one), _plain(other)):
                return one
            return other if _says(_plain(other), _plain(one)) else None
        case list(), list():
            both = [*one, *other]
            gone = _repeated(both)
            return [item for number, item in enumerate(both) if number not in gone]
        case dict(), dict():
            parts = dict(one)
            for key, part in other.items():
                held = _merged(parts[key], part) if key in parts else part
                if held is None:
                    return None
                parts[key] = held
            return parts
    return one if canonical(one) == canonical(other) else None


def _repeated(items: Sequence[Json]) -> set[int]:
    """The entries that another one of the list is the same as, or contains.

    Of those that are the same the first stays.
    """
    gone: set[int] = set()
    first: dict[str, int] = {}
    for number, item in enumerate(items[:MAX_COMPARED]):
        said = _plain(item) if isinstance(item, str) else canonical(item)
        if first.setdefault(f"{type(item).__name__}:{said}", number) != number:
            gone.add(number)
    texts = [
        (number, _plain(item))
        for number, item in enumerate(items[:MAX_COMPARED])
        if isinstance(item, str) and number not in gone
    ]
    for number, text in texts:
        if any(text != other and _says(other, text) for _, other in texts):
            gone.add(number)
    return gone


def _is_known(value: Json) -> bool:
    return value is not None and value != PLACEHOLDER


def _says(longer: str, text: str) -> bool:
    """Whether `text` stands in `longer`, from the beginning of a word to the end of one."""
    at = longer.find(text)
    while at >= 0:
        end = at + len(text)
        inside = longer[at - 1 : at].isalnum() and text[:1].isalnum()
        if not inside and not (longer[end : end + 1].isalnum() and text[-1:].isalnum()):
            return True
        at = longer.find(text, at + 1)
    return False


def _plain(text: str) -> str:
    """A text as it is compared: blanks, case and its full stop aside."""
    return _BLANKS.sub(" ", text).strip().rstrip(".").casefold()


def _name(key: str) -> str:
    """A key as it is compared: blanks, case and the plural of its last word aside."""
    name = _BLANKS.sub(" ", key).strip().casefold()
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if name.endswith("s") and not name.endswith(("ss", "us", "is")) and len(name) > 3:
        return name[:-1]
    return name
