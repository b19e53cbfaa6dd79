"""Sums the costs of calls by purpose and model, and reads a memory's steps and revisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Date, and_, cast, func, select, text

from service.domain.prism.amendments import Amendment, Op
from service.domain.spend.prices import LogCost
from service.domain.values.json_values import restore
from service.domain.values.paths import Path
from storage.engine.database import Transaction
from storage.spend.spend import Spend, SpendFilter, matching, spend_of
from storage.tables import call, call_sum, memory


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """Sums of calls of one memory, purpose and model."""

    #: Empty for calls that no memory made.
    memory: str
    purpose: str
    #: As provider/name.
    model: str
    spend: Spend
    #: Cached tokens as reported, else as predicted.
    cost: LogCost


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualLine:
    """Sums of calls of one class of residuals."""

    #: Empty for calls of releases that did not classify.
    residual: str
    calls: int
    predicted_cached_tokens: int
    reported_cached_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """A step that a memory committed."""

    revision: int
    #: It read the positions from_position + 1 to to_position.
    from_position: int
    to_position: int
    #: Bytes of UTF-8 of each chunk of the step.
    chunk_bytes: Sequence[int]


_CACHED = func.coalesce(call.c.reported_cached_tokens, call.c.predicted_cached_tokens)
_GOOD = call.c.reply.is_not(None)
_SUMS = {
    "calls": func.count().filter(_GOOD),
    "input_tokens": func.sum(call.c.input_tokens),
    "cache_write_tokens": func.sum(call.c.cache_write_tokens),
    "output_tokens": func.sum(call.c.output_tokens),
    "cost_micro_usd": func.sum(call.c.cost_micro_usd),
    "unpriced_calls": func.count().filter(_GOOD, call.c.cost_micro_usd.is_(None)),
}
_LABELLED = (
    *(func.coalesce(value, 0).label(name) for name, value in _SUMS.items()),
    func.coalesce(func.sum(_CACHED).filter(_GOOD), 0).label("cached"),
)


#: The same from the ledger's running sums.
_FAILED = call_sum.c.failed
_TOTALS = {
    "calls": func.sum(call_sum.c.calls).filter(~_FAILED),
    "failed_calls": func.sum(call_sum.c.calls).filter(_FAILED),
    "input_tokens": func.sum(call_sum.c.input_tokens),
    "predicted_cached_tokens": func.sum(call_sum.c.predicted_cached_tokens),
    "reported_cached_tokens": func.sum(call_sum.c.reported_cached_tokens),
    "unreported_calls": func.sum(call_sum.c.calls - call_sum.c.reported_calls).filter(~_FAILED),
    "cache_write_tokens": func.sum(call_sum.c.cache_write_tokens),
    "output_tokens": func.sum(call_sum.c.output_tokens),
    "cost_micro_usd": func.sum(call_sum.c.cost_micro_usd),
    "unpriced_calls": func.sum(call_sum.c.calls - call_sum.c.priced_calls).filter(~_FAILED),
    "cached": func.sum(call_sum.c.cached_tokens).filter(~_FAILED),
}


def _where(session_key: UUID, wanted: SpendFilter) -> list[Any]:
    clauses: list[Any] = [call.c.session_key == session_key]
    if wanted.memory_id is not None:
        clauses.append(call.c.memory_id == wanted.memory_id)
    day = cast(func.timezone("UTC", call.c.created_at), Date)
    return [*clauses, *wanted.days.bound(day)]


async def lines(tx: Transaction, wanted: SpendFilter) -> Sequence[CostLine]:
    """Returns the sums of a session's calls by memory, purpose and model."""
    name = func.coalesce(memory.c.name, "").label("memory")
    keys = (call_sum.c.purpose, call_sum.c.model)
    joined = call_sum.outerjoin(
        memory,
        and_(
            memory.c.session_key == call_sum.c.session_key,
            memory.c.memory_id == call_sum.c.owner_id,
        ),
    )
    totals = (func.coalesce(value, 0).label(label) for label, value in _TOTALS.items())
    statement = (
        select(name, *keys, *totals)
        .select_from(joined)
        .where(*matching(wanted, call_sum))
        .group_by(memory.c.name, *keys)
        .order_by(name, *keys)
    )
    return [
        CostLine(
            memory=row.memory,
            purpose=row.purpose,
            model=row.model,
            spend=spend_of(row),
            cost=_cost(row),
        )
        for row in await tx.fetch(statement)
    ]


async def occasions(
    tx: Transaction, session_key: UUID, wanted: SpendFilter, named: Sequence[str]
) -> dict[str, LogCost]:
    """Returns the costs of these occasions, without those that have no calls."""
    statement = (
        select(call.c.occasion, *_LABELLED)
        .where(*_where(session_key, wanted), call.c.occasion.in_(named))
        .group_by(call.c.occasion)
    )
    return {row.occasion: _cost(row) for row in await tx.fetch(statement)}


def _cost(row: Any) -> LogCost:
    return LogCost(
        prompts=int(row.calls),
        total_tokens=int(row.input_tokens),
        cached_tokens=int(row.cached),
        written_tokens=int(row.cache_write_tokens),
        output_tokens=int(row.output_tokens),
        cost_micro_usd=int(row.cost_micro_usd) if row.unpriced_calls < row.calls else None,
    )


async def residuals(tx: Transaction, wanted: SpendFilter) -> Sequence[ResidualLine]:
    """Returns the sums of a session's calls with a reply, by the class of their residual."""
    name = call_sum.c.residual
    statement = (
        select(
            name,
            *(
                cast(func.sum(call_sum.c[total]), BigInteger).label(total)
                for total in ("calls", "predicted_cached_tokens", "reported_cached_tokens")
            ),
        )
        .where(*matching(wanted, call_sum), ~_FAILED)
        .group_by(name)
        .order_by(name)
    )
    return [ResidualLine(**row._asdict()) for row in await tx.fetch(statement)]


_STEPS = text(
    """
SELECT r.*, c.chunk_bytes
FROM (
    SELECT revision, from_position, to_position FROM revision
    WHERE session_key = :session AND memory_id = :memory AND kind = 'step' AND NOT set_aside
        AND revision > coalesce((
            SELECT max(revision) FROM revision
            WHERE session_key = :session AND memory_id = :memory
                AND (kind = 'rollback' OR expired)
        ), 0)
    ORDER BY revision DESC LIMIT :limit
) r
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(octet_length(text) + octet_length(observation)
        + octet_length(thought) + octet_length(action) ORDER BY position), '{}')
        AS chunk_bytes
    FROM chunk
    WHERE session_key = :session
        AND position > r.from_position AND position <= r.to_position
) c
ORDER BY r.revision
"""
)


async def newest_steps(
    tx: Transaction, session_key: UUID, memory_id: UUID, limit: int
) -> Sequence[StepFacts]:
    """Returns up to `limit` of the newest steps after the last rollback, oldest first."""
    values = {"session": session_key, "memory": memory_id, "limit": limit}
    return [StepFacts(**row._asdict()) for row in await tx.fetch(_STEPS, values)]


_COUNT_STEPS = text(
    "SELECT count(*) FROM revision"
    " WHERE session_key = :session AND memory_id = :memory AND kind = 'step'"
)


async def count_steps(tx: Transaction, session_key: UUID, memory_id: UUID) -> int:
    """Returns how many steps the memory has committed."""
    values = {"session": session_key, "memory": memory_id}
    return int((await tx.fetch(_COUNT_STEPS, values))[0][0])


@dataclass(frozen=True, kw_only=True, slots=True)
class RevisionFacts:
    """The changes of a revision."""

    revision: int
    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    #: Whether it wrote a new base.
    folds: bool
    amendments: Sequence[Amendment]


_REVISIONS = text(
    """
SELECT r.revision, r.kind, b.revision IS NOT NULL AS folds, a.path, a.op, a.value
FROM revision r
LEFT JOIN prism_base b USING (session_key, memory_id, revision)
LEFT JOIN amendment a USING (session_key, memory_id, revision)
WHERE r.session_key = :session AND r.memory_id = :memory AND r.revision >= :first
ORDER BY r.revision, a.ordinal
"""
)


async def revisions_from(
    tx: Transaction, session_key: UUID, memory_id: UUID, first: int
) -> Sequence[RevisionFacts]:
    """Returns the memory's revisions from `first` on, with their amendments."""
    values = {"session": session_key, "memory": memory_id, "first": first}
    found: list[RevisionFacts] = []
    amendments: list[Amendment] = []
    for row in await tx.fetch(_REVISIONS, values):
        if not found or found[-1].revision != row.revision:
            amendments = []
            found.append(
                RevisionFacts(
                    revision=row.revision, kind=row.kind, folds=row.folds, amendments=amendments
                )
            )
        if row.path is not None:
            amendments.append(
                Amendment(path=Path.parse(row.path), op=Op(row.op), value=restore(row.value))
            )
    return found
