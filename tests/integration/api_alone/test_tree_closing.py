"""Closing a tree over gRPC: where it ends, and what is refused after that."""

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

import palimpsest
from palimpsest import Tree
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from tests.support.runnable import runnable as runnable_now
from tests.support.sending import send


@pytest.fixture
async def closing(client: palimpsest.Client, database: Database) -> palimpsest.Tree:
    """Creates a tree over two chunks that no worker builds."""
    session = await client.create_session(f"s-{uuid4().hex}")
    tree = await session.create_tree("t")
    async with session.producer("p") as producer:
        await producer.append("one")
        await producer.append("two")
        await producer.flush()
    return tree


async def set_row(database: Database, tree: Tree, changes: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        done = await tx.execute(
            text(
                f"UPDATE memory SET {changes} WHERE name = :name AND session_key ="
                " (SELECT session_key FROM session WHERE name = :session)"
            ),
            {"name": tree.id, "session": tree.session.id},
        )
        assert done == 1


async def test_closing_is_kept_once(closing: Tree) -> None:
    first = await closing.seal()
    assert (first.kind, first.state, first.info.memory) == ("seal", "pending", "t")
    assert first.progress == palimpsest.OperationProgress(completed=0, total=2, blocked=None)
    await send(closing.session, "three")
    again = await closing.seal()
    assert (again.id, again.progress) == (first.id, first.progress)


async def test_what_lies_after_a_closed_tree_is_refused_at_once(closing: Tree) -> None:
    until_two = (await closing.flush()).read_token
    await closing.seal()
    token = await send(closing.session, "three")
    wanted: list[dict[str, Any]] = [{"after": token}, {"fully_applied": True}]
    for options in wanted:
        with pytest.raises(palimpsest.FailedPrecondition) as caught:
            await closing.get(**options, timeout=600)
        assert caught.value.reason == "MEMORY_SEALED"
        assert caught.value.metadata == {"memory": "t", "position": "3", "applied_position": "0"}
        with pytest.raises(palimpsest.FailedPrecondition) as caught:
            await closing.ask("What?", **options, timeout=600)
        assert caught.value.reason == "MEMORY_SEALED"
    # What it will have is waited for.
    with pytest.raises(palimpsest.DeadlineExceeded):
        await closing.get(after=until_two, timeout=0.3)


async def test_a_closed_tree_neither_wakes_nor_holds_up(closing: Tree, database: Database) -> None:
    await closing.seal()
    await set_row(database, closing, "status = 'sealed', has_work = false")
    for _ in range(3):
        await send(closing.session, "more")
    async with database.sweeping() as connection:
        items = await runnable_now(connection, 1000)
    info = (await closing.get()).info
    assert (info.status, info.head, info.applied_position) == ("sealed", 5, 0)
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(
            text("SELECT memory_id FROM memory WHERE name = 't' AND status = 'sealed'")
        )
        assert not {one.item_id for one in items} & {one for (one,) in found}
    assert (await (await closing.seal()).wait()).status == "sealed"
    assert (await closing.get()).value["sealed"] is True
    assert (await closing.outline()).info.status == "sealed"


async def test_a_stalled_tree_is_retried(closing: Tree, database: Database) -> None:
    await set_row(database, closing, "status = 'stalled', has_work = false")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            text(
                "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id,"
                " from_position, to_position, attempts, cause)"
                " SELECT session_key, memory_id, gen_random_uuid(), tenant_id, 0, 1, 3, 'no model'"
                " FROM memory WHERE name = 't' AND status = 'stalled'"
            )
        )
    with pytest.raises(palimpsest.FailedPrecondition, match="no model"):
        await (await closing.seal()).wait()
    assert await closing.retry()
