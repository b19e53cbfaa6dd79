"""Begins calls and records their outcomes, durably.

The hottest path of a worker, so it takes few round trips: two to begin and one to record, whatever
the number of calls. All transactions lock rows in one order: intents, then budgets; calls, then
sums of spending, then intents.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    Gone,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.ends import end_of
from service.domain.prompting.flows import ModelReply
from service.domain.values.errors import BudgetExhausted, CallBound
from storage.engine.database import OF_TENANT, Transaction
from storage.log.deleting import costs_key
from storage.spend import budgets


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingReservation:
    """A call that a worker wants to make."""

    scope: CallScope
    #: As in `Call`.
    key: bytes
    reservation: Reservation

    @property
    def place(self) -> tuple[UUID, bytes]:
        """The key of its intent."""
        return self.scope.session_key, self.key

    @property
    def asked(self) -> CallBound:
        """Its largest possible size."""
        wanted = self.reservation
        return CallBound(tokens=wanted.tokens, micro_usd=wanted.micro_usd, key=self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """A call that was made, or failed."""

    scope: CallScope
    call: Call
    lease: Lease
    #: Whether the intent ends with it: there is a reply, or no further try.
    is_last: bool
    call_id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedOutcome:
    """The result of recording an outcome."""

    #: False when the call's reply was there already.
    is_new: bool
    #: The reply that counts; None for a failed call.
    reply: ModelReply | None
    #: Whether the intent, where it was to end, still had the lease of this outcome.
    was_held: bool


#: The result of beginning a call.
Begun = ModelReply | CallInProgress | Lease | BudgetExhausted | Gone


def _lists(columns: Mapping[str, str]) -> str:
    """Returns SQL for rows of these columns (types by name), each from a list of its name."""
    lists = ", ".join(f"%({name})s::{of}[]" for name, of in columns.items())
    return f"unnest({lists}) AS w ({', '.join(columns)})"


def _columns(names: Iterable[str], rows: Sequence[Sequence[object]]) -> dict[str, object]:
    """Returns the values of `_lists` for these rows."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


_WANTED = {
    "session_key": "uuid",
    "key": "bytea",
    "tenant_id": "uuid",
    "memory_id": "uuid",
    "purpose": "text",
    "model": "text",
    "deployment": "text",
    "reserved_tokens": "bigint",
    "reserved_micro_usd": "bigint",
}

# An expired lease ends no later than this begins. Compared by a column, since a sharded database
# accepts neither now() nor a parameter there.
_TAKE = f"""
INSERT INTO intent AS i ({", ".join(_WANTED)}, fence, lease_until)
SELECT {", ".join(f"w.{name}" for name in _WANTED)},
    -- By the clock, not from 1 on: an intent that ended may begin again, and its former holder
    -- must not mistake the new lease for its own.
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    now() + make_interval(secs => %(lease_seconds)s)
FROM {_lists({**_WANTED, "incarnation": "integer"})}
WHERE EXISTS (SELECT FROM session s
    WHERE s.session_key = w.session_key
        AND (w.incarnation IS NULL OR s.incarnation = w.incarnation))
ON CONFLICT (session_key, key) DO UPDATE SET
    fence = i.fence + 1,
    lease_until = excluded.lease_until,
    deployment = excluded.deployment,
    reserved_tokens = excluded.reserved_tokens,
    reserved_micro_usd = excluded.reserved_micro_usd
WHERE i.lease_until <= excluded.created_at
RETURNING session_key, key, fence
"""  # noqa: S608 - all of it is ours

_PLACE = {"session_key": "uuid", "key": "bytea"}

#: Columns of a reply, by the fields of ModelReply.
_REPLY = {
    "text": "reply",
    "model": "model",
    "input_tokens": "input_tokens",
    "cached_tokens": "reported_cached_tokens",
    "output_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "end": "ended",
    "said": "coalesce(said, '')",
}
_REPLY_COLUMNS = ", ".join(_REPLY.values())

_REPLIES = f"""
SELECT w.session_key, w.key, {_REPLY_COLUMNS}
FROM {_lists(_PLACE)} CROSS JOIN LATERAL (
    SELECT * FROM call c
    WHERE c.session_key = w.session_key AND c.key = w.key AND reply IS NOT NULL OFFSET 0
) c
"""  # noqa: S608 - as above

_LEFT = f"""
SELECT w.session_key, w.key, extract(epoch FROM lease_until - clock_timestamp())::float8
FROM {_lists(_PLACE)} CROSS JOIN LATERAL (
    SELECT * FROM intent i WHERE i.session_key = w.session_key AND i.key = w.key OFFSET 0
) i
"""  # noqa: S608 - as above

_LEASE = {"over_session": "uuid", "over_key": "bytea", "over_fence": "bigint"}

# In the order of their keys, as they were created: two of these never wait for each other.
_END = f"""
DELETE FROM intent i USING (
    SELECT session_key, key FROM intent JOIN {_lists(_LEASE)}
        ON session_key = over_session AND key = over_key AND fence = over_fence
    ORDER BY session_key, key FOR UPDATE OF intent
) w
WHERE i.session_key = w.session_key AND i.key = w.key
RETURNING i.session_key, i.key, i.fence
"""  # noqa: S608 - as above

# In the same order.
_RENEW = f"""
UPDATE intent i SET lease_until = now() + make_interval(secs => %s)
FROM (
    SELECT session_key, key, over_fence FROM intent
    JOIN unnest({", ".join(f"%s::{of}[]" for of in _LEASE.values())}) AS w ({", ".join(_LEASE)})
        ON session_key = over_session AND key = over_key AND fence = over_fence
    ORDER BY session_key, key FOR NO KEY UPDATE OF intent
) w
WHERE i.session_key = w.session_key AND i.key = w.key
RETURNING i.session_key, i.key, over_fence
"""  # noqa: S608 - as above
_RENEW_FREE = _RENEW.replace("OF intent", "OF intent SKIP LOCKED")

# A renewal that is lost in a crash leaves the older lease, as if its holder had paused since: it
# renews it again, or another takes over the call, and one reply counts.
_UNFLUSHED = "SET LOCAL synchronous_commit = off"


_COLUMNS = {
    "session_key": "uuid",
    "key": "bytea",
    "call_id": "uuid",
    "tenant_id": "uuid",
    "memory_id": "uuid",
    "occasion": "text",
    "purpose": "text",
    "template": "text",
    "model": "text",
    "reply": "text",
    "failure": "text",
    "input_tokens": "bigint",
    "predicted_cached_tokens": "bigint",
    "reported_cached_tokens": "bigint",
    "cache_write_tokens": "bigint",
    "output_tokens": "bigint",
    "cost_micro_usd": "bigint",
    "latency_ms": "bigint",
    "deployment": "text",
    "residual": "text",
    "reasoning_tokens": "bigint",
    "ended": "text",
    "said": "text",
}

_OF_CALL = _COLUMNS.keys() & Call.__dataclass_fields__.keys()

#: Distinguishes a call from one of a deleted session of the same name, and from one of a claim
#: that may have read what was redacted since.
_MADE_FOR = {"incarnation": "integer", "epoch": "bigint"}

#: Written for a call whose session, memory or answer is gone, or whose memory was redacted: it was
#: paid for, and its reply is not read. Such calls have keys of their own, which belong to no
#: prompt.
_LATE = {
    "session_key": "CASE WHEN has_session THEN session_key ELSE %(costs)s::uuid END",
    "key": "uuid_send(call_id)",
    "memory_id": "CASE WHEN has_session AND has_memory THEN memory_id END",
    "occasion": "CASE WHEN has_session THEN occasion ELSE '' END",
    "reply": "CASE WHEN reply IS NOT NULL THEN '' END",
    "failure": "CASE WHEN failure IS NOT NULL THEN '' END",
    "said": "NULL",
}
_IS_KEPT = "has_session AND has_memory AND has_answer AND is_kept"
_WRITTEN = ", ".join(
    f"CASE WHEN {_IS_KEPT} THEN {name} ELSE {_LATE[name]} END" if name in _LATE else name
    for name in _COLUMNS
)

# The session is not deleted before the end of the transaction.
_WRITE = f"""
WITH live AS MATERIALIZED (
    SELECT session_key, incarnation FROM session
    WHERE session_key = ANY(%(session_key)s::uuid[]) ORDER BY session_key FOR KEY SHARE
), made AS MATERIALIZED (
    SELECT w.*,
        EXISTS (SELECT FROM live
            WHERE live.session_key = w.session_key
                AND (w.incarnation IS NULL OR live.incarnation = w.incarnation)
        ) AS has_session,
        w.memory_id IS NULL OR EXISTS (SELECT FROM memory m
            WHERE m.session_key = w.session_key AND m.memory_id = w.memory_id
        ) AS has_memory,
        NOT EXISTS (SELECT FROM memory m
            WHERE m.session_key = w.session_key AND m.memory_id = w.memory_id
                AND w.epoch <= m.redacted_epoch
        ) AS is_kept,
        CASE WHEN w.occasion ~ '^answer:[0-9a-f-]{{36}}$' THEN EXISTS (SELECT FROM answer a
            WHERE a.session_key = w.session_key
                AND a.answer_id = substr(w.occasion, 8)::uuid
        ) ELSE true END AS has_answer
    FROM {_lists({**_COLUMNS, **_MADE_FOR})}
)
INSERT INTO call ({", ".join(_COLUMNS)})
SELECT {_WRITTEN} FROM made
ON CONFLICT (session_key, key) WHERE reply IS NOT NULL DO NOTHING
RETURNING call_id
"""  # noqa: S608 - as above

# For calls whose reply was there already; our own is not read again.
_THEIRS = f"""
SELECT w.call_id, {_REPLY_COLUMNS}
FROM {_lists({**_PLACE, "call_id": "uuid"})} CROSS JOIN LATERAL (
    SELECT * FROM call c
    WHERE c.session_key = w.session_key AND c.key = w.key AND reply IS NOT NULL OFFSET 0
) c
WHERE c.call_id <> w.call_id
"""  # noqa: S608 - as above


async def begin(
    tx: Transaction, wanted: Sequence[PendingReservation], lease_seconds: float
) -> list[Begun]:
    """Begins a transaction and grants the leases of calls; in the order of `wanted`.

    A call that was made has its reply instead. One that another makes is in progress, and so is the
    second of two equal ones; one whose session was deleted is gone. The caller commits, unless
    budgets do not allow a call: then it begins again without that one, which leaves no trace.
    """
    by_place = {one.place: one for one in sorted(wanted, key=lambda one: one.place)}
    # Replies only after intents: an outcome is stored together with the removal of its intent, so
    # it is either seen here, or the intent was still there.
    _, taken, replies, left, ((is_concerned,),) = await tx.pipeline(
        (budgets.ONE_BY_ONE, _TAKE, _REPLIES, _LEFT, budgets.CONCERNED),
        {
            **budgets.keys(tx.tenant_id, (one.scope for one in by_place.values())),
            **_columns((*_WANTED, "incarnation"), [_row(tx, one) for one in by_place.values()]),
            "lease_seconds": float(lease_seconds),
        },
        stays_open=True,
    )
    fences = {(session, key): fence for session, key, fence in taken}
    said = {(session, key): _reply_of(rest) for session, key, *rest in replies}
    seconds = {(session, key): rest for session, key, rest in left}
    over = [(*place, fences.pop(place)) for place in said if place in fences]
    if over:
        await tx.pipeline((_END,), _columns(_LEASE, over))
    refused: dict[tuple[UUID, bytes], BudgetExhausted | None] = {}
    if is_concerned and fences:
        # Budgets are given in the order of `wanted`.
        places = list(dict.fromkeys(one.place for one in wanted if one.place in fences))
        asked = [(by_place[place].scope, by_place[place].asked) for place in places]
        refused = dict(zip(places, await budgets.refusals(tx, asked), strict=True))
    unknown = [
        one.scope
        for place, one in by_place.items()
        if place not in said and place not in seconds and place not in fences
    ]
    live = await _live(tx, unknown) if unknown else ()
    begun: list[Begun] = []
    for one in wanted:
        fence, refusal = fences.pop(one.place, None), refused.get(one.place)
        if one.place in said:
            begun.append(said[one.place])
        elif refusal is not None:
            begun.append(refusal)
        elif fence is not None:
            begun.append(Lease(fence=fence))
        elif one.place in seconds or one.scope.session_key in live:
            begun.append(CallInProgress(seconds=max(seconds.get(one.place, 0.0), 0.0)))
        else:
            begun.append(Gone("the session was deleted"))
    return begun


async def _live(tx: Transaction, scopes: Sequence[CallScope]) -> Set[UUID]:
    """Returns those sessions that exist in the incarnations of the calls."""
    query = "SELECT session_key, incarnation FROM session WHERE session_key = ANY(%(keys)s)"
    (rows,) = await tx.pipeline((query,), {"keys": [scope.session_key for scope in scopes]})
    found = {(key, as_now) for key, incarnation in rows for as_now in (incarnation, None)}
    return {one.session_key for one in scopes if (one.session_key, one.incarnation) in found}


def _row(tx: Transaction, one: PendingReservation) -> tuple[object, ...]:
    scope, wanted = one.scope, one.reservation
    return (
        scope.session_key,
        one.key,
        tx.tenant_id,
        scope.memory_id,
        wanted.purpose.value,
        wanted.model,
        wanted.deployment,
        wanted.tokens,
        wanted.micro_usd or 0,
        scope.incarnation,
    )


async def record(tx: Transaction, outcomes: Sequence[CallOutcome]) -> list[RecordedOutcome]:
    """Writes calls and ends their intents: a whole transaction, in one round trip.

    Another worker's reply to the same call counts, if it is there already.
    """
    _, written, theirs, *ended = await tx.pipeline(*_recording(tx, outcomes))
    ids = {call_id for (call_id,) in written}
    over = {tuple(row) for rows in ended for row in rows}
    replies = {call_id: _reply_of(rest) for call_id, *rest in theirs}
    return [_recorded(one, ids, replies, over) for one in outcomes]


def _recorded(
    one: CallOutcome,
    ids: Set[UUID],
    replies: Mapping[UUID, ModelReply],
    over: Set[tuple[object, ...]],
) -> RecordedOutcome:
    was_held = not one.is_last or _lease_of(one) in over
    if one.call_id not in ids and one.call_id in replies:
        return RecordedOutcome(is_new=False, reply=replies[one.call_id], was_held=was_held)
    # A reply that was neither written now nor is another worker's was written before: the result of
    # that commit was lost, and is reported now. Its intent ended then.
    is_repeated = one.call_id not in ids
    return RecordedOutcome(is_new=True, reply=one.call.as_reply(), was_held=was_held or is_repeated)


def _recording(
    tx: Transaction, outcomes: Sequence[CallOutcome]
) -> tuple[tuple[str, ...], dict[str, object]]:
    """Returns the statements of `record`, and their values."""
    # In one order for all writers: by keys, and by the sums that a trigger adds them to.
    in_order = sorted(
        outcomes, key=lambda one: (one.scope.session_key, one.scope.owner_id, one.call.key)
    )
    values = _columns((*_COLUMNS, *_MADE_FOR), [_call_row(tx.tenant_id, one) for one in in_order])
    values["costs"] = costs_key(tx.tenant_id)
    over = [_lease_of(one) for one in outcomes if one.is_last]
    if not over:
        return (budgets.ONE_BY_ONE, _WRITE, _THEIRS), values
    return (budgets.ONE_BY_ONE, _WRITE, _THEIRS, _END), values | _columns(_LEASE, over)


def _lease_of(one: CallOutcome) -> tuple[UUID, bytes, int]:
    return one.scope.session_key, one.call.key, one.lease.fence


def _call_row(tenant_id: UUID, one: CallOutcome) -> tuple[object, ...]:
    """Returns the values of `_COLUMNS` and `_MADE_FOR`."""
    scope, call = one.scope, one.call
    values = {
        **{name: getattr(call, name) for name in _OF_CALL},
        "session_key": scope.session_key,
        "call_id": one.call_id,
        "tenant_id": tenant_id,
        "memory_id": scope.memory_id,
        "occasion": scope.occasion,
        "purpose": call.purpose.value,
        "ended": None if call.reply is None else call.end.value,
        "said": call.said or None,
        "incarnation": scope.incarnation,
        "epoch": scope.epoch,
    }
    return tuple(values[name] for name in (*_COLUMNS, *_MADE_FOR))


async def give_up(tx: Transaction, held: Sequence[HeldCall]) -> None:
    """Releases leases: the calls are not made. A whole transaction.

    Leaves alone those that another worker has taken over.
    """
    await tx.pipeline((_END,), _columns(_LEASE, [one.lease_row for one in held]))


async def renew(
    tx: Transaction, held: Sequence[HeldCall], lease_seconds: float, *, waits: bool
) -> list[bool]:
    """Renews leases of any tenants from now on; False for one that another worker has taken over.

    A whole transaction, which is not flushed. Unless it `waits`, also False for an intent that is
    locked: its call is ending or being taken over, and the others need not wait for that.
    """
    by_tenant: dict[UUID, list[tuple[UUID, bytes, int]]] = {}
    for one in held:
        by_tenant.setdefault(one.scope.tenant_id, []).append(one.lease_row)
    queries, values = [budgets.ONE_BY_ONE, _UNFLUSHED], list[object]()
    for tenant_id in sorted(by_tenant):
        queries += [OF_TENANT, _RENEW if waits else _RENEW_FREE]
        lists = _columns(_LEASE, by_tenant[tenant_id])
        values += [str(tenant_id), float(lease_seconds), *lists.values()]
    found = await tx.pipeline(queries, values)
    renewed = {tuple(row) for rows in found[3::2] for row in rows}
    return [one.lease_row in renewed for one in held]


def _reply_of(row: Sequence[Any]) -> ModelReply:
    """Returns a reply from the values of _REPLY_COLUMNS."""
    fields = dict(zip(_REPLY, row, strict=True))
    return ModelReply(**{**fields, "end": end_of(fields["end"])})
