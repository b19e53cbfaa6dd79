"""Deleting over gRPC: streams, watches and reads that are open, and workers that are killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import grpc
import psycopg
import pytest
from google.rpc import error_details_pb2
from grpc import aio
from grpc_status import rpc_status

import palimpsest
from palimpsest.v1 import (
    answer_service_pb2,
    answer_service_pb2_grpc,
    billing_service_pb2,
    billing_service_pb2_grpc,
    chunks_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.support.harness import Servers, api, eventually, worker
from tests.support.sending import send

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
#: Rows of the session that is being removed while its worker is killed.
MANY = 60_000


@pytest.fixture
async def channel(address: str) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(address) as opened:
        yield opened


def reason(error: aio.AioRpcError) -> str:
    status: Any = rpc_status.from_call(error)
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    raise AssertionError(error)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), reason(caught.value)


async def delete(channel: aio.Channel, name: str, **more: Any) -> None:
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    await stub.DeleteSession(session_service_pb2.DeleteSessionRequest(session=name, **more))


def batch(first: int) -> session_service_pb2.AppendChunksRequest:
    chunk = chunks_pb2.Chunk(producer_sequence=first, text="a")
    return session_service_pb2.AppendChunksRequest(
        batch=session_service_pb2.AppendChunksRequest.Batch(chunks=[chunk])
    )


async def drained(stream: Any) -> None:
    while await stream.read() is not aio.EOF:
        pass


async def test_what_is_open_ends_and_the_name_begins_anew(
    client: palimpsest.Client, channel: aio.Channel
) -> None:
    name = f"deleted-{uuid4().hex}"
    session = await client.create_session(name)
    memory = await session.create_memory("notes", schema_source=SCHEMA)
    token = await send(session, "The harbour museum is closed on Mondays.")
    await memory.get(after=token)
    billing = billing_service_pb2_grpc.BillingServiceStub(channel)
    used = billing_service_pb2.ListUsageRequest(session=name)
    spent = await billing.ListUsage(used)
    assert sum(line.usage.calls for line in spent.lines) == 1
    watch = memory.watch()
    watching = asyncio.ensure_future(anext(watch))
    stream: Any = session_service_pb2_grpc.SessionServiceStub(channel).AppendChunks()
    opening = session_service_pb2.AppendChunksRequest.Open(session=name, producer_id="p")
    await stream.write(session_service_pb2.AppendChunksRequest(open=opening))
    assert (await stream.read()).opened.head == 1
    await delete(channel, name)
    with pytest.raises(palimpsest.NotFound):
        await asyncio.wait_for(watching, 60)
    await stream.write(batch(1))
    assert await refused(drained(stream)) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    not_found = (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    assert await refused(billing.ListUsage(used)) == not_found
    assert await refused(delete(channel, name)) == not_found
    await delete(channel, name, allow_missing=True)
    session = await client.create_session(name)
    memory = await session.create_memory("notes", schema_source=SCHEMA)
    with pytest.raises(palimpsest.InvalidArgument) as old:
        await memory.get(after=token)
    assert old.value.reason == "TOKEN_INVALID"
    fresh = await send(session, "The bakery is open.")
    assert (await memory.get(after=fresh)).applied_position == 1
    anew = await billing.ListUsage(used)
    assert sum(line.usage.calls for line in anew.lines) == 1


async def test_page_tokens_are_of_the_session_and_the_memory_that_they_were_issued_for(
    client: palimpsest.Client, channel: aio.Channel
) -> None:
    name = f"deleted-{uuid4().hex}"
    history = memory_service_pb2_grpc.MemoryServiceStub(channel)
    memories = memory_service_pb2_grpc.MemoryServiceStub(channel)

    async def page(token: str = "") -> str:
        wanted = memory_service_pb2.ListRevisionsRequest(
            session=name, memory="notes", page_size=1, page_token=token
        )
        return str((await history.ListRevisions(wanted)).next_page_token)

    async def filled() -> str:
        memory = await (client.session(name)).create_memory("notes", schema_source=SCHEMA)
        for number in range(2):
            await memory.edit([palimpsest.Edit.put("$.topics['a']", [str(number)])])
        return await page()

    await client.create_session(name)
    first = await filled()
    await page(first)
    await memories.DeleteMemory(
        memory_service_pb2.DeleteMemoryRequest(session=name, memory="notes")
    )
    second = await filled()
    await page(second)
    await delete(channel, name)
    await client.create_session(name)
    third = await filled()
    await page(third)
    assert len({first, second, third}) == 3
    for old in (first, second):
        refusal = (grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_INVALID")
        assert await refused(page(old)) == refusal


async def test_a_memory_and_an_answer_are_deleted(
    client: palimpsest.Client, channel: aio.Channel
) -> None:
    name = f"deleted-{uuid4().hex}"
    session = await client.create_session(name)
    memory = await session.create_memory("notes", schema_source=SCHEMA)
    token = await send(session, "The harbour museum is closed on Mondays.")
    answer = await memory.ask("When is the harbour museum closed?", after=token)
    memories = memory_service_pb2_grpc.MemoryServiceStub(channel)
    wanted = memory_service_pb2.DeleteMemoryRequest(session=name, memory="notes")
    await memories.DeleteMemory(wanted)
    assert await refused(memories.DeleteMemory(wanted)) == (
        grpc.StatusCode.NOT_FOUND,
        "MEMORY_NOT_FOUND",
    )
    kept = await session.answer(answer.id)
    assert (kept.text, kept.citations) == (answer.text, answer.citations)
    again = await session.create_memory("notes", schema_source=SCHEMA)
    assert (await again.get(fully_applied=True)).applied_position == 1
    answers = answer_service_pb2_grpc.AnswerServiceStub(channel)
    one = answer_service_pb2.DeleteAnswerRequest(session=name, answer=answer.id)
    await answers.DeleteAnswer(one)
    with pytest.raises(palimpsest.NotFound):
        await session.answer(answer.id)
    one.allow_missing = True
    await answers.DeleteAnswer(one)


@pytest.mark.prove
async def test_another_worker_goes_on_with_a_removal_whose_worker_was_killed(
    servers: Servers,
) -> None:
    url, name = servers.new_database(), "large"
    key = session_key(DEFAULT_TENANT, name)
    brief = {"PALIMPSEST_HEARTBEAT_SECONDS": "0.2", "PALIMPSEST_DEAD_AFTER_SECONDS": "2"}
    with (
        psycopg.connect(servers.as_superuser(url), autocommit=True) as rows,
        api(url, **brief) as (_, address),
    ):

        def count(table: str) -> int:
            found = rows.execute(
                f"SELECT count(*) FROM {table} WHERE session_key = %s",
                (key,),
            ).fetchone()
            assert found is not None, "an aggregate has a row"
            return int(found[0])

        async with palimpsest.connect(address) as client:
            session = await client.create_session(name)
            await send(session, "first")
            # Too many to append one by one.
            rows.execute("SET session_replication_role = replica")
            rows.execute(
                "INSERT INTO chunk (session_key, position, tenant_id, producer_id,"
                " producer_sequence, kind, role, text, observation, thought, action, digest)"
                " SELECT session_key, n, tenant_id, producer_id, n, kind, role, text, '', '', '',"
                " digest FROM chunk, generate_series(2, %s) AS n WHERE session_key = %s",
                (MANY, key),
            )
            async with aio.insecure_channel(address) as channel:
                await delete(channel, name)
            left = count("chunk")
            assert left > 0
            with pytest.raises(palimpsest.Aborted) as caught:
                await client.create_session(name)
            assert caught.value.reason == "BEING_DELETED"
            with worker(url, **brief) as first:
                eventually("rows are removed", lambda: count("chunk") < left)
                first.kill()
            left = count("chunk")
            assert left > 0, "it was killed in the middle"
            with worker(url, **brief):
                eventually("the rest is removed", lambda: count("removal") == 0)
            assert (count("chunk"), count("producer")) == (0, 0)
            with suppress(palimpsest.AlreadyExists):
                await client.create_session(name)
            assert (await client.session(name).info()).head == 0
