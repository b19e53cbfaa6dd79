"""Memories, amendments and revisions as lines and as plain JSON."""

from typing import Any

from palimpsest import Amendment, MemoryInfo, MemoryStatus, Revision
from service.cli.output import (
    VALUE_CHARACTERS,
    counted,
    cut,
    plain_json,
    range_text,
    show,
    show_json,
    trust_mark,
    value_line,
)

#: What a list of memories says of their losses.
_LOSS_MARKS = {"no_room": "full"}
#: What is said before the cause of a memory that does not go on.
_BLOCKED = {
    MemoryStatus.OVER_BUDGET: "held",
    MemoryStatus.WAITING: "waiting for its model",
}


def memory_json(info: MemoryInfo) -> dict[str, Any]:
    """Returns a memory as plain JSON."""
    found: dict[str, Any] = plain_json(info, id="memory")
    return found


def show_memory(info: MemoryInfo, line: str, as_json: bool, **more: Any) -> None:
    """Prints what was done to a memory, or the memory and `more` as JSON."""
    show_json({**memory_json(info), **more}) if as_json else show(line)


def problem_lines(info: MemoryInfo) -> list[str]:
    """Returns why the memory does not go on, if it does not, and what it lost."""
    lines: list[str] = []
    if info.blocked is not None:
        what = _BLOCKED.get(info.status, str(info.status))
        where = f" at position {info.blocked.position}" if info.blocked.position else ""
        lines.append(f"{what}{where}: {info.blocked.cause}")
    return lines + [loss.message for loss in info.losses]


def status_of(info: MemoryInfo) -> str:
    """Returns in a word whether the memory goes on, and in another one what it loses."""
    status = info.status.replace("_", " ")
    marks = [_LOSS_MARKS.get(loss.kind, "rejects") for loss in info.losses]
    return ", ".join((status, *marks))


def amendment_line(change: Amendment) -> str:
    """Returns an amendment on one line."""
    where = range_text(change.positions) or change.kind
    return f"r{change.revision} {where}{trust_mark(change.trust)} {change_line(change)}"


def change_line(change: Amendment) -> str:
    """Returns what an amendment does, on one line."""
    value = "" if change.op == "remove" else f" {value_line(change.value)}"
    return f"{change.op} {change.path}{value}"


def revision_line(revision: Revision) -> str:
    """Returns a revision on one line."""
    parts = [f"r{revision.revision}", revision.kind]
    if revision.restored_revision is not None:
        parts.append(f"to r{revision.restored_revision}")
    parts.append(range_text(revision.positions))
    if revision.amendment_count:
        parts.append(counted(revision.amendment_count, "amendment"))
    if revision.rejection_count:
        parts.append(f"{revision.rejection_count} rejected")
    if revision.expired:
        parts.append("expired")
    if revision.comment:
        parts.append(f"({cut(revision.comment, VALUE_CHARACTERS)})")
    return " ".join(part for part in parts if part)
