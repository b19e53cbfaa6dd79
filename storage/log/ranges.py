"""Ranges of chunks: positions, and conditions on a chunk in SQL."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from service.domain.access.trust import Trust
from storage.access import source_trust


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The chunks to search or list: those that fulfil all conditions that are set."""

    #: Both included.
    from_position: int
    to_position: int
    #: When they were committed: from `from_time` to before `to_time`.
    from_time: datetime | None = None
    to_time: datetime | None = None
    #: As `chunk.kind`; empty: all.
    kinds: tuple[str, ...] = ()
    #: Keys with their values.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: One of these, and none of those; '' stands for none. Empty: all.
    threads: tuple[str, ...] = ()
    excluded_threads: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    #: When they occurred: from the first to before the second.
    occurred_after: datetime | None = None
    occurred_before: datetime | None = None
    #: Their sources are at least so trusted; None: also what is blocked.
    min_trust: Trust | None = None
    #: The positions of all chunks of the threads, if these are few and were looked up.
    positions: tuple[int, ...] | None = None

    def conditions(self) -> str:
        """Returns the SQL conditions on a chunk c, without its position; empty without any."""
        parts = (
            (self.from_time is not None, "c.created_at >= %(from_time)s"),
            (self.to_time is not None, "c.created_at < %(to_time)s"),
            (bool(self.kinds), "c.kind = ANY(%(kinds)s)"),
            (bool(self.metadata), "c.metadata @> %(metadata)s"),
            (bool(self.threads), _one_of("thread", "threads", self.threads)),
            (bool(self.excluded_threads), _none_of(self.excluded_threads)),
            (bool(self.sources), _one_of("source", "sources", self.sources)),
            (self.occurred_after is not None, "c.occurred_at >= %(occurred_after)s"),
            (self.occurred_before is not None, "c.occurred_at < %(occurred_before)s"),
            (self.min_trust is not None, source_trust.at_least(self.min_trust or Trust.BLOCKED)),
        )
        return " AND ".join(sql for used, sql in parts if used)

    def exists(self, table: str) -> str:
        """Returns the same for the chunk of a row of `table`, as SQL that follows a condition."""
        conditions = self.conditions()
        if not conditions:
            return ""
        if not (self.threads or self.excluded_threads):
            return f"""AND EXISTS (SELECT FROM chunk c WHERE c.session_key = %(session)s
        AND c.position = {table}.position AND {conditions})"""
        # Ordered by position, which only the index of the key supports: a plan must not go through
        # a whole thread, or session, for each row.
        return f"""AND EXISTS (SELECT FROM (
            SELECT * FROM chunk c
            WHERE c.session_key = %(session)s
                AND c.position BETWEEN {table}.position AND {table}.position
            ORDER BY c.position LIMIT 1
        ) AS c WHERE {conditions})"""  # noqa: S608 - all of it is ours

    def rows(self, table: str, name: str, low: int | str, last: int | str) -> str:
        """Returns SQL after FROM for the rows of the chunks from `low` to `last`.

        Only those at `positions`, where these are known. Further conditions follow.
        """
        if self.positions is None:
            return f"""{table} {name} WHERE {name}.session_key = %(session)s
            AND {name}.position BETWEEN {low} AND {last}"""
        return f"""(
            SELECT {name}.* FROM unnest(%(positions)s::bigint[]) AS p (at), LATERAL (
                SELECT * FROM {table} t
                WHERE t.session_key = %(session)s AND t.position BETWEEN p.at AND p.at
                ORDER BY t.position
            ) AS {name}
            WHERE p.at BETWEEN {low} AND {last}
            OFFSET 0
        ) AS {name} WHERE true"""  # noqa: S608 - all of it is ours

    def indexed_threads(self) -> Sequence[str]:
        """Returns the threads that an index can find; empty where it cannot find all."""
        return () if "" in self.threads else self.threads

    def values(self) -> dict[str, object]:
        """Returns the values of the conditions and positions."""
        return {
            "low": self.from_position,
            "high": self.to_position,
            "from_time": self.from_time,
            "to_time": self.to_time,
            "kinds": list(self.kinds),
            "metadata": Jsonb(dict(self.metadata)),
            "threads": list(self.threads),
            "excluded_threads": list(self.excluded_threads),
            "sources": list(self.sources),
            "occurred_after": self.occurred_after,
            "occurred_before": self.occurred_before,
            "positions": list(self.positions or ()),
        }


#: The first chunks of each thread, at most `each`, by the index of threads.
OF_THREADS = """
SELECT t.thread, c.position
FROM unnest(%(threads)s::text[]) AS t (thread), LATERAL (
    SELECT c.position FROM chunk c
    WHERE c.session_key = %(session)s AND c.thread = t.thread
        AND c.position BETWEEN %(low)s AND %(high)s
    ORDER BY c.thread, c.position LIMIT %(each)s
) AS c
"""


def of_threads(rows: Iterable[Sequence[Any]], each: int, last: int) -> tuple[tuple[int, ...], int]:
    """Returns the positions in rows of OF_THREADS, and up to where they are complete."""
    found: dict[str, list[int]] = {}
    for thread, position in rows:
        found.setdefault(thread, []).append(position)
    full = [max(positions) for positions in found.values() if len(positions) == each]
    last = min([last, *full])
    together = sorted(one for positions in found.values() for one in positions if one <= last)
    return tuple(together), last


def _one_of(column: str, name: str, wanted: Sequence[str]) -> str:
    named = f"c.{column} = ANY(%({name})s::text[])"
    return f"({named} OR c.{column} IS NULL)" if "" in wanted else named


def _none_of(excluded: Sequence[str]) -> str:
    named = "c.thread <> ALL(%(excluded_threads)s::text[])"
    return named if "" in excluded else f"(c.thread IS NULL OR {named})"
