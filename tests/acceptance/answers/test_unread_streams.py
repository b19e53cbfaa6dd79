"""Streams that nobody reads: the server holds a bounded part of them, and lets go in the end."""

import asyncio
from typing import Any
from uuid import UUID

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from palimpsest.v1alpha1 import (
    edits_pb2,
    edits_pb2_grpc,
)
from service.app.serve import serve
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.rpc.convert.answers import AnswerMessages
from service.settings.config import Config
from service.usecases.memories.memories import Memories
from storage.answers import answers
from storage.engine.database import Database
from tests.acceptance.log.test_flow_control import serving_client, settled, too_many
from tests.support.cutting import cutting

#: About 50 KB with each event of a rebuild: a few of them close the window of a stream.
SCHEMA = f"class Notes:\n    # {'x' * 50_000}\n    text: str\n"
#: The window of a stream stays as it begins, 64 KiB.
UNREAD = (("grpc.http2.bdp_probe", 0),)
#: How long what ends may take on a busy machine.
SLACK_SECONDS = 150
#: Of one call.
QUESTIONS = 16


def rebuild_of(new_memory: str) -> edits_pb2.RebuildMemoryRequest:
    return edits_pb2.RebuildMemoryRequest(session="s", memory="m", new_memory=new_memory)


async def test_a_rebuild_that_is_not_read_is_not_read_ahead_and_ends_with_its_client(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    get = Memories.get

    async def counted(self: Memories, tenant_id: Any, session: str, name: str) -> Any:
        looked.append(name)
        return await get(self, tenant_id, session, name)

    monkeypatch.setattr(Memories, "get", counted)
    revisions = 30
    async with serving_client(url, max_waiting_reads=2) as client:
        session = await client.create_session("s")
        await session.create_memory("m", SCHEMA)
        async with session.producer("p") as producer:
            # Which nobody applies: both rebuilds go on for as long as the test wants.
            await producer.append("text")
        stub = edits_pb2_grpc.EditServiceStub(client.channel)
        read: Any = stub.RebuildMemory(rebuild_of("read"))
        await read.read()
        async with (
            cutting(client.address) as proxy,
            aio.insecure_channel(proxy.address, options=UNREAD) as channel,
        ):
            unread: Any = edits_pb2_grpc.EditServiceStub(channel).RebuildMemory(
                rebuild_of("unread")
            )
            await unread.read()
            assert await read.read() is not aio.EOF
            ahead, behind = session.memory("unread"), session.memory("read")
            async with asyncio.timeout(SLACK_SECONDS):
                for number in range(1, revisions + 1):
                    # What is seen of the later one was seen of the earlier one.
                    await ahead.edit([Edit.put("$.text", str(number))])
                    await behind.edit([Edit.put("$.text", str(number))])
                    while (await read.read()).memory.revision < number:
                        pass
            assert looked.count("read") >= revisions
            assert await settled(lambda: looked.count("unread")) < revisions / 2
            assert await too_many(behind), "both have a place"
            proxy.cut()
            async with asyncio.timeout(SLACK_SECONDS):
                while await too_many(behind):
                    # A connection that is cut is noticed a little later.
                    await asyncio.sleep(0.1)
        read.cancel()


async def test_a_stop_does_not_wait_for_who_does_not_read_many_answers(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0
    respond = AnswerMessages.event_or_error

    def counted(messages: AnswerMessages, event: Any, index: int) -> Any:
        nonlocal told
        told += 1
        return respond(messages, event, index)

    monkeypatch.setattr(AnswerMessages, "event_or_error", counted)
    config = Config(database_url=url, listen="127.0.0.1:0", stop_seconds=1)  # type: ignore[arg-type]
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, stop, ready.set_result))
    await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
    async with aio.insecure_channel(ready.result(), options=UNREAD) as channel:
        async with palimpsest.connect(ready.result()) as client:
            await client.create_session("s")
        question = answer_service_pb2.AskRequest(session="s", query="q")
        asked = answer_service_pb2.AskManyRequest(questions=[question] * QUESTIONS)
        unread: Any = answer_service_pb2_grpc.AnswerServiceStub(channel).AskMany(asked)
        begun = [await unread.read() for _ in range(QUESTIONS)]
        # Nobody works here: all of them are answered at once, with more than a window takes.
        async with database.transaction(DEFAULT_TENANT) as tx:
            for one in begun:
                await answers.complete(
                    tx,
                    session_key(DEFAULT_TENANT, "s"),
                    UUID(one.reading.answer),
                    text="x" * 50_000,
                    citations=(),
                    model="test/none",
                )
        async with asyncio.timeout(SLACK_SECONDS):
            while told == QUESTIONS:
                await asyncio.sleep(0.05)
        assert await settled(lambda: told) < QUESTIONS * 3 / 2, "it waits for its reader"
        stop.set()
        async with asyncio.timeout(SLACK_SECONDS):
            await running
        with pytest.raises(aio.AioRpcError) as caught:
            await to_its_end(unread)
        # What a client comes back for, at another server.
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def to_its_end(call: Any) -> None:
    while await call.read() is not aio.EOF:
        pass
