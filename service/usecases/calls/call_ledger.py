"""The gateway's ledger: an intent is on disk before a call, its reply before its first use."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import structlog

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    Gone,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.flows import ModelReply
from service.domain.values.errors import BudgetExhausted
from service.usecases.calls.metrics import CallMeters
from service.usecases.log import metrics
from service.usecases.log.group_commit import GroupCommit
from service.usecases.log.metrics import Guard
from storage.calls import call_ledger
from storage.calls.call_ledger import CallOutcome, PendingReservation, RecordedOutcome
from storage.engine.database import Database
from storage.engine.errors import Busy as DatabaseBusy
from storage.engine.errors import StorageError, Unreachable

_log = structlog.get_logger("palimpsest.ledger")

#: How long storing a reply is retried: it is paid for.
STORE_SECONDS = 120.0
#: Pause between two tries.
STORE_PAUSE_SECONDS = 0.5
#: Leases of one transaction, at most: a call that ends meanwhile waits for it.
RENEWED_TOGETHER = 250

#: The result of beginning a call.
_Begun = ModelReply | CallInProgress | Lease


class CallLedger:
    """Keeps calls in the database; the gateway's ledger.

    Calls that begin, or end, while a commit is under way share the next one. Renewals of leases
    are not flushed.
    """

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._meters = CallMeters()
        self._beginnings: GroupCommit[PendingReservation, _Begun] = GroupCommit(
            self._begin, abandoned=self._give_up
        )
        self._renewals: GroupCommit[HeldCall, bool] = GroupCommit(self._renew)
        self._outcomes: GroupCommit[CallOutcome, RecordedOutcome] = GroupCommit(self._record)

    async def begin(self, scope: CallScope, key: bytes, wanted: Reservation) -> _Begun:
        """Returns the reply that was paid for already, else the right to make the call, if free.

        Raises BudgetExhausted for a call that a budget does not allow, and Gone for one of a
        session that was deleted.
        """
        return await self._beginnings.put(
            scope.tenant_id, PendingReservation(scope=scope, key=key, reservation=wanted)
        )

    async def _begin(
        self, tenant_id: UUID, wanted: Sequence[PendingReservation]
    ) -> Sequence[_Begun | BudgetExhausted | Gone]:
        found: dict[int, _Begun | BudgetExhausted | Gone] = {}
        while left := [n for n in range(len(wanted)) if n not in found]:
            begun = await self._begin_all(tenant_id, [wanted[n] for n in left])
            by_number = dict(zip(left, begun, strict=True))
            refused = {n: one for n, one in by_number.items() if isinstance(one, BudgetExhausted)}
            # What budgets refuse undoes the others, which begin anew without it.
            found |= refused or by_number
        return [found[n] for n in range(len(wanted))]

    async def _begin_all(
        self, tenant_id: UUID, wanted: Sequence[PendingReservation]
    ) -> Sequence[_Begun | BudgetExhausted | Gone]:
        """Begins all of them, or none where a budget refuses one."""
        async with self._database.direct(tenant_id, name="calls.begin") as tx:
            begun = await call_ledger.begin(tx, wanted, self._lease_seconds)
            if not any(isinstance(one, BudgetExhausted) for one in begun):
                await tx.commit()
        return begun

    async def _give_up(
        self, tenant_id: UUID, begun: Sequence[tuple[PendingReservation, _Begun]]
    ) -> None:
        """Releases the leases of calls whose callers are gone, so that the next need not wait."""
        held = [
            HeldCall(scope=wanted.scope, key=wanted.key, lease=lease)
            for wanted, lease in begun
            if isinstance(lease, Lease)
        ]
        if not held:
            return
        try:
            async with self._database.direct(tenant_id, name="calls") as tx:
                await call_ledger.give_up(tx, held)
        except StorageError as error:
            _log.warning("leases not released; they expire", cause=str(error))

    async def renew(self, held: HeldCall) -> bool:
        """Renews a lease; returns False when another worker has it."""
        is_held = await self._renewals.put(held.scope.tenant_id, held)
        if not is_held:
            metrics.kept(Guard.CALL_LEASE)
        return is_held

    async def _renew(self, tenant_id: UUID, held: Sequence[HeldCall]) -> Sequence[bool]:
        async with self._database.direct(tenant_id, name="calls.renew") as tx:
            return await call_ledger.renew(tx, held, self._lease_seconds, waits=True)

    async def renew_all(self, held: Sequence[HeldCall]) -> None:
        """Renews leases of any tenants, except those that other workers have."""
        in_order = sorted(held, key=lambda one: one.scope.tenant_id)
        for first in range(0, len(in_order), RENEWED_TOGETHER):
            some = in_order[first : first + RENEWED_TOGETHER]
            async with self._database.direct(some[0].scope.tenant_id, name="calls.renew") as tx:
                await call_ledger.renew(tx, some, self._lease_seconds, waits=False)

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        """Writes a call; returns the reply that counts, or None for a failed call.

        With a reply, or the `last` try, the intent ends. When another worker made the same
        call first, that reply counts.
        """
        is_last = last or call.reply is not None
        outcome = CallOutcome(scope=scope, call=call, lease=lease, is_last=is_last)
        recorded = await self._stored(outcome)
        if recorded.is_new:
            self._meters.count(call)
        else:
            metrics.kept(Guard.CALL_REPLY)
        if not recorded.was_held:
            metrics.kept(Guard.CALL_LEASE)
        return recorded.reply

    async def _stored(self, outcome: CallOutcome) -> RecordedOutcome:
        until = asyncio.get_running_loop().time() + STORE_SECONDS
        while True:
            try:
                return await self._outcomes.put(outcome.scope.tenant_id, outcome)
            except (Unreachable, DatabaseBusy) as error:
                # Twice written is once written, for a reply; a failed call may be lost.
                if outcome.call.reply is None or asyncio.get_running_loop().time() > until:
                    raise
                _log.warning("a reply waits for the database", cause=str(error))
            await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _record(
        self, tenant_id: UUID, outcomes: Sequence[CallOutcome]
    ) -> Sequence[RecordedOutcome]:
        async with self._database.direct(tenant_id, name="calls.record") as tx:
            return await call_ledger.record(tx, outcomes)
