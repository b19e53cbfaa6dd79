"""Defers work that waits for a model, without counting a try; finds and wakes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import case, cast, func, literal, select, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.claims import Claim, change, change_locked
from storage.engine.clocks import CLOCK, interval
from storage.engine.database import Transaction, value
from storage.memories.job_results import WORK_TABLES, open_item
from storage.tables import dead_letter, memory


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingWork:
    """Work of one kind and tenant that waits for a model."""

    kind: WorkKind
    tenant_id: UUID
    model: str


async def back_off_memory(
    tx: Transaction, held: Claim, *, model: str | None, cause: str, seconds: float
) -> None:
    """Defers a memory's next try without counting one; it shows the cause meanwhile.

    With a `model` it waits for that, and is woken when the model's condition has passed.
    Raises Fenced when the claim is lost.
    """
    ready_at = func.now() + interval(seconds)
    await change(tx, held, ready_at=ready_at, waiting_model=model, waiting_cause=cause)


async def back_off(
    tx: Transaction, item: WorkItem, *, model: str | None, cause: str, seconds: float
) -> None:
    """Defers a pending answer or schema draft in the same way."""
    table, is_open = open_item(item)
    ready_at = func.now() + interval(seconds)
    values = {"ready_at": ready_at, "waiting_model": model, "waiting_cause": cause}
    await tx.execute(update(table).where(*is_open).values(values))


async def find_cause(tx: Transaction, item: WorkItem) -> str | None:
    """Returns why an answer or a schema draft waits for its model; None when it does not."""
    table, identity, _ = WORK_TABLES[item.kind]
    cause = case((table.c.ready_at > func.now(), table.c.waiting_cause))
    statement = select(cause).where(
        table.c.session_key == item.session_key, identity == item.item_id
    )
    found: str | None = value(await tx.fetch(statement))
    return found


async def list_waiting(tx: Transaction) -> Sequence[WaitingWork]:
    """Returns the waiting work of all tenants. Needs `Database.sweeping`."""
    found: list[WaitingWork] = []
    for kind, (table, _, _) in WORK_TABLES.items():
        rows = await tx.fetch(
            select(table.c.tenant_id, table.c.waiting_model)
            .where(table.c.waiting_model.is_not(None))
            .distinct()
        )
        found += [
            WaitingWork(kind=kind, tenant_id=tenant_id, model=model) for tenant_id, model in rows
        ]
    return found


async def wake(tx: Transaction, waiting: WaitingWork, limit: int) -> Sequence[WorkItem]:
    """Wakes up to `limit` waiting items, those first that have waited longest.

    Leaves out locked rows: a later call wakes them.
    """
    table, identity, status = WORK_TABLES[waiting.kind]
    chosen = (
        select(table.c.session_key, identity)
        .where(
            table.c.tenant_id == tx.tenant_id,
            table.c.waiting_model == waiting.model,
            table.c.status == status,
        )
        .order_by(table.c.ready_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    keys = [tuple(row) for row in await tx.fetch(chosen)]
    if not keys:
        return ()
    await tx.execute(
        update(table)
        .where(tuple_(table.c.session_key, identity).in_(keys))
        .values(ready_at=func.now(), waiting_model=None, waiting_cause=None)
    )
    return [
        WorkItem(kind=waiting.kind, tenant_id=tx.tenant_id, session_key=key, item_id=item_id)
        for key, item_id in keys
    ]


async def change_models(tx: Transaction, held: Claim, models: Mapping[str, str]) -> None:
    """Gives a memory other models, and wakes it if it waits for its former one.

    `models` are fields of its spec. The caller has it from `revisions.lock`.
    """
    waits = memory.c.waiting_cause.is_not(None)
    await change_locked(
        tx,
        held,
        spec=memory.c.spec.op("||")(cast(dict(models), JSONB)),
        # A worker with a claim still calls the old one: its result is void.
        epoch=memory.c.epoch + 1,
        ready_at=case((waits, CLOCK.c.at), else_=memory.c.ready_at),
        waiting_model=None,
        waiting_cause=None,
    )


async def count_waiting(tx: Transaction) -> dict[str, int]:
    """Returns how many memories of the tenant wait, by model."""
    rows = await tx.fetch(
        select(memory.c.waiting_model, func.count())
        .where(memory.c.waiting_model.is_not(None), memory.c.status == "active")
        .group_by(memory.c.waiting_model)
    )
    return {row.waiting_model: row[1] for row in rows}


async def list_ambiguous(tx: Transaction, model: str) -> Sequence[tuple[UUID, UUID]]:
    """Returns the memories that stalled on what was their model's fault."""
    rows = await tx.fetch(
        select(dead_letter.c.session_key, dead_letter.c.memory_id).where(
            dead_letter.c.tenant_id == tx.tenant_id,
            dead_letter.c.ambiguous_model == literal(model),
            dead_letter.c.resolution.is_(None),
        )
    )
    return [(key, memory_id) for key, memory_id in rows]
