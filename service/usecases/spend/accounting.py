"""The paper's accounting of a state memory: three loops over its session's steps."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.prompting.flows import Purpose
from service.domain.state.accounting import Accounting, account
from service.domain.state.spec import StateSpec
from service.usecases.log.lookup import item_key
from storage.engine.database import Database
from storage.memories.memories import StoredMemory
from storage.spend.costs import CostLine
from storage.state import accounting


async def read_accounting(
    database: Database,
    tenant_id: UUID,
    stored: StoredMemory,
    lines: Sequence[CostLine],
    system_tokens: int,
) -> Accounting | None:
    """The accounting as of the memory's row; None for a session without a step.

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
