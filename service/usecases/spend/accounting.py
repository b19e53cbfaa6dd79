"""The paper's accounting of a state memory: three loops over its session's steps."""

from collections.abc import Sequence

from service.domain.prompting.flows import Purpose
from service.domain.state.accounting import Accounting, account
from service.usecases.log.lookup import item_key
from storage.engine.database import Transaction
from storage.memories.memories import StoredMemory
from storage.spend.costs import CostLine
from storage.state import accounting


async def read_accounting(
    tx: Transaction, stored: StoredMemory, lines: Sequence[CostLine], system_tokens: int
) -> Accounting | None:
    """The accounting as of the memory's row; None for a session without a step.

    `lines` are all calls of this memory; `system_tokens` as `account` has them.
    """
    if not stored.head:
        return None
    sums = await accounting.read_sums(
        tx, *item_key(stored), revision=stored.revision, head=stored.head
    )
    compressing = [line.spend for line in lines if line.purpose == Purpose.COMPRESS]
    return account(
        sums,
        stored.state,
        compression_tokens=sum(one.input_tokens + one.output_tokens for one in compressing),
        system_tokens=system_tokens,
    )
