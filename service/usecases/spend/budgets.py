"""Sets, lists and deletes budgets, and holds the memories that they stop."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.spend.budgets import (
    BudgetLimits,
    BudgetOwner,
    BudgetPeriod,
    BudgetScope,
    Standing,
)
from service.domain.values.errors import BudgetExhausted, Conflict, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.telemetry import meter
from service.telemetry.names import Metric
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import find_memory, item_key, session_not_found
from service.usecases.log.wake_ups import WakeUps
from storage.access import audit
from storage.engine.claims import Claim
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.spend import budgets

_HELD = meter().create_counter(
    Metric.STEPS_HELD, description="Steps that were put off: a budget is used up"
)


class Budgets:
    """What clients do with budgets."""

    def __init__(self, database: Database, wake_ups: WakeUps) -> None:
        self._database = database
        self._wake_ups = wake_ups

    async def put(
        self,
        tenant_id: UUID,
        owner: BudgetOwner,
        period: BudgetPeriod,
        limits: BudgetLimits,
        *,
        etag: str = "",
    ) -> Standing:
        """Sets a budget in place of the one before, and has memories that it held try again.

        With `etag` only while the one before has it. Raises NotFound, Conflict.
        """
        async with self._database.transaction(tenant_id, name="budgets") as tx:
            place = await _place(tx, owner)
            if etag:
                before = await budgets.lock(tx, place, period)
                current = "" if before is None else before.etag()
                if current != etag:
                    raise Conflict(
                        Reason.ETAG_MISMATCH,
                        f"the budget of {owner} for {_PERIODS[period]} was changed since it was"
                        " read: read it again, then decide",
                        {"current": current},
                    )
            await budgets.put(
                tx, place, period, limit_tokens=limits.tokens, limit_micro_usd=limits.micro_usd
            )
            woken = await budgets.wake(tx, place)
            standing = await budgets.get(tx, owner, period)
            assert standing is not None, "it was set in this transaction"
            changes: dict[str, Detail] = {"period": period.value}
            if limits.tokens is not None:
                changes["tokens"] = limits.tokens
            if limits.micro_usd is not None:
                changes["micro_usd"] = limits.micro_usd
            await _record(tx, AuditAction.BUDGET_SET, owner, changes)
            await store_result(tx, standing)
        self._wake_ups.add_memories(tenant_id, woken)
        return standing

    async def delete(
        self, tenant_id: UUID, owner: BudgetOwner, period: BudgetPeriod, *, allow_missing: bool
    ) -> None:
        """Deletes a budget, and has memories that it held try again. Raises NotFound."""
        woken: Sequence[tuple[UUID, UUID]] = ()
        async with self._database.transaction(tenant_id, name="budgets") as tx:
            try:
                place = await _place(tx, owner)
                if not await budgets.delete(tx, place, period):
                    raise NotFound(
                        Reason.BUDGET_NOT_FOUND,
                        f"{owner} has no budget for {_PERIODS[period]}",
                        {"session": owner.session, "memory": owner.memory, "period": period.value},
                    )
                woken = await budgets.wake(tx, place)
                await _record(tx, AuditAction.BUDGET_DELETE, owner, {"period": period.value})
            except NotFound:
                if not allow_missing:
                    raise
            await store_result(tx, None)
        self._wake_ups.add_memories(tenant_id, woken)

    async def page(
        self, tenant_id: UUID, session: str | None, after: tuple[str, str, str], limit: int
    ) -> Sequence[Standing]:
        """Returns up to `limit` budgets after `after`, of one session or all. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="budgets") as tx:
            if session is not None:
                await _session(tx, session)
            return await budgets.page(tx, named=session, after=after, limit=limit)


async def _record(
    tx: Transaction, action: AuditAction, owner: BudgetOwner, details: Mapping[str, Detail]
) -> None:
    entry = AuditEntry(action=action, session=owner.session, memory=owner.memory, details=details)
    await audit.record(tx, entry)


_PERIODS = {BudgetPeriod.DAY: "the day", BudgetPeriod.TOTAL: "all time"}


async def _place(tx: Transaction, owner: BudgetOwner) -> tuple[UUID, UUID] | None:
    if owner.scope is BudgetScope.TENANT:
        return None
    if owner.scope is BudgetScope.SESSION:
        key = await _session(tx, owner.session)
        return key, key
    await _session(tx, owner.session)
    return item_key(await find_memory(tx, owner.session, owner.memory))


async def _session(tx: Transaction, session: str) -> UUID:
    key = session_key(tx.tenant_id, session)
    if await sessions.keep(tx, key) is None:
        raise session_not_found(session)
    return key


async def hold(database: Database, held: Claim, error: BudgetExhausted) -> float | None:
    """Puts off a memory whose call was refused; returns when its worker retries, in seconds.

    None when a worker finds it later, or a client raises the budget. Raises Fenced.
    """
    async with database.transaction(held.tenant_id, name="budgets") as tx:
        try:
            # Once more, with the budgets locked until the memory is held: else one that
            # was raised since the refusal would have found nothing to wake.
            asked = error.asked
            await budgets.check(
                tx, held.scope(""), tokens=asked.tokens, micro_usd=asked.micro_usd, key=asked.key
            )
        except BudgetExhausted as still:
            await budgets.hold(tx, held, still)
            _HELD.add(1)
            return still.resume_seconds if still.waits_for_calls else None
    return 0.0
