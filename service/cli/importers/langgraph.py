"""Reads items of a LangGraph store: a list, an object with `items`, or one item a line.

That is `Item.dict()` of langgraph 0.2 to 1, and the answer of a server's `/store/items/search`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from service.cli.importers.records import (
    ImportedRecord,
    UnreadableRecord,
    each,
    metadata_of,
    others,
    timed,
)

#: Fields of a value that are its text, the first that there is.
_TEXTS = ("content", "text", "memory", "data")
_KNOWN = ("namespace", "prefix", "key", "value", "created_at", "createdAt")


def read(value: Any) -> Iterator[ImportedRecord | UnreadableRecord]:
    """Yields each item as a text."""
    if isinstance(value, Mapping):
        value = value["items"] if isinstance(value.get("items"), list) else [value]
    if not isinstance(value, list):
        yield UnreadableRecord(place="", reason="it is neither an item nor a list of items")
        return
    for place, item in each(value, "items"):
        try:
            if item is None:
                raise ValueError("it is no object")
            yield _record(place, item)
        except ValueError as error:
            yield UnreadableRecord(place=place, reason=str(error))


def _record(place: str, item: Mapping[str, Any]) -> ImportedRecord:
    space = item.get("namespace", item.get("prefix"))
    if isinstance(space, str):
        # As PostgreSQL has it.
        space = space.split(".")
    if not isinstance(space, list) or not all(isinstance(one, str) for one in space):
        raise ValueError("it has no namespace")
    key, value = str(item.get("key") or ""), item.get("value")
    if not isinstance(value, Mapping):
        raise ValueError("its value is no object")
    text, rest = _content(value)
    numbered = {str(number): one for number, one in enumerate(space)}
    # Quoted, since a part may have a colon of its own.
    joined = ":".join(one.replace("%", "%25").replace(":", "%3A") for one in space)
    return ImportedRecord(
        place=place,
        id=json.dumps([space, key]),
        text=text,
        source="langgraph",
        **timed(item.get("created_at", item.get("createdAt"))),
        metadata=metadata_of(
            {"key": key, "namespace": "/".join(space)}, rest, others(item, *_KNOWN)
        ),
        names={"user": joined, "namespace": joined, **numbered},
    )


def _content(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Returns the text of a value, and its other fields."""
    for name in _TEXTS:
        found = value.get(name)
        if isinstance(found, str):
            return found, others(value, name)
        # LangMem has the fields of a memory in `content`.
        if name == "content" and isinstance(found, Mapping):
            text, rest = _content(found)
            return text, {**others(value, name), **rest}
    return json.dumps(value, ensure_ascii=False) if value else "", {}
