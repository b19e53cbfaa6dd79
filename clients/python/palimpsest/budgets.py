"""Budgets: what the model calls of a memory, a session or the tenant may come to."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from palimpsest.connection import Connection
from palimpsest.v1 import budgets_pb2, budgets_pb2_grpc

#: When what was spent is forgotten: at midnight UTC, or never.
Period = Literal["day", "total"]

_PERIODS: dict[str, budgets_pb2.BudgetPeriod.ValueType] = {
    "day": budgets_pb2.BUDGET_PERIOD_DAY,
    "total": budgets_pb2.BUDGET_PERIOD_TOTAL,
}
_NAMES: dict[int, str] = {
    budgets_pb2.BUDGET_PERIOD_DAY: "day",
    budgets_pb2.BUDGET_PERIOD_TOTAL: "total",
}
#: The largest limit that can be sent.
MAX_LIMIT = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A budget, and how much of it is left."""

    #: Empty for the tenant's.
    session: str
    #: Empty unless it is a memory's.
    memory: str
    #: "day", "total", or "unknown" where the service is newer.
    period: str
    #: Tokens of prompts and replies together, cached ones included; None: no limit.
    limit_tokens: int | None
    #: In millionths of a US dollar; None: no limit.
    limit_micro_usd: int | None
    spent_tokens: int
    spent_micro_usd: int
    #: Calls in `spent_tokens` that have no price, so are not in `spent_micro_usd`.
    unpriced_calls: int
    #: What calls under way may come to.
    reserved_tokens: int
    reserved_micro_usd: int
    #: Of a day's budget: when what was spent is forgotten next.
    resets_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSet:
    """What came of setting a budget."""

    budget: Budget
    #: Held memories that try again.
    woken_memories: int


class Budgets:
    """The budgets of one owner: the tenant, a session or a memory."""

    def __init__(self, connection: Connection, session: str = "", memory: str = "") -> None:
        self._connection = connection
        self._session = session
        self._stub = budgets_pb2_grpc.BudgetServiceStub(connection.channel)
        self._owner = budgets_pb2.BudgetOwner()
        if memory:
            self._owner.memory.session = session
            self._owner.memory.memory = memory
        elif session:
            self._owner.session = session
        else:
            self._owner.tenant = True

    async def set(
        self,
        period: Period,
        *,
        limit_tokens: int | None = None,
        limit_micro_usd: int | None = None,
    ) -> BudgetSet:
        """Sets the budget of a period. See `palimpsest.client.Client.set_budget`."""
        request = budgets_pb2.SetBudgetRequest(
            owner=self._owner,
            period=_number(period),
            limit_tokens=_limit("limit_tokens", limit_tokens),
            limit_micro_usd=_limit("limit_micro_usd", limit_micro_usd),
        )
        response = await self._connection.call(self._stub.SetBudget, request)
        return BudgetSet(budget=_budget(response.budget), woken_memories=response.woken_memories)

    async def clear(self, period: Period) -> int:
        """Takes the budget of a period away. See `palimpsest.client.Client.clear_budget`."""
        request = budgets_pb2.ClearBudgetRequest(owner=self._owner, period=_number(period))
        # Not repeated: what was done the first time would be NOT_FOUND.
        response = await self._connection.call(self._stub.ClearBudget, request, retry=False)
        return int(response.woken_memories)

    async def list(self) -> AsyncIterator[Budget]:
        """The budgets of the session and its memories, or of the whole tenant."""
        request = budgets_pb2.ListBudgetsRequest(session=self._session, page_size=1000)
        async for page in self._connection.pages(self._stub.ListBudgets, request):
            for message in page.budgets:
                yield _budget(message)


def _number(period: str) -> budgets_pb2.BudgetPeriod.ValueType:
    if period not in _PERIODS:
        raise ValueError(f"period is 'day' or 'total', not {period!r}")
    return _PERIODS[period]


def _limit(name: str, limit: int | None) -> int | None:
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"{name} is from 0 to {MAX_LIMIT}, not {limit}")
    return limit


def _budget(message: budgets_pb2.Budget) -> Budget:
    owner = message.owner
    of_memory = owner.WhichOneof("scope") == "memory"
    resets = message.HasField("reset_time")
    return Budget(
        session=owner.memory.session if of_memory else owner.session,
        memory=owner.memory.memory,
        period=_NAMES.get(message.period, "unknown"),
        limit_tokens=message.limit_tokens if message.HasField("limit_tokens") else None,
        limit_micro_usd=message.limit_micro_usd if message.HasField("limit_micro_usd") else None,
        spent_tokens=message.spent_tokens,
        spent_micro_usd=message.spent_micro_usd,
        unpriced_calls=message.unpriced_calls,
        reserved_tokens=message.reserved_tokens,
        reserved_micro_usd=message.reserved_micro_usd,
        resets_at=message.reset_time.ToDatetime(tzinfo=UTC) if resets else None,
    )
