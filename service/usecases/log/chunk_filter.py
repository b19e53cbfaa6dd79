"""Checks which chunks a client wants, and converts that for storage."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from service.domain.access.trust import Trust
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from storage.log.ranges import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkFilter(Range):
    """Which chunks are searched or listed; what is not set excludes none."""

    #: Both included; 0 sets no bound.
    from_position: int = 0
    to_position: int = 0

    def check(self) -> None:
        """Raises InvalidInput for what no chunk can fit."""
        if 0 < self.to_position < self.from_position:
            raise InvalidInput(
                Reason.FIELD_INVALID,
                f"filter.to_position is {self.to_position}, before from_position, which is"
                f" {self.from_position}",
                field="filter.to_position",
            )
        _check_order("from_time", self.from_time, "to_time", self.to_time)
        _check_order("occurred_after", self.occurred_after, "occurred_before", self.occurred_before)
        if any("\0" in text for pair in self.metadata.items() for text in pair):
            # The database keeps none.
            raise InvalidInput(
                Reason.FIELD_INVALID,
                "filter.metadata holds a NUL character",
                field="filter.metadata",
            )

    def to_json(self) -> dict[str, Any]:
        """Returns what is set, as plain JSON values."""
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in held.items()
            if value
        }

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "ChunkFilter":
        """Returns the filter that `to_json` serialized."""
        lists = {name: tuple(value) for name, value in held.items() if isinstance(value, list)}
        times = {name: datetime.fromisoformat(held[name]) for name in _TIMES if name in held}
        levels = {"min_trust": Trust(held["min_trust"])} if "min_trust" in held else {}
        return cls(**{**held, **lists, **times, **levels})

    def range(self, head: int) -> Range:
        """Returns what storage reads, of the chunks up to `head`."""
        return replace(
            self,
            from_position=max(self.from_position, 1),
            to_position=min(self.to_position or head, head),
        )


_TIMES = ("from_time", "to_time", "occurred_after", "occurred_before")


def _check_order(first: str, begin: datetime | None, second: str, end: datetime | None) -> None:
    if begin and end and end < begin:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"filter.{second} is {end.isoformat()}, before {first}, which is {begin.isoformat()}",
            field=f"filter.{second}",
        )
