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
from palimpsest.v1alpha1 import (
    edits_pb2,
    edits_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    operations_pb2,
    operations_pb2_grpc,
    schemas_pb2,
    schemas_pb2_grpc,
)
from tests.support.harness import Servers, api
from verification.chaos.switches import Action, Switches, environment

SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
Operation = operations_pb2.Operation


class Stubs:
    """One client's calls."""

    def __init__(self, client: palimpsest.Client) -> None:
        channel = client.channel
        self.edits: Any = edits_pb2_grpc.EditServiceStub(channel)
        self.memories: Any = memories_pb2_grpc.MemoryServiceStub(channel)
        self.operations: Any = operations_pb2_grpc.OperationServiceStub(channel)
        self.schemas: Any = schemas_pb2_grpc.SchemaServiceStub(channel)

    async def get(self, name: str) -> Any:
        request = operations_pb2.GetOperationRequest(operation=name)
        return (await self.operations.GetOperation(request)).operation

    async def cancel(self, name: str, **fields: str) -> Any:
        request = operations_pb2.CancelOperationRequest(operation=name, **fields)
        return (await self.operations.CancelOperation(request)).operation

    async def consolidate(self, session: str, **fields: str) -> Any:
        request = edits_pb2.ConsolidateMemoryRequest(session=session, memory="m", **fields)
        return (await self.edits.ConsolidateMemory(request)).operation

    async def rebuild(self, session: str, new: str) -> Any:
        """Leaves the call behind its first event."""
        request = edits_pb2.RebuildMemoryRequest(session=session, memory="m", new_memory=new)
        call = self.edits.RebuildMemory(request)
        event = await call.read()
        call.cancel()
        return event.operation

    async def wait(self, name: str, timeout: float | None = None) -> list[Any]:
        request = operations_pb2.WaitOperationRequest(operation=name)
        stream = self.operations.WaitOperation(request, timeout=timeout)
        return [one.operation async for one in stream]

    async def pages(self, **fields: Any) -> list[list[Any]]:
        pages, token = [], ""
        while True:
            request = operations_pb2.ListOperationsRequest(page_token=token, **fields)
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
    """A session with a PRISM memory and a chunk; its name."""
    session = await client.create_session(f"operation-{uuid4().hex}")
    await session.create_memory("m", SCHEMA)
    await session.append("The ship lies in the harbour.")
    return session.id


@pytest.fixture
async def alone(url: str) -> AsyncIterator[palimpsest.Client]:
    """A client of a server that no worker works for."""
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
        assert last.state == operations_pb2.OPERATION_STATE_DONE
        assert last.memory_result.name == memory
        assert not last.HasField("progress")
        assert await stubs.get(name) == last
    revisions = [one.kind async for one in client.session(session).memory("m").revisions()]
    assert "consolidation" in revisions


async def test_a_schema_is_the_result_of_its_operation(client: Any) -> None:
    stubs, session = Stubs(client), await prepared(client)
    request = schemas_pb2.GenerateSchemaRequest(
        session=session, domain="Logs of ships.", example_query="Where is the ship?", request_id="g"
    )
    done = await stubs.schemas.GenerateSchema(request)
    assert done.operation.state == operations_pb2.OPERATION_STATE_DONE
    assert done.operation.schema_result.schema_source == done.draft.schema_source != ""
    again = await stubs.schemas.GenerateSchema(request)
    assert again.operation.state == operations_pb2.OPERATION_STATE_PENDING
    (last,) = await stubs.wait(again.operation.id)
    assert last == done.operation


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
    cancelled = operations_pb2.OPERATION_STATE_CANCELLED
    assert await stubs.pages(session=session, state=cancelled) == [[done]]
    assert (await refused(stubs.pages(session="nobody"))).reason == "SESSION_NOT_FOUND"
    assert (await refused(stubs.pages(memory="m"))).reason == "FIELD_INVALID"


async def test_a_consolidation_is_one_operation_until_it_has_ended(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    first = await stubs.consolidate(session)
    assert first.state == operations_pb2.OPERATION_STATE_PENDING
    assert (first.progress.completed, first.progress.total) == (0, 1)
    await alone.session(session).append("It sails tomorrow.")
    again = await stubs.consolidate(session)
    assert (again.id, again.progress.total) == (first.id, 2)
    waiting = asyncio.create_task(stubs.wait(first.id))
    ended = await stubs.cancel(first.id)
    assert ended.state == operations_pb2.OPERATION_STATE_CANCELLED
    assert await stubs.cancel(first.id) == ended == await stubs.get(first.id)
    assert (await waiting)[-1] == ended
    request = memories_pb2.GetMemoryRequest(session=session, memory="m")
    memory = (await stubs.memories.GetMemory(request)).memory
    assert not memory.HasField("consolidate_position")
    assert (await stubs.consolidate(session)).id != first.id


async def test_a_schema_can_be_cancelled(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    request = schemas_pb2.GenerateSchemaRequest(
        session=session, domain="Logs of ships.", example_query="Where is the ship?"
    )
    call = stubs.schemas.GenerateSchema(request)

    async def requested() -> Any:
        while not (found := (await stubs.pages(session=session))[0]):
            await asyncio.sleep(0.05)
        return found[0]

    schema = await requested()
    assert (schema.kind, schema.memory) == (Operation.KIND_SCHEMA, "")
    ended = await stubs.cancel(schema.id)
    assert ended.state == operations_pb2.OPERATION_STATE_CANCELLED
    error = await refused(call)
    assert (error.reason, error.metadata["cause"]) == ("SCHEMA_NOT_GENERATED", "cancelled")
    assert await stubs.wait(schema.id) == [ended]


async def test_cancelling_a_rebuild_deletes_what_it_makes(alone: Any) -> None:
    stubs, session = Stubs(alone), await prepared(alone)
    rebuild = await stubs.rebuild(session, "n")
    waiting = asyncio.create_task(stubs.wait(rebuild.id))
    ended = await stubs.cancel(rebuild.id, request_id="c")
    assert ended.state == operations_pb2.OPERATION_STATE_CANCELLED
    assert (await waiting)[-1] == ended
    memories = alone.session(session)
    assert (await refused_by(memories.memory("n").get())).reason == "MEMORY_NOT_FOUND"
    assert [one.name for one in await memories.memories()] == ["m"]
    # Its rows are gone, so that the name is free; what has it now is another memory's.
    again = await stubs.rebuild(session, "n")
    for fields in ({"request_id": "c"}, {}):
        assert await stubs.cancel(rebuild.id, **fields) == ended
    assert (await stubs.get(again.id)).state == operations_pb2.OPERATION_STATE_PENDING


async def test_a_rebuild_that_has_ended_keeps_its_memory(client: Any) -> None:
    stubs, session = Stubs(client), await prepared(client)
    rebuild = await stubs.rebuild(session, "n")
    *_, last = await stubs.wait(rebuild.id)
    assert last.state == operations_pb2.OPERATION_STATE_DONE
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
    assert (await cancelling).state == operations_pb2.OPERATION_STATE_DONE
    assert [one.name for one in await alone.session(session).memories()] == ["m", "n"]


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
