"""What is stored of operations: an end that stays, rows of their tenant, and when they go."""

from uuid import UUID, uuid4

import psycopg
import pytest

from service.domain.memories.long_operations import (
    Operation,
    OperationId,
    OperationKind,
    OperationState,
)
from service.domain.state.spec import StateSpec
from service.domain.values.errors import NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.usecases.memories.long_operations import find
from storage.engine import sweeping
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import long_operations, stalls
from tests.integration.support.scripted import ITEM, KEY, MEMORY, Script, make, read, state_method
from tests.support.harness import Servers

STATE = StateSpec(task="Find it.", period=1, state_tokens=64, model="test/scripted")
OTHER = UUID(int=7)


def new_id() -> OperationId:
    return OperationId(session_key=KEY, operation_id=uuid4())


async def requested(database: Database, *, goal: int) -> OperationId:
    """Returns a rebuild of the memory, as it is stored with it."""
    id = new_id()
    async with database.transaction(DEFAULT_TENANT) as tx:
        await long_operations.add(
            tx, id, OperationKind.REBUILD, memory_id=MEMORY, memory="m", goal=goal
        )
    return id


async def found(database: Database, id: OperationId) -> Operation:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return (await find(tx, id)).operation


async def test_an_end_that_was_reported_stays(database: Database) -> None:
    script = Script(failures=[ModelFailure("the model is away", retryable=False)])
    await make(database, ["Line 1.", "Line 2."], STATE)
    id, unseen = await requested(database, goal=2), await requested(database, goal=2)
    assert (await found(database, id)).state is OperationState.PENDING
    await state_method(database, script).drain(ITEM)
    assert (await read(database)).status == "stalled"
    failed = await found(database, id)
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert (failed.error.reason, failed.error.metadata["position"]) == ("MEMORY_STALLED", "1")
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    while await state_method(database, Script()).drain(ITEM) is not None:
        pass
    # The failure of the other one was never reported: it continued with its memory.
    assert (await found(database, unseen)).state is OperationState.DONE
    again = await found(database, id)
    assert (again.state, again.error, again.ended_at) == (
        OperationState.FAILED,
        failed.error,
        failed.ended_at,
    )


@pytest.mark.parametrize("cause", ["waiting_cause", "held_reason"])
async def test_what_waits_for_its_model_or_a_budget_runs(database: Database, cause: str) -> None:
    await make(database, ["Line 1."], STATE)
    id = await requested(database, goal=1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        changes = f"{cause} = 'not now', ready_at = now() + interval '1 hour'"
        await tx.execute(f"UPDATE memory SET {changes}")
    assert (await found(database, id)).state is OperationState.RUNNING


async def test_a_memory_that_is_gone_cancels_its_operation(database: Database) -> None:
    await make(database, ["Line 1."], STATE)
    id = new_id()
    async with database.transaction(DEFAULT_TENANT) as tx:
        await long_operations.add(
            tx, id, OperationKind.REBUILD, memory_id=uuid4(), memory="gone", goal=1
        )
    assert (await found(database, id)).state is OperationState.CANCELLED


async def test_a_memory_of_the_same_name_is_another_one(
    servers: Servers, url: str, database: Database
) -> None:
    await make(database, ["Line 1."], STATE)
    id = await requested(database, goal=0)
    with psycopg.connect(servers.as_superuser(url)) as look:
        look.execute("UPDATE memory SET created_at = now() + interval '1 hour'")
    assert (await found(database, id)).state is OperationState.CANCELLED


async def test_rows_are_their_tenants_and_go_after_thirty_days(
    servers: Servers, url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SWEPT_ROWS", 10)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    ids = [await requested(database, goal=1) for _ in range(26)]
    async with database.transaction(OTHER) as tx:
        with pytest.raises(NotFound):
            await find(tx, ids[0])
    superuser = servers.as_superuser(url)
    with psycopg.connect(superuser) as other, psycopg.connect(superuser) as looking:

        def left() -> object:
            row = looking.execute("SELECT count(*) FROM operation").fetchone()
            looking.commit()
            return row

        looking.execute(
            "UPDATE operation SET created_at = now() - interval '31 days' WHERE operation_id <> %s",
            (ids[7].operation_id,),
        )
        looking.commit()
        # As another worker's sweep does.
        other.execute("SELECT pg_advisory_xact_lock(x'70616c6f'::bigint)")
        await sweeping.sweep(database)
        assert left() == (26,), "it left them to the other one"
        other.rollback()
        await sweeping.sweep(database)
        assert left() == (1,)
        looking.execute("DELETE FROM session")
        assert left() == (0,)
