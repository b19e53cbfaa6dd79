"""Operations over gRPC: requested, waited for, listed and cancelled at real servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from grpc import aio

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import (
    common_pb2,
    memories_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
    operations_pb2,
    tree_service_pb2,
    tree_service_pb2_grpc,
)
from tests.support.harness import Servers, api
from verification.chaos.switches import Action, Switches, environment

SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
Operation = operations_pb2.Operation
GENERATE = {"domain": "Logs of ships.", "example_query": "Where is the ship?"}


class Stubs:
    """The stubs of one client."""

    def __init__(self, client: palimpsest.Client) -> None:
        channel = client.channel
        self.memories: Any = memory_service_pb2_grpc.MemoryServiceStub(channel)
        self.operations: Any = operation_service_pb2_grpc.OperationServiceStub(channel)
        self.trees: Any = tree_service_pb2_grpc.TreeServiceStub(channel)

    async def get(self, id: str) -> Any:
        request = operation_service_pb2.GetOperationRequest(operation=id)
        return await self.operations.GetOperation(request)

    async def cancel(self, id: str, **fields: str) -> Any:
        request = operation_service_pb2.CancelOperationRequest(operation=id, **fields)
        return await self.operations.CancelOperation(request)

    async def consolidate(self, session: str, **fields: str) -> Any:
        request = memory_service_pb2.ConsolidateMemoryRequest(session=session, memory="m", **fields)
        return await self.memories.ConsolidateMemory(request)

    async def rebuild(self, session: str, new: str, memory: str = "m", **fields: Any) -> Any:
        spec = fields.pop("spec", {})
        request = memory_service_pb2.RebuildMemoryRequest(
            session=session,
            memory=memory,
            new_memory=memories_pb2.Memory(session=session, id=new, **spec),
            **fields,
        )
        return await self.memories.RebuildMemory(request)

    async def generate(self, session: str, **fields: str) -> Any:
        request = memory_service_pb2.GenerateSchemaRequest(session=session, **GENERATE, **fields)
        return await self.memories.GenerateSchema(request)

    async def seal(self, session: str, **fields: str) -> Any:
        request = tree_service_pb2.SealTreeRequest(session=session, memory="t", **fields)
        return await self.trees.SealTree(request)

    async def wait(self, id: str, timeout: float | None = None) -> list[Any]:
        request = operation_service_pb2.WaitOperationRequest(operation=id)
        return [one async for one in self.operations.WaitOperation(request, timeout=timeout)]

    async def pages(self, **fields: Any) -> list[list[Any]]:
        pages, token = [], ""
        while True:
            request = operation_service_pb2.ListOperationsRequest(page_token=token, **fields)
            page = await self.operations.ListOperations(request)
            pages.append(list(page.operations))
            token = page.next_page_token
            if not token:
                return pages


async def refused(awaited: Any) -> palimpsest.PalimpsestError:
    with pytest.raises(aio.AioRpcError) as caught:
        await awaited
    return _errors.from_rpc(caught.value, "test")


async def refused_by(awaited: Any) -> palimpsest.PalimpsestError:
    with pytest.raises(palimpsest.PalimpsestError) as caught:
        await awaited
    return caught.value


async def prepared(client: palimpsest.Client) -> str:
    """Returns a session with a PRISM memory and a chunk; its name."""
    session = await client.create_session(f"operation-{uuid4().hex}")
    await session.create_memory("m", SCHEMA)
    await session.append("The ship lies in the harbour.")
    return session.id


@pytest.fixture
async def alone(url: str) -> AsyncIterator[palimpsest.Client]:
    """Yields a client of a server that no worker works for."""
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            yield client


async def test_a_rebuild_and_a_consolidation_are_waited_for(client: Any) -> None:
    stubs, session = Stubs(client), await prepared(client)
    rebuild = await stubs.rebuild(session, "n")
    consolidation = await stubs.consolidate(session)
    for name, kind, memory in (
        (rebuild.id, Operation.KIND_REBUILD, "n"),
        (consolidation.id, Operation.KIND_CONSOLIDATION, "m"),
    ):
        *_, last = await stubs.wait(name)
        assert (last.id, last.kind, last.memory) == (name, kind, memory)
        assert last.state == common_pb2.OPERATION_STATE_DONE
        assert last.memory_result.id == memory
        assert not last.HasField("progress")
        assert await stubs.get(name) == last
    revisions = [one.kind async for one in client.session(session).memory("m").revisions()]
    assert "consolidation" in revisions


async def test_a_schema_is_the_result_of_its_operation(client: Any) -> None:
    stubs, session = Stubs(client), await prepared(client)
    asked = await stubs.generate(session, request_id="g")
    assert asked.state == common_pb2.OPERATION_STATE_PENDING
    *_, done = await stubs.wait(asked.id)
    assert done.state == common_pb2.OPERATION_STATE_DONE
    result = done.schema_result
    assert result.schema_source.startswith("class ")
    assert (result.domain, result.example_query) == tuple(GENERATE.values())
    assert (result.attempts, done.usage.calls) == (1, 1)
    # As it was when it was requested; and it is the same one.
    assert await stubs.generate(session, request_id="g") == asked


async def test_operations_are_listed_newest_first_in_pages(alone: Any) -> None:
    stubs, session, other = Stubs(alone), await prepared(alone), await prepared(alone)
    kept = [await stubs.rebuild(session, f"n{number}") for number in range(5)]
    kept.append(await stubs.consolidate(session))
    elsewhere = await stubs.consolidate(other)
    kept.reverse()
    assert await stubs.pages() == [[elsewhere, *kept]]
    assert await stubs.pages(session=session, page_size=4) == [kept[:4], kept[4:]]
    assert await stubs.pages(session=session, memory="n2") == [[kept[3]]]
    assert await stubs.pages(session=session, kind=Operation.KIND_CONSOLIDATION) == [[kept[0]]]
    done = await stubs.cancel(kept[0].id)
    cancelled = common_pb2.OPERATION_STATE_CANCELLED
    assert await stubs.pages(session=session, state=cancelled) == [[done]]
    assert (await refused(stubs.pages(session="nobody"))).reason == "SESSION_NOT_FOUND"
    assert (await refused(stubs.pages(memory="m"))).reason == "FIELD_INVALID"


async def test_a_consolidation_is_one_operation_until_it_has_ended(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    first = await stubs.consolidate(session)
    assert first.state == common_pb2.OPERATION_STATE_PENDING
    assert (first.progress.completed, first.progress.total) == (0, 1)
    await alone.session(session).append("It sails tomorrow.")
    again = await stubs.consolidate(session)
    assert (again.id, again.progress.total) == (first.id, 2)
    waiting = asyncio.create_task(stubs.wait(first.id))
    ended = await stubs.cancel(first.id)
    assert ended.state == common_pb2.OPERATION_STATE_CANCELLED
    assert await stubs.cancel(first.id) == ended == await stubs.get(first.id)
    assert (await waiting)[-1] == ended
    assert (await stubs.consolidate(session)).id != first.id


async def test_a_schema_can_be_cancelled(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    schema = await stubs.generate(session)
    assert (schema.kind, schema.memory) == (Operation.KIND_SCHEMA, "")
    assert await stubs.pages(session=session) == [[schema]]
    waiting = asyncio.create_task(stubs.wait(schema.id))
    ended = await stubs.cancel(schema.id)
    assert ended.state == common_pb2.OPERATION_STATE_CANCELLED
    assert (await waiting)[-1] == ended
    assert await stubs.wait(schema.id) == [ended]


async def with_tree(client: palimpsest.Client) -> str:
    """Returns a session with a tree and a chunk; its name."""
    session = await client.create_session(f"operation-{uuid4().hex}")
    await session.create_tree("t")
    await session.append("The ship lies in the harbour.")
    return session.id


async def test_a_seal_is_an_operation(client: Any) -> None:
    stubs, session = Stubs(client), await with_tree(client)
    asked = await stubs.seal(session)
    assert (asked.kind, asked.memory) == (Operation.KIND_SEAL, "t")
    *_, last = await stubs.wait(asked.id)
    assert (last.state, last.id) == (common_pb2.OPERATION_STATE_DONE, asked.id)
    assert last.memory_result.status == memories_pb2.Memory.STATUS_SEALED
    assert await stubs.cancel(asked.id) == last == await stubs.seal(session)


async def test_a_seal_that_is_cancelled_leaves_the_tree_open(alone: Any) -> None:
    stubs, session = Stubs(alone), await with_tree(alone)
    asked = await stubs.seal(session)
    assert (asked.progress.completed, asked.progress.total) == (0, 1)
    await alone.session(session).append("It sails tomorrow.")
    # It has its position already.
    assert await stubs.seal(session) == asked
    ended = await stubs.cancel(asked.id)
    assert ended.state == common_pb2.OPERATION_STATE_CANCELLED
    assert await stubs.get(asked.id) == ended
    again = await stubs.seal(session)
    assert again.id != asked.id
    assert again.progress.total == 2


async def test_a_sealed_tree_of_the_same_id_is_another_one(client: Any) -> None:
    stubs, session = Stubs(client), await with_tree(client)
    first = await stubs.seal(session)
    await stubs.wait(first.id)
    tree = client.session(session).tree("t")
    await tree.delete()
    await client.session(session).create_tree("t")
    again = await stubs.seal(session)
    assert again.id != first.id
    *_, last = await stubs.wait(again.id)
    assert last.state == common_pb2.OPERATION_STATE_DONE
    # What the first one resulted in is gone.
    first = await stubs.get(first.id)
    assert first.WhichOneof("result") is None


async def test_a_tree_goes_on_after_its_seal_was_cancelled(client: Any) -> None:
    stubs, session = Stubs(client), await with_tree(client)
    state = (await stubs.cancel((await stubs.seal(session)).id)).state
    tree = client.session(session).tree("t")
    await client.session(session).append("It sails tomorrow.")
    read = await tree.get(fully_applied=True) if state != common_pb2.OPERATION_STATE_DONE else None
    assert read is None or read.applied_position == 2
    await (await tree.seal()).wait()


async def test_only_trees_are_sealed_and_only_fields_of_the_kind_change(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    await alone.session(session).create_memory("t", SCHEMA)
    assert (await refused(stubs.seal(session))).reason == "WRONG_MEMORY_KIND"
    mask = {"paths": ["tree.model"]}
    error = await refused(stubs.rebuild(session, "n", update_mask=mask))
    assert error.reason == "WRONG_MEMORY_KIND"
    for path in ("prism.nothing", "id", "prism.task.x"):
        error = await refused(stubs.rebuild(session, "n", update_mask={"paths": [path]}))
        assert error.reason == "FIELD_INVALID", path
    for fields in ({"new": "m"}, {"new": ""}):
        assert (await refused(stubs.rebuild(session, **fields))).reason == "FIELD_INVALID"


async def test_a_rebuilt_memory_differs_where_its_mask_says(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    here = alone.session(session)
    await here.create_memory("old", SCHEMA, task="Old.", question="Why?", chunk_tokens=7)
    spec = {"prism": {"task": "New.", "question": "not in the mask", "fold_tokens": 0}}
    mask = {"paths": ["prism.task", "prism.fold_tokens"]}
    rebuilt = await stubs.rebuild(session, "new", "old", spec=spec, update_mask=mask)
    assert (rebuilt.kind, rebuilt.memory) == (Operation.KIND_REBUILD, "new")
    made = (await here.memory("new").get()).info
    old = (await here.memory("old").get()).info
    assert (made.task, made.question, made.chunk_tokens) == ("New.", "Why?", 7)
    assert (made.fold_tokens, made.rebuilt_from) == (old.fold_tokens, "old")
    # The whole spec: what is not given is the default.
    spec = {"prism": {"schema_source": SCHEMA, "task": "Whole."}}
    await stubs.rebuild(session, "whole", "old", spec=spec, update_mask={"paths": ["prism"]})
    whole = (await here.memory("whole").get()).info
    assert (whole.task, whole.question, whole.chunk_tokens) == ("Whole.", "", 2000)
    again = await stubs.rebuild(session, "again", "old", request_id="r")
    assert await stubs.rebuild(session, "again", "old", request_id="r") == again


async def test_cancelling_a_rebuild_deletes_what_it_makes(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    rebuild = await stubs.rebuild(session, "n")
    waiting = asyncio.create_task(stubs.wait(rebuild.id))
    ended = await stubs.cancel(rebuild.id, request_id="c")
    assert ended.state == common_pb2.OPERATION_STATE_CANCELLED
    assert (await waiting)[-1] == ended
    memories = alone.session(session)
    assert (await refused_by(memories.memory("n").get())).reason == "MEMORY_NOT_FOUND"
    assert [one.id for one in await memories.memories()] == ["m"]
    # Its rows are gone, so that the name is free; what has it now is another memory's.
    again = await stubs.rebuild(session, "n")
    for fields in ({"request_id": "c"}, {}):
        assert await stubs.cancel(rebuild.id, **fields) == ended
    assert (await stubs.get(again.id)).state == common_pb2.OPERATION_STATE_PENDING


async def test_a_rebuild_that_has_ended_keeps_its_memory(client: Any) -> None:
    stubs, session = Stubs(client), await prepared(client)
    rebuild = await stubs.rebuild(session, "n")
    *_, last = await stubs.wait(rebuild.id)
    assert last.state == common_pb2.OPERATION_STATE_DONE
    assert await stubs.cancel(rebuild.id) == last
    assert (await client.session(session).memory("n").get()).applied_position == 1


async def test_a_rebuild_that_ends_while_it_is_cancelled_keeps_its_memory(
    servers: Servers, url: str, alone: Any
) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    rebuild = await stubs.rebuild(session, "n")
    with psycopg.connect(servers.as_superuser(url)) as worker:
        worker.execute("SET session_replication_role = replica")
        # As a step does; its revision does not matter here.
        worker.execute("UPDATE memory SET applied_position = 1 WHERE name = 'n'")
        cancelling = asyncio.create_task(stubs.cancel(rebuild.id))
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as look:
            while not look.execute(
                "SELECT FROM pg_locks WHERE NOT granted AND pid IN"
                " (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
            ).fetchall():
                await asyncio.sleep(0.05)
        worker.commit()
    assert (await cancelling).state == common_pb2.OPERATION_STATE_DONE
    assert [one.id for one in await alone.session(session).memories()] == ["m", "n"]


async def test_what_is_not_there_is_named(alone: Any) -> None:
    stubs = Stubs(alone)
    for name in ("x", "0" * 64, "0" * 63 + "g", "0" * 128):
        for call in (stubs.get, stubs.cancel, stubs.wait):
            error = await refused(call(name))
            assert (error.reason, error.metadata) == ("OPERATION_NOT_FOUND", {"operation": name})


async def test_a_wait_that_is_too_short_says_so(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    operation = await stubs.consolidate(session)
    assert isinstance(await refused(stubs.wait(operation.id, 1.0)), palimpsest.DeadlineExceeded)
    assert (await stubs.get(operation.id)).state == operation.state


async def test_a_server_that_dies_before_its_reply_leaves_one_operation(
    url: str, folder: Path
) -> None:
    path = folder / "switches"
    switches = Switches(path)
    with api(url, **environment(path)) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await prepared(client)
            switches.set("edit.consolidate:committed", Action.KILL)
            sent = Stubs(client).consolidate(session, request_id="r")
            assert isinstance(await refused(sent), palimpsest.Unavailable)
    switches.close()
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            stubs = Stubs(client)
            first = await stubs.consolidate(session, request_id="r")
            assert await stubs.pages() == [[first]]
            await stubs.cancel(first.id, request_id="c")
            # As it was when it was requested, not as it is.
            assert await stubs.consolidate(session, request_id="r") == first
