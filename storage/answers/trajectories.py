"""Stores the events of answers as they happen, and totals navigations."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Select, Text, cast, func, literal, select
from sqlalchemy.dialects.postgresql import insert

from service.domain.answers.trajectory import (
    Action,
    Event,
    EventKind,
)
from service.domain.prompting.ends import End, end_of
from service.domain.tree.recording import Statistics
from storage.engine.database import Row, Transaction
from storage.engine.listing import ListPage, walk_rows
from storage.tables import answer, trajectory_event

#: An answer: session_key and answer_id.
AnswerKey = tuple[UUID, UUID]
#: An answer, and the last ordinal that a listener has received.
Heard = tuple[UUID, UUID, int]


async def append(tx: Transaction, key: AnswerKey, event: Event) -> None:
    """Writes an event. A stored one stays: a worker that takes over an answer repeats it."""
    fields = asdict(event)
    statement = insert(trajectory_event).values(
        session_key=key[0],
        answer_id=key[1],
        ordinal=fields.pop("ordinal"),
        tenant_id=tx.tenant_id,
        event=fields,
    )
    await tx.execute(statement.on_conflict_do_nothing())
    tx.changed.add(key[1])


async def next_ordinal(tx: Transaction, key: AnswerKey, kind: EventKind, after: int = 0) -> int:
    """Returns the ordinal of an answer's first event of a kind after `after`.

    Without one, the ordinal after its last event.
    """
    is_it = (trajectory_event.c.event["kind"].as_string() == kind.value) & (
        trajectory_event.c.ordinal > after
    )
    first = func.min(trajectory_event.c.ordinal).filter(is_it)
    last = func.coalesce(func.max(trajectory_event.c.ordinal), 0)
    statement = select(func.coalesce(first, last + 1)).where(
        trajectory_event.c.session_key == key[0], trajectory_event.c.answer_id == key[1]
    )
    return int((await tx.fetch(statement))[0][0])


async def list_events(tx: Transaction, key: AnswerKey, after: int) -> Sequence[Event]:
    """Returns the events of an answer after an ordinal, in order."""
    statement = _events_after(key, after).order_by(trajectory_event.c.ordinal)
    rows = await tx.fetch(statement)
    return [_event(row.ordinal, row.event) for row in rows]


async def page_events(
    tx: Transaction, key: AnswerKey, after: int, limit: int, *, max_bytes: int
) -> ListPage[Event]:
    """Does as `list_events`, up to `limit` and about `max_bytes`, and without replies."""
    shown = trajectory_event.c.event.op("-")(literal("reply", Text))
    found = await walk_rows(
        tx,
        _events_after(key, after, shown.label("event")),
        key=trajectory_event.c.ordinal,
        size=func.octet_length(cast(shown, Text)),
        order=(trajectory_event.c.ordinal,),
        limit=limit,
        max_bytes=max_bytes,
    )
    return ListPage(items=[_event(row.ordinal, row.event) for row in found.items], more=found.more)


def _events_after(
    key: AnswerKey, after: int, event: ColumnElement[Any] = trajectory_event.c.event
) -> Select[Any]:
    return select(trajectory_event.c.ordinal, event).where(
        trajectory_event.c.session_key == key[0],
        trajectory_event.c.answer_id == key[1],
        trajectory_event.c.ordinal > after,
    )


#: Reads rows of answers, by their ordinals.
_NEW = """
SELECT heard.session_key, heard.answer_id, heard.after, new.*
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[], %(after)s::int[])
    AS heard (session_key, answer_id, after)
CROSS JOIN LATERAL (
    SELECT ordinal, {columns} FROM {table} AS t
    WHERE t.session_key = heard.session_key AND t.answer_id = heard.answer_id
        AND t.ordinal > heard.after
    ORDER BY ordinal
    LIMIT %(limit)s
) AS new
ORDER BY heard.session_key, heard.answer_id, heard.after, new.ordinal
"""
#: Without the model's reply, which is kept for exports only.
_NEW_EVENTS = _NEW.format(columns="event - 'reply' AS event", table="trajectory_event")
NEW_TEXTS = _NEW.format(columns="text, restarts", table="answer_text")


async def read_new(
    tx: Transaction, heard: Collection[Heard], limit: int
) -> Mapping[Heard, Sequence[Event]]:
    """Returns the first `limit` events after each position, without replies, by one query."""
    return {
        key: [_event(row.ordinal, row.event) for row in rows]
        for key, rows in (await rows_after(tx, _NEW_EVENTS, heard, limit)).items()
    }


async def rows_after(
    tx: Transaction, query: str, heard: Collection[Heard], limit: int
) -> Mapping[Heard, Sequence[Row]]:
    """Returns the first `limit` rows of a query after each position, by position."""
    values = {
        "sessions": [session_key for session_key, _, _ in heard],
        "answers": [answer_id for _, answer_id, _ in heard],
        "after": [after for _, _, after in heard],
        "limit": limit,
    }
    found: dict[Heard, list[Row]] = {}
    for row in await tx.fetch(query, values, prepare=None):
        found.setdefault((row.session_key, row.answer_id, row.after), []).append(row)
    return found


def _event(ordinal: int, fields: Mapping[str, Any]) -> Event:
    return Event(
        **{
            **fields,
            "ordinal": ordinal,
            "kind": EventKind(fields["kind"]),
            "action": Action(fields["action"]),
            # Older rows leave out the end of a reply that is complete.
            "end": end_of(fields.get("end", End.COMPLETE)),
            "shown": tuple(fields["shown"]),
            "targets": tuple(fields["targets"]),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationTotals:
    """Totals of one navigation, or of several."""

    #: Complete navigations; 1 for one.
    navigations: int
    #: How many of these found an answer, and how many guessed one.
    answered: int
    guessed: int
    #: Those that went back up at least once, and of these those that found an answer.
    stray: int
    stray_answered: int
    #: All of them together.
    statistics: Statistics

    @classmethod
    def of_one(cls, statistics: Statistics, *, answered: bool, guessed: bool) -> "NavigationTotals":
        """Returns the totals of one navigation."""
        stray = statistics.reverts > 0
        return cls(
            navigations=1,
            answered=int(answered),
            guessed=int(guessed),
            stray=int(stray),
            stray_answered=int(stray and answered),
            statistics=statistics,
        )


async def sum_up(tx: Transaction, session_key: UUID, memory_id: UUID) -> NavigationTotals:
    """Returns the totals of all complete navigations of a memory."""
    fields = tuple(Statistics.__dataclass_fields__)
    figures = {name: answer.c.statistics[name].as_string().cast(BigInteger) for name in fields}
    answered, stray = answer.c.no_answer.is_(None) & ~answer.c.guessed, figures["reverts"] > 0
    statement = select(
        func.count().label("navigations"),
        func.count().filter(answered).label("answered"),
        func.count().filter(answer.c.guessed).label("guessed"),
        func.count().filter(stray).label("stray"),
        func.count().filter(answered, stray).label("stray_answered"),
        *(func.coalesce(func.sum(figure), 0).label(name) for name, figure in figures.items()),
    ).where(
        answer.c.session_key == session_key,
        answer.c.memory_id == memory_id,
        answer.c.status == "complete",
        answer.c.statistics.is_not(None),
    )
    row = (await tx.fetch(statement))[0]
    sums = {name: int(value) for name, value in row._asdict().items()}
    statistics = Statistics(**{name: sums.pop(name) for name in fields})
    return NavigationTotals(**sums, statistics=statistics)
