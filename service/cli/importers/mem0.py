"""Reads memories of mem0, as `get_all` of the library and of the platform returns them.

That is a list, or an object with a list `results` (or `memories`), of versions 0.1 to 2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from service.cli.importers.records import (
    ImportedRecord,
    UnreadableRecord,
    each,
    metadata_of,
    others,
    text_of,
    timed,
)

_LISTS = ("results", "memories")
_KNOWN = ("memory", "created_at", "metadata", "run_id", "id", "user_id", "agent_id", "app_id")


def read(value: Any) -> Iterator[ImportedRecord | UnreadableRecord]:
    """Yields each memory as a text."""
    for place, record in _all(value):
        try:
            if record is None:
                raise ValueError("it is no object")
            yield _record(place, record)
        except ValueError as error:
            yield UnreadableRecord(place=place, reason=str(error))


def _all(value: Any) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    if isinstance(value, list):
        yield from each(value, "")
        return
    if isinstance(value, Mapping):
        for name in _LISTS:
            if isinstance(value.get(name), list):
                yield from each(value[name], name)
                return
        if "memory" in value:
            yield "", value
            return
    yield "", None


def _record(place: str, record: Mapping[str, Any]) -> ImportedRecord:
    text = record.get("memory", record.get("data"))
    own = record.get("metadata")
    names = {
        name: str(record[f"{name}_id"])
        for name in ("user", "agent", "app", "run")
        if record.get(f"{name}_id")
    }
    ids = {name: record.get(name) for name in ("id", "agent_id", "app_id")}
    rest = others(record, *_KNOWN, "data")
    own = own if isinstance(own, Mapping) else {"metadata": own}
    return ImportedRecord(
        place=place,
        id=str(record.get("id") or ""),
        text=text_of(text, "memory"),
        thread=names.get("run", ""),
        source=names.get("agent", "mem0"),
        **timed(record.get("created_at")),
        metadata=metadata_of(own, ids, rest),
        names={"user": names.get("agent", ""), **names},
    )
