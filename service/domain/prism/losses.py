"""Tallies of what a memory lost by rejections, for its readers.

A rejected proposal is only in the log of rejections, and the memory goes on. One tally counts
facts that found no room, until there is room again. The other counts a run of steps that
rejected more than they amended, until a step amends more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.domain.prism.amendments import RejectionCause, Revision, Rules
from service.domain.prism.revisions import has_room
from service.domain.values.json_values import Json

#: So many steps in a row that rejected more than they amended are reported.
RUN_STEPS = 3


class LossKind(StrEnum):
    """Why proposals were rejected."""

    #: The memory had as many bytes, or a list or dict as many entries, as it may have.
    NO_ROOM = "no_room"
    #: The model proposes what the schema or the rules refuse.
    INVALID = "invalid"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Proposals that were rejected, and are not in the memory; 1 or more."""

    kind: LossKind
    count: int
    #: Steps that lost them.
    steps: int
    #: First position of the first of these steps.
    since_position: int

    def sentence(self) -> str:
        """Returns what happened and what to do, without a full stop."""
        log = "`palimpsest memory log --rejected` lists them"
        since = f"since position {self.since_position}"
        if self.kind is LossKind.NO_ROOM:
            return (
                f"it is full: {self.count} proposals found no room {since}; {log}; remove entries"
                " by `palimpsest memory unset`, or rebuild the memory with a narrower task"
            )
        return (
            f"{self.count} proposals of {self.steps} steps were rejected {since}; {log} with their"
            " reasons; a schema or a task that fits the text ends it"
        )


def losses_of(stored: Mapping[str, Any] | None) -> tuple[Loss, ...]:
    """Returns what a memory's stored tallies say to its readers."""
    found = (_tally(stored, kind) for kind in LossKind)
    return tuple(
        one
        for one in found
        if one is not None and (one.kind is LossKind.NO_ROOM or one.steps >= RUN_STEPS)
    )


def after_step(
    stored: Mapping[str, Any] | None,
    revision: Revision,
    value: Json,
    rules: Rules,
    *,
    first_position: int,
) -> Mapping[str, Any] | None:
    """Returns the tallies after a step that left `value`; None when they stay as they are."""
    causes = [one.cause for one in revision.rejections]
    crowded, invalid = (
        causes.count(cause) for cause in (RejectionCause.NO_ROOM, RejectionCause.INVALID)
    )
    tallies = dict(stored or {})
    if crowded:
        _add(tallies, LossKind.NO_ROOM, crowded, first_position)
    elif LossKind.NO_ROOM in tallies and has_room(value, rules):
        del tallies[LossKind.NO_ROOM]
    if invalid > len(revision.amendments):
        _add(tallies, LossKind.INVALID, invalid, first_position)
    elif revision.amendments:
        tallies.pop(LossKind.INVALID, None)
    return _changed(stored, tallies)


def after_change(
    stored: Mapping[str, Any] | None, value: Json, rules: Rules
) -> Mapping[str, Any] | None:
    """Returns the tallies after a change that is no step; None when they stay as they are."""
    tallies = dict(stored or {})
    if LossKind.NO_ROOM in tallies and has_room(value, rules):
        del tallies[LossKind.NO_ROOM]
    return _changed(stored, tallies)


def after_schema(stored: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the tallies after the schema got more fields: the run is counted anew."""
    tallies = {kind: one for kind, one in (stored or {}).items() if kind != LossKind.INVALID}
    return _changed(stored, tallies)


def _changed(
    stored: Mapping[str, Any] | None, tallies: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    return None if tallies == dict(stored or {}) else tallies


def _tally(stored: Mapping[str, Any] | None, kind: LossKind) -> Loss | None:
    held = (stored or {}).get(kind.value)
    return None if held is None else Loss(kind=kind, **held)


def _add(tallies: dict[str, Any], kind: LossKind, count: int, first_position: int) -> None:
    held = tallies.get(kind.value, {"count": 0, "steps": 0, "since_position": first_position})
    tallies[kind.value] = {
        "count": held["count"] + count,
        "steps": held["steps"] + 1,
        "since_position": held["since_position"],
    }
