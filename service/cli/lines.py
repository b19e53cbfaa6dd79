"""Memories, amendments and revisions as lines and as plain JSON."""

import json
from dataclasses import asdict
from typing import Any

from palimpsest import values
from service.cli.output import CommandError, cut

#: A value on a line, in characters.
VALUE_CHARACTERS = 100
#: What a list of memories says of their losses.
_LOSS_MARKS = {"no_room": "full"}


def memory_json(info: values.MemoryInfo) -> dict[str, Any]:
    """A memory as plain JSON."""
    return {
        "memory": info.name,
        "kind": info.kind,
        "status": str(info.status),
        "revision": info.revision,
        "applied_position": info.applied_position,
        "head": info.head,
        "stall": None
        if info.stall is None
        else {"position": info.stall.position, "cause": info.stall.cause},
        "rebuilt_from": info.rebuilt_from,
        "consolidate_position": info.consolidate_position,
        "seal_position": info.seal_position,
        "held_reason": info.held_reason,
        "waiting_cause": info.waiting_cause,
        "losses": [asdict(loss) for loss in info.losses],
    }


def refuse_stopped(info: values.MemoryInfo) -> None:
    """Raises CommandError when the memory stalled, or a budget holds it."""
    if info.stall is not None:
        where, cause = info.stall.position, info.stall.cause
        raise CommandError(f"memory {info.name!r} stalled at position {where}: {cause}")
    if info.held_reason is not None:
        raise CommandError(f"memory {info.name!r} is held: {info.held_reason}")


def trouble_lines(info: values.MemoryInfo) -> list[str]:
    """Why the memory does not go on, if it does not, and what it lost."""
    lines: list[str] = []
    if info.stall is not None:
        lines.append(f"stalled at position {info.stall.position}: {info.stall.cause}")
    if info.held_reason is not None:
        lines.append(f"held: {info.held_reason}")
    if info.waiting_cause is not None:
        lines.append(f"waiting for its model: {info.waiting_cause}")
    return lines + [loss.message for loss in info.losses]


def status_of(info: values.MemoryInfo) -> str:
    """Whether the memory goes on, in a word, and in another one whether it loses anything."""
    status = str(info.status)
    if info.held_reason is not None:
        status = "held"
    elif info.waiting_cause is not None:
        status = "waiting"
    marks = [_LOSS_MARKS.get(loss.kind, "rejects") for loss in info.losses]
    return ", ".join((status, *marks))


def amendment_json(change: values.Amendment) -> dict[str, Any]:
    """An amendment as plain JSON."""
    return {
        "revision": change.revision,
        "kind": change.kind,
        "from_position": change.from_position,
        "to_position": change.to_position,
        "op": change.op,
        "path": change.path,
        "value": change.value,
    }


def amendment_line(change: values.Amendment) -> str:
    """An amendment on one line."""
    where = positions(change.from_position, change.to_position) or change.kind
    value = "" if change.op == "remove" else " " + value_line(change.value)
    return f"r{change.revision} {where} {change.op} {change.path}{value}"


def positions(from_position: int, to_position: int) -> str:
    """The chunks from_position + 1 to to_position: [7], [7-9], or nothing."""
    first, last = from_position + 1, to_position
    if first > last:
        return ""
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def value_line(value: Any) -> str:
    """A value on one line."""
    return cut(json.dumps(value, ensure_ascii=False), VALUE_CHARACTERS)


def revision_json(revision: values.Revision) -> dict[str, Any]:
    """A revision as plain JSON."""
    return {
        "revision": revision.revision,
        "kind": revision.kind,
        "from_position": revision.from_position,
        "to_position": revision.to_position,
        "comment": revision.comment,
        "restored_revision": revision.restored_revision,
        "schema_source": revision.schema_source,
        "amendments": revision.amendments,
        "rejections": revision.rejections,
        "value_digest": revision.value_digest.hex(),
        "created_at": revision.created_at.isoformat(),
    }


def revision_line(revision: values.Revision) -> str:
    """A revision on one line."""
    parts = [f"r{revision.revision}", revision.kind]
    if revision.restored_revision is not None:
        parts.append(f"to r{revision.restored_revision}")
    parts.append(positions(revision.from_position, revision.to_position))
    if revision.amendments:
        parts.append(f"{revision.amendments} amendment{'s' * (revision.amendments > 1)}")
    if revision.rejections:
        parts.append(f"{revision.rejections} rejected")
    if revision.comment:
        parts.append(f"({cut(revision.comment, VALUE_CHARACTERS)})")
    return " ".join(part for part in parts if part)
