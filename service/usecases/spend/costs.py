"""Reports what the calls of a session or a memory cost, and why caches differed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.prompting.flows import Purpose
from service.domain.spend.prices import LogCost, added
from service.domain.state.accounting import Accounting, account
from service.domain.state.spec import StateSpec
from service.domain.values.tenancy import session_key
from service.usecases.log.lookup import find_memory, item_key, session_not_found
from service.usecases.spend.comparing import Compared
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories.memories import StoredMemory
from storage.spend import costs, spend
from storage.spend.costs import CostLine, ResidualLine
from storage.spend.spend import Spend, SpendFilter, SpendLevel, SpendLine
from storage.state import accounting

#: Calls that read a log into a memory.
_READING = (
    Purpose.REVISE.value,
    Purpose.CONSOLIDATE.value,
    Purpose.SUMMARIZE.value,
    Purpose.COMPRESS.value,
)
#: What only some kinds of memories have.
CostDetail = Compared | Accounting
#: Reads that of a memory, from all lines of its costs; the last argument is as `account` has it.
ReadsDetail = Callable[[UUID, StoredMemory, Sequence[CostLine], int], Awaitable[CostDetail | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostQuery:
    """Whose costs of which days."""

    #: Empty: the whole tenant's.
    session: str
    #: Empty: all of the session's.
    memory: str
    days: spend.Days


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The total of calls."""

    total: Spend
    residuals: Sequence[ResidualLine]
    #: Calls that revised or consolidated a memory, summarized for a tree, or compressed.
    reading: LogCost
    #: None unless a memory's whole costs were asked for, and its kind has any for that memory.
    detail: CostDetail | None


class Costs:
    """What clients ask about costs."""

    def __init__(self, database: Database, details: Mapping[str, ReadsDetail]) -> None:
        """`details` are those that some kinds of memories have."""
        self._database = database
        self._details = details

    async def spend(
        self,
        tenant_id: UUID,
        asked: CostQuery,
        level: SpendLevel,
        *,
        by_day: bool,
        after: tuple[str, str, str] | None,
        limit: int,
    ) -> tuple[Spend, Sequence[SpendLine]]:
        """Returns the sum of all, and up to `limit` lines after `after`. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="costs") as tx:
            wanted, _ = await _filter(tx, asked)
            total = await spend.total(tx, wanted)
            found = await spend.lines(tx, wanted, level, by_day=by_day, after=after, limit=limit)
        return total, found

    async def purposes(
        self,
        tenant_id: UUID,
        asked: CostQuery,
        *,
        by_memory: bool,
        after: tuple[str, str, str] | None,
        limit: int,
    ) -> tuple[Spend, Sequence[CostLine]]:
        """Returns the sum of all, and up to `limit` lines by purpose and model after `after`.

        `after` is memory, purpose and model. Raises NotFound.
        """
        async with self._database.transaction(tenant_id, name="costs") as tx:
            wanted, _ = await _filter(tx, asked)
            assert wanted.session_key is not None, "the proto requires a session"
            found = await costs.lines(tx, wanted)
        lines: dict[tuple[str, str, str], CostLine] = {}
        for one in found:
            place = (one.memory if by_memory else "", one.purpose, one.model)
            spent = [one.spend, *([lines[place].spend] if place in lines else [])]
            lines[place] = replace(one, memory=place[0], spend=spend.added(spent))
        following = [lines[place] for place in sorted(lines) if after is None or place > after]
        return spend.added(one.spend for one in found), following[:limit]

    async def cost(self, tenant_id: UUID, asked: CostQuery, *, system_tokens: int = 0) -> Cost:
        """Returns what a session or a memory cost. Raises NotFound.

        `system_tokens`: of the system prompt of the agent, for the accounting of its steps.
        """
        async with self._database.transaction(tenant_id, name="costs") as tx:
            wanted, stored = await _filter(tx, asked)
            assert wanted.session_key is not None, "the proto requires a session"
            lines = await costs.lines(tx, wanted)
            classes = await costs.residuals(tx, wanted)
        detail = None
        if stored is not None and stored.kind in self._details and asked.days == spend.Days():
            detail = await self._details[stored.kind](tenant_id, stored, lines, system_tokens)
        return Cost(
            total=spend.added(line.spend for line in lines),
            residuals=classes,
            reading=added(line.cost for line in lines if line.purpose in _READING),
            detail=detail,
        )


async def _filter(tx: Transaction, asked: CostQuery) -> tuple[SpendFilter, StoredMemory | None]:
    if not asked.session:
        return SpendFilter(days=asked.days), None
    key = session_key(tx.tenant_id, asked.session)
    if not asked.memory:
        if await sessions.get(tx, key) is None:
            raise session_not_found(asked.session)
        return SpendFilter(session_key=key, days=asked.days), None
    stored = await find_memory(tx, asked.session, asked.memory)
    wanted = SpendFilter(session_key=key, memory_id=stored.memory_id, days=asked.days)
    return wanted, stored


async def read_accounting(
    database: Database,
    tenant_id: UUID,
    stored: StoredMemory,
    lines: Sequence[CostLine],
    system_tokens: int,
) -> Accounting | None:
    """Returns the paper's accounting as of the row of a state memory; None without a step.

    `lines` are all calls of this memory; `system_tokens` as `account` has them.
    """
    if not stored.head:
        return None
    async with database.transaction(tenant_id, name="costs") as tx:
        sums = await accounting.read_sums(
            tx, *item_key(stored), revision=stored.revision, head=stored.head
        )
    compressing = [line.spend for line in lines if line.purpose == Purpose.COMPRESS]
    return account(
        sums,
        StateSpec.of(stored),
        compression_tokens=sum(one.input_tokens + one.output_tokens for one in compressing),
        system_tokens=system_tokens,
    )
