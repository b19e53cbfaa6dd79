"""Finds log lines that the processes of a run may not write, even while everything fails.

The service logs faults as warnings. An error, a traceback, or a task whose exception was never
retrieved is a defect, unless a fault explains it: `EXPLAINED` names those.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verification.chaos.history import Violation

#: What faults explain, by what an error, its logger or its traceback says.
EXPLAINED = {
    "a point that was told to fail": re.compile(r"FailedOnPurpose: |told to fail at "),
    "the queue's own loops without their database": re.compile(
        r"\A(\w+ error\b|Side task \w+ failed\b).*ConnectorException", re.DOTALL
    ),
    "a connection that was lost before it was given back": re.compile(
        r"\AException during reset or similar\n.*psycopg\.(OperationalError|errors\.\w+): ",
        re.DOTALL,
    ),
    "a start without the database": re.compile(
        r"^service\.cli\.output\.CommandError: cannot reach ", re.MULTILINE
    ),
}
#: What nothing explains, at whatever level it is said.
NEVER = (
    "exception was never retrieved",
    "was never awaited",
    "Task was destroyed but it is pending",
)
_LEVELS = ("error", "critical")
_TRACEBACK = "Traceback (most recent call last):"
#: Characters of what was said that a violation shows, of its beginning and of its end.
SHOWN_CHARACTERS = 700


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What was found in the logs of a run."""

    violations: tuple[Violation, ...]
    #: How often each of EXPLAINED was said.
    explained: dict[str, int]


def look(folder: Path) -> Looked:
    """Looks through all logs of a run."""
    explained: Counter[str] = Counter()
    violations = []
    for path in sorted(folder.glob("*.log")):
        for said in _said(path):
            why = "" if any(one in said for one in NEVER) else _explanation(said)
            if why:
                explained[why] += 1
            else:
                what = f"{path.stem}: {_cut(said)}"
                violations.append(Violation(promise="logs", what=what))
    return Looked(violations=tuple(violations), explained=dict(explained))


def _cut(said: str) -> str:
    """Returns its beginning, and its end: where the last line of a traceback is."""
    if len(said) <= 2 * SHOWN_CHARACTERS:
        return said
    return f"{said[:SHOWN_CHARACTERS]} … {said[-SHOWN_CHARACTERS:]}"


def _explanation(said: str) -> str:
    return next((name for name, one in EXPLAINED.items() if one.search(said)), "")


def _said(path: Path) -> Iterator[str]:
    """Yields everything in a log that takes an explanation."""
    block: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            event = _event(line)
            if event is None and not line.startswith("-- run "):
                block.append(line)
                continue
            yield from _in_block(block)
            block = []
            if event is not None:
                yield from _in_event(event)
    yield from _in_block(block)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        # The process that wrote it was killed meanwhile.
        return None
    return event if isinstance(event, dict) else None


def _in_event(event: dict[str, Any]) -> Iterator[str]:
    said = f"{event.get('event', '')}\n{event.get('exception', '')}".strip()
    is_odd = event.get("level") in _LEVELS or "exception" in event
    if is_odd or any(one in said for one in NEVER):
        yield said


def _in_block(block: list[str]) -> Iterator[str]:
    """Lines that no logger wrote: from the first traceback, or complaint, to the end."""
    for number, line in enumerate(block):
        if line.startswith(_TRACEBACK) or any(one in line for one in NEVER):
            yield "".join(block[number:])
            return
