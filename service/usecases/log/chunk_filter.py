"""Checks which chunks a client wants, and converts that for storage."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from service.domain.log.chunks import ChunkKind
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from storage.log.ranges import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkFilter:
    """Which chunks are searched or listed; what is not set excludes none."""

    #: Both included; 0 sets no bound.
    from_position: int = 0
    to_position: int = 0
    #: When they were committed: from `from_time` to before `to_time`.
    from_time: datetime | None = None
    to_time: datetime | None = None
    #: Empty: all.
    kinds: frozenset[ChunkKind] = frozenset()
    #: Keys with their values; a chunk has them all.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: One of these threads, none of those, one of these sources; '' stands for none.
    threads: frozenset[str] = frozenset()
    excluded_threads: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    #: When they occurred: from the first to before the second.
    occurred_after: datetime | None = None
    occurred_before: datetime | None = None

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
        held: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, frozenset):
                value = sorted(value)
            elif isinstance(value, datetime):
                value = value.isoformat()
            elif isinstance(value, Mapping):
                value = dict(value)
            if value:
                held[one.name] = value
        return held

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "ChunkFilter":
        """Returns the filter that `to_json` serialized."""
        sets = {name: frozenset(held[name]) for name in _SETS if name in held}
        times = {name: datetime.fromisoformat(held[name]) for name in _TIMES if name in held}
        kinds = frozenset(ChunkKind(one) for one in held.get("kinds", ()))
        return cls(**{**held, **sets, **times, "kinds": kinds})

    def range(self, head: int) -> Range:
        """Returns what storage reads, of the chunks up to `head`."""
        return Range(
            from_position=max(self.from_position, 1),
            to_position=min(self.to_position or head, head),
            from_time=self.from_time,
            to_time=self.to_time,
            kinds=tuple(sorted(self.kinds)),
            metadata=self.metadata,
            threads=tuple(sorted(self.threads)),
            excluded_threads=tuple(sorted(self.excluded_threads)),
            sources=tuple(sorted(self.sources)),
            occurred_after=self.occurred_after,
            occurred_before=self.occurred_before,
        )


_SETS = ("threads", "excluded_threads", "sources")
_TIMES = ("from_time", "to_time", "occurred_after", "occurred_before")


def _check_order(first: str, begin: datetime | None, second: str, end: datetime | None) -> None:
    if begin and end and end < begin:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"filter.{second} is {end.isoformat()}, before {first}, which is {begin.isoformat()}",
            field=f"filter.{second}",
        )
