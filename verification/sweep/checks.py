"""Checks the tables after a sweep.

Traffic does again what failed until it is done, so that nearly all of it is known without
a history: each session's chunks, what each memory has to hold, and that nothing is left.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from service.domain.prism.amending import amend
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.source import parse_source
from service.domain.values.json_values import canonical, parse
from service.domain.values.paths import Path as MemoryPath
from verification.chaos.history import ModelCalled, read
from verification.chaos.repeats import Repeats
from verification.chaos.repeats import find as repeats_of
from verification.chaos.switches import Firing
from verification.chaos.workload import SERIAL, chunk_name, chunk_text, owner
from verification.sweep.traffic import CALLED, REQUESTED, SCHEMA, STREAMED, SessionRecord

#: How long all work may take to finish after the last fault.
DRAIN_SECONDS = 120.0
LOOK_SECONDS = 0.2

#: Queries that count what still waits, by its name in the result.
_WAITING = {
    "memories with work": (
        "SELECT count(*) FROM memory WHERE status <> 'sealed' AND has_work AND NOT resting"
    ),
    "stopped memories": "SELECT count(*) FROM memory WHERE status = 'stalled'",
    "pending answers": "SELECT count(*) FROM answer WHERE status = 'pending'",
    "sessions without words": (
        "SELECT count(*) FROM session WHERE indexed_position < head OR embedded_position < head"
    ),
    "claims": "SELECT count(*) FROM claim",
    "leases": "SELECT count(*) FROM intent WHERE lease_until > now()",
}


#: Sums of calls, wherever they are stored.
_SUMS = {
    "the ledger": "SELECT sum(input_tokens + output_tokens) FROM call",
    "the days": "SELECT sum(input_tokens + output_tokens) FROM spend",
    "the sums of sessions": "SELECT sum(tokens) FROM spend_sum WHERE owner_id = session_key",
    "the sums of tenants": "SELECT sum(tokens) FROM tenant_spend_sum",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The outcomes of model calls."""

    repeats: Repeats
    #: Intents of calls whose executor died, and that were never made again.
    intents_left: int


def drained(url: str) -> dict[str, int]:
    """Waits until nothing waits any more; what still does after DRAIN_SECONDS."""
    until = time.monotonic() + DRAIN_SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            left = {name: _count(connection, query) for name, query in _WAITING.items()}
            left = {name: number for name, number in left.items() if number}
            if not left or time.monotonic() > until:
                return left
            time.sleep(LOOK_SECONDS)


def spent(url: str, paid: Path, firings: Sequence[Firing], sleep_seconds: float) -> Spent:
    """Calls that were paid, of which the ledger does not have all."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT reply FROM call WHERE reply IS NOT NULL").fetchall()
        intents = _count(connection, "SELECT count(*) FROM intent")
    # Vectors have no serial.
    stored = [int(found[1]) for (reply,) in rows if (found := SERIAL.search(reply))]
    called = (one for one in read([paid]) if isinstance(one, ModelCalled))
    repeats = repeats_of(called, stored, firings, sleep_seconds)
    return Spent(repeats=repeats, intents_left=intents)


def wrongs(url: str, records: Sequence[SessionRecord]) -> list[str]:
    """Returns every broken promise, a sentence each."""
    with psycopg.connect(url, row_factory=namedtuple_row) as connection:
        sums = {name: _count(connection, query) for name, query in _SUMS.items()}
        wrong = [] if len({*sums.values()}) == 1 else [f"calls came to different sums: {sums}"]
        return [*wrong, *(each for one in records for each in _Session(connection, one).wrongs())]


def _count(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None, "a count has a row"
    return int(row[0])


class _Session:
    """One session of the traffic."""

    def __init__(self, connection: psycopg.Connection[Any], record: SessionRecord) -> None:
        self._connection = connection
        self._record = record
        (self._session,) = self._rows(
            "SELECT session_key AS key, head FROM session WHERE name = %s", record.name
        )
        self._wrong: list[str] = []

    def wrongs(self) -> list[str]:
        self._look_at_log()
        for memory in self._rows(
            "SELECT * FROM memory WHERE session_key = %s ORDER BY name", self._session.key
        ):
            self._look_at_revisions(memory)
            match memory.name:
                case "facts":
                    self._look_at_facts(memory)
                case "tree":
                    self._look_at_tree(memory)
                case "state":
                    self._look_at_state(memory)
        return self._wrong

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(query.encode(), values).fetchall()

    def _say(self, what: str) -> None:
        self._wrong.append(f"session {self._record.name}: {what}")

    def _look_at_log(self) -> None:
        found = self._rows(
            "SELECT position, producer_id AS producer, producer_sequence AS sequence, text"
            " FROM chunk WHERE session_key = %s ORDER BY position",
            self._session.key,
        )
        if [one.position for one in found] != list(range(1, self._session.head + 1)):
            self._say(f"positions {[one.position for one in found]} of head {self._session.head}")
        owners = [owner(one.producer, one.sequence, one.text) for one in found]
        counted = [one.sequence for one in found if not one.producer]
        if counted != list(range(1, len(counted) + 1)):
            self._say(f"what came without a producer is counted {counted}")
        for producer, due in self._producers().items():
            sequences = [sequence for whose, sequence in owners if whose == producer]
            if sequences != list(range(1, due + 1)):
                self._say(f"chunks {sequences} of {producer}, {due} were due in their order")
        for one, whose in zip(found, owners, strict=True):
            if one.text != chunk_text(*whose):
                self._say(f"another text at position {one.position}")
        places = {whose: one.position for one, whose in zip(found, owners, strict=True)}
        for place, position in self._record.acked.items():
            if places.get(place) != position:
                self._say(f"{place} was acked at {position} and is at {places.get(place)}")

    def _producers(self) -> dict[str, int]:
        due = {"a": STREAMED, "b": CALLED, "c": REQUESTED}
        return {self._record.name + name: number for name, number in due.items()}

    def _look_at_revisions(self, memory: Any) -> None:
        found = self._rows(
            "SELECT revision, from_position, to_position FROM revision"
            " WHERE session_key = %s AND memory_id = %s ORDER BY revision",
            self._session.key,
            memory.memory_id,
        )
        if [one.revision for one in found] != list(range(memory.revision + 1)):
            self._say(f"{memory.name} has revisions {[one.revision for one in found]}")
        at = 0
        for one in found:
            if one.from_position != at and one.revision:
                self._say(f"{memory.name}: revision {one.revision} begins behind {at}")
            at = one.to_position
        if at != memory.applied_position:
            self._say(f"{memory.name} is at {memory.applied_position}, its revisions at {at}")
        if memory.kind != "state" and at != self._session.head:
            self._say(f"{memory.name} is at {at} of {self._session.head}")

    def _look_at_facts(self, memory: Any) -> None:
        found = self._rows(
            "SELECT revision, path, op, value FROM amendment"
            " WHERE session_key = %s AND memory_id = %s ORDER BY revision, ordinal",
            self._session.key,
            memory.memory_id,
        )
        value: Any = {}
        schema = parse_source(SCHEMA)
        for one in found:
            amendment = Amendment(
                path=MemoryPath.parse(one.path),
                op=Op(one.op),
                value=None if one.value is None else parse(one.value),
            )
            value = amend(schema, value, [amendment])
        (stored,) = self._rows(
            "SELECT value FROM prism_value WHERE session_key = %s AND memory_id = %s",
            self._session.key,
            memory.memory_id,
        )
        if json.loads(stored.value) != json.loads(canonical(value)):
            self._say("facts is not what its amendments make")
        due = {chunk_name(p, n) for p, all in self._producers().items() for n in range(1, all + 1)}
        applied = Counter(one.path for one in found)
        if set(value.get("topics", {})) != due:
            self._say(f"facts does not hold what was said: {sorted(value.get('topics', {}))}")
        if set(value.get("edits", {})) != self._record.edits:
            self._say(f"facts has the edits {sorted(value.get('edits', {}))}")
        for path, times in applied.items():
            if times > 1:
                self._say(f"facts was amended {times} times at {path}")

    def _look_at_tree(self, memory: Any) -> None:
        if memory.status != "sealed":
            self._say(f"the tree is {memory.status}")
        found = self._rows(
            "SELECT * FROM tree_node WHERE session_key = %s AND memory_id = %s"
            " ORDER BY level, number",
            self._session.key,
            memory.memory_id,
        )
        levels: dict[int, list[Any]] = {}
        for node in found:
            levels.setdefault(node.level, []).append(node)
        for level, nodes in levels.items():
            if [node.number for node in nodes] != list(range(1, len(nodes) + 1)):
                self._say(f"level {level} of the tree has a gap")
            ends = [(node.end_position, node.end_offset) for node in nodes]
            starts = [(node.start_position, node.start_offset) for node in nodes]
            if starts != [(1, 0), *ends[:-1]]:
                self._say(f"level {level} of the tree leaves text out, or has it twice")
            if ends[-1][0] not in (self._session.head, self._session.head + 1):
                self._say(f"level {level} of the sealed tree ends at {ends[-1]}")
        if not levels or len(levels[max(levels)]) != 1:
            self._say("the sealed tree has no root")

    def _look_at_state(self, memory: Any) -> None:
        found = self._rows(
            "SELECT revision, level, after_position, from_position, to_position FROM state_vector"
            " WHERE session_key = %s AND memory_id = %s AND revision > 0 ORDER BY revision",
            self._session.key,
            memory.memory_id,
        )
        at = 0
        for one in found:
            if one.level == 1:
                if one.from_position != at:
                    self._say(f"vector {one.revision} begins behind {one.from_position}, not {at}")
                at = one.to_position
        if at != memory.applied_position:
            self._say(f"the vectors end at {at}, the state is at {memory.applied_position}")
        if not found or self._session.head - at >= 2:
            self._say(f"the state is at {at} of {self._session.head}, with steps due")
