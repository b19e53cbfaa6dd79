"""Chunks of a log, and filters of chunks, to and from the proto's messages."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack

from palimpsest._convert import if_set, message_of, moment, number_of, value_of
from palimpsest._values_log import Chunk, ChunkFilterOptions, ChunkKind
from palimpsest.v1 import chunks_pb2, common_pb2

Range = TypeVar("Range", common_pb2.PositionRange, common_pb2.TimeRange)


def chunk(message: chunks_pb2.Chunk) -> Chunk:
    """Returns a chunk of the log."""
    kind = message.WhichOneof("content")
    turn, step = message.message, message.agent_step
    return value_of(
        Chunk,
        message,
        kind=kind or "text",
        text=turn.text if kind == "message" else message.text,
        role=turn.role,
        observation=step.observation,
        thought=step.thought,
        action=step.action,
        observed_first=step.observed_first,
        occurred_at=if_set(message, "occurred_at", moment),
        metadata=dict(message.metadata),
        created_at=if_set(message, "created_at", moment),
    )


def text_of(chunk: Chunk) -> str:
    """Returns a chunk as one text, as models read it and the service counts its characters."""
    return f"{_heading(chunk)}{_content(chunk)}"


def _heading(chunk: Chunk) -> str:
    parts = []
    if chunk.occurred_at is not None:
        at = chunk.occurred_at.astimezone(UTC).replace(microsecond=0, tzinfo=None)
        parts.append(f"occurred at {at.isoformat()}Z")
    named = (("source", chunk.source), ("thread", chunk.thread))
    parts += (f"{name} {json.dumps(one, ensure_ascii=False)}" for name, one in named if one)
    return f"[{', '.join(parts)}]\n" if parts else ""


def _content(chunk: Chunk) -> str:
    if chunk.kind == "message":
        return f"{chunk.role}: {chunk.text}"
    if chunk.kind == "agent_step":
        return "\n".join(f"{name}: {text}" for name, text in chunk.step_parts)
    return chunk.text


_KINDS: dict[ChunkKind, Any] = {
    "text": chunks_pb2.CHUNK_KIND_TEXT,
    "message": chunks_pb2.CHUNK_KIND_MESSAGE,
    "agent_step": chunks_pb2.CHUNK_KIND_AGENT_STEP,
}


def chunk_filter(
    *,
    from_position: int = 0,
    to_position: int = 0,
    **options: Unpack[ChunkFilterOptions],
) -> chunks_pb2.ChunkFilter:
    """Returns which chunks are wanted. Raises TypeError and ValueError that name the setting."""
    ids = {}
    for name in ("kinds", "threads", "excluded_threads", "sources"):
        given = options.get(name, ())
        if isinstance(given, str):
            # Each of its letters would be one.
            raise ValueError(f"{name} must be a collection of strings, not one string")
        ids[name] = list(dict.fromkeys(given))  # type: ignore[call-overload]
    ids["kinds"] = [number_of("kinds", _KINDS, kind) for kind in ids["kinds"]]
    return message_of(
        chunks_pb2.ChunkFilter,
        positions=_range(common_pb2.PositionRange, first=from_position, last=to_position),
        created=_times("since", "until", options),
        occurred=_times("occurred_since", "occurred_until", options),
        metadata=dict(options.get("metadata") or {}),
        **ids,
    )


def _times(start: str, end: str, options: Mapping[str, Any]) -> common_pb2.TimeRange | None:
    return _range(
        common_pb2.TimeRange,
        start=instant(start, options.get(start)),
        end=instant(end, options.get(end)),
    )


def _range(kind: Callable[..., Range], **ends: Any) -> Range | None:
    """Returns a range; None where both of its ends are open."""
    return message_of(kind, **ends) if any(ends.values()) else None


def instant(setting: str, given: datetime | None) -> datetime | None:
    """Returns a time that was given for a setting. Raises ValueError without a time zone."""
    if isinstance(given, datetime) and given.tzinfo is None:
        raise ValueError(f"{setting} must have a time zone, as in datetime.now(UTC)")
    return given
