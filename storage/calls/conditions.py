"""Stores conditions of models, which belong to no tenant."""

from collections.abc import Sequence

from sqlalchemy import Double, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.calls.conditions import Condition
from service.domain.prompting.faults import Fault, fault_of
from storage.engine.clocks import interval
from storage.engine.database import Transaction, first
from storage.tables import model_condition

#: By the names of a condition's fields.
_COLUMNS = (
    model_condition.c.place.label("deployment"),
    model_condition.c.model,
    model_condition.c.fault,
    model_condition.c.cause,
    model_condition.c.failures,
    model_condition.c.since,
    cast(func.extract("epoch", model_condition.c.probe_at - func.now()), Double).label(
        "probe_seconds"
    ),
)


async def read(tx: Transaction) -> Sequence[Condition]:
    """Returns all conditions, by deployment."""
    rows = await tx.fetch(select(*_COLUMNS).order_by(model_condition.c.place))
    return [Condition(**{**row._asdict(), "fault": fault_of(row.fault)}) for row in rows]


async def add(
    tx: Transaction,
    *,
    deployment: str,
    model: str,
    fault: Fault,
    cause: str,
    probe_seconds: float,
) -> bool:
    """Stores a condition; False when the deployment has one already."""
    row = insert(model_condition).values(
        place=deployment,
        model=model,
        fault=fault.value,
        cause=cause,
        probe_at=func.now() + interval(probe_seconds),
    )
    new = row.on_conflict_do_nothing(index_elements=["place"]).returning(model_condition.c.place)
    return first(await tx.fetch(new)) is not None


async def take_probe(tx: Transaction, deployment: str, next_seconds: float) -> bool:
    """Claims the probe that is due; the next one is due after `next_seconds`.

    It counts as a failure until it has a reply, so that probes that hang become ever rarer.
    """
    taken = (
        update(model_condition)
        .where(model_condition.c.place == deployment, model_condition.c.probe_at <= func.now())
        .values(
            probe_at=func.now() + interval(next_seconds), failures=model_condition.c.failures + 1
        )
    )
    return await tx.execute(taken) == 1


async def keep(
    tx: Transaction, *, deployment: str, fault: Fault, cause: str, probe_seconds: float
) -> None:
    """Stores that a probe failed."""
    await tx.execute(
        update(model_condition)
        .where(model_condition.c.place == deployment)
        .values(
            fault=fault.value,
            cause=cause,
            probe_at=func.now() + interval(probe_seconds),
        )
    )


async def remove(tx: Transaction, condition: Condition) -> None:
    """Removes a condition that has passed, unless a new one has replaced it."""
    gone = delete(model_condition).where(
        model_condition.c.place == condition.deployment, model_condition.c.since == condition.since
    )
    await tx.execute(gone)
