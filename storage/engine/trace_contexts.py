"""Trace contexts of sampled appends, commits and questions.

They continue a trace after its work has waited in a table. Statements that write the work include
the ones here, so that a context is there exactly when the work is, and nothing is written for what
is not sampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from opentelemetry.trace import SpanContext, TraceFlags

from storage.engine.database import Transaction

#: Contexts of a range that are read, the newest ones: more links would not help a reader.
MAX_CONTEXTS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """Positions of a session's log, and the span that appended what is there."""

    session_key: UUID
    from_position: int
    to_position: int
    context: SpanContext


_COLUMNS = "session_key, owner_id, from_position, to_position, trace_id, span_id, flags"
_TYPES = ("uuid", "uuid", "int8", "int8", "bytea", "bytea", "int2")


def insert(mark: str, source: str = "") -> str:
    """Returns the statement that adds contexts of appends; its values are a tenant and `columns`.

    `mark` is the placeholder of a value. With a `source`, a relation of the same statement, it adds
    them only if that has a row.
    """
    arrays = ", ".join(f"{mark}::{of}[]" for of in _TYPES)
    also = f" WHERE EXISTS (SELECT FROM {source})" if source else ""
    return (
        f"INSERT INTO trace_context (tenant_id, {_COLUMNS})"  # noqa: S608 - all of it is ours
        f" SELECT {mark}::uuid, t.* FROM unnest({arrays}) AS t{also}"
    )


def columns(traced: Sequence[Traced]) -> list[list[object]]:
    """Returns the arrays for `insert`."""
    return [
        [one.session_key for one in traced],
        [one.session_key for one in traced],
        [one.from_position for one in traced],
        [one.to_position for one in traced],
        *([*column] for column in zip(*(_ids(one.context) for one in traced), strict=True)),
    ]


def _ids(context: SpanContext) -> tuple[bytes, bytes, int]:
    return (
        context.trace_id.to_bytes(16, "big"),
        context.span_id.to_bytes(8, "big"),
        int(context.trace_flags),
    )


def of_one(context: SpanContext) -> Mapping[str, object]:
    """Returns the values of OF_ONE besides its keys."""
    trace_id, span_id, flags = _ids(context)
    return {"trace_id": trace_id, "span_id": span_id, "trace_flags": flags}


#: Adds the context of one thing, if {source} has a row.
OF_ONE = """
INSERT INTO trace_context (session_key, owner_id, from_position, to_position, tenant_id,
    trace_id, span_id, flags)
SELECT {session_key}::uuid, {owner_id}::uuid, {number}, {number}, {tenant_id}::uuid,
    %(trace_id)s::bytea, %(span_id)s::bytea, %(trace_flags)s::int2
FROM {source}
ON CONFLICT DO NOTHING
"""
_ADD = OF_ONE.format(
    session_key="%(session)s",
    owner_id="%(owner)s",
    number="%(number)s",
    tenant_id="%(tenant)s",
    source="(VALUES (1)) AS one",
)
# An append has at most as many chunks as a message may, so nothing beyond is read.
_READ = """
SELECT to_position, trace_id, span_id, flags FROM trace_context
WHERE session_key = %(session)s AND owner_id = %(owner)s
    AND to_position > %(after)s AND to_position < %(upto)s + %(longest)s
    AND from_position <= %(upto)s
ORDER BY to_position DESC LIMIT %(limit)s
"""
#: Chunks that one append has at the most.
_LONGEST = 256


async def add(
    tx: Transaction, session_key: UUID, owner_id: UUID, number: int, context: SpanContext
) -> None:
    """Stores the context of a commit, by its revision, or of a requested job, by 0."""
    keys = {"session": session_key, "owner": owner_id, "number": number, "tenant": tx.tenant_id}
    await tx.execute(_ADD, {**keys, **of_one(context)}, prepare=None)


async def read(
    tx: Transaction,
    session_key: UUID,
    owner_id: UUID,
    *,
    after: int,
    upto: int,
) -> Sequence[tuple[int, SpanContext]]:
    """Returns the newest MAX_CONTEXTS contexts of (after, upto], in order, with the end of each."""
    values = {
        "session": session_key,
        "owner": owner_id,
        "after": after,
        "upto": upto,
        "longest": _LONGEST,
        "limit": MAX_CONTEXTS,
    }
    rows = await tx.fetch(_READ, values)
    return [
        (
            number,
            SpanContext(
                trace_id=int.from_bytes(trace_id, "big"),
                span_id=int.from_bytes(span_id, "big"),
                is_remote=True,
                trace_flags=TraceFlags(flags),
            ),
        )
        for number, trace_id, span_id, flags in reversed(rows)
    ]
