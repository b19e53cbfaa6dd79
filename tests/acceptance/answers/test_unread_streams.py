"""Unread streams: the server buffers a bounded part of them, and closes them in the end."""

import asyncio
from typing import Any
from uuid import UUID

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import (
    answer_service_pb2,
    answer_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
)
from service.app.serve import serve
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.rpc.convert.answers import AnswerMessages
from service.settings.config import Config
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


def wait_for(operation: palimpsest.Operation[Any]) -> operation_service_pb2.WaitOperationRequest:
    return operation_service_pb2.WaitOperationRequest(operation=operation.id)


async def test_a_wait_ends_with_its_client_and_gives_its_place_back(url: str) -> None:
    async with serving_client(url, max_waiting_reads=2) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        # Which no worker applies: the rebuild continues for as long as the test wants.
        await session.append("text")
        rebuild = await memory.rebuild("n")
        stub = operation_service_pb2_grpc.OperationServiceStub(client.channel)
        read: Any = stub.WaitOperation(wait_for(rebuild))
        await read.read()
        async with (
            cutting(client.address) as proxy,
            aio.insecure_channel(proxy.address, options=UNREAD) as channel,
        ):
            there = operation_service_pb2_grpc.OperationServiceStub(channel)
            unread: Any = there.WaitOperation(wait_for(rebuild))
            await unread.read()
            behind = session.memory("n")
            async with asyncio.timeout(SLACK_SECONDS):
                while not await too_many(behind):
                    await asyncio.sleep(0.1)
                proxy.cut()
                while await too_many(behind):
                    # A connection that is cut is noticed a little later.
                    await asyncio.sleep(0.1)
        read.cancel()


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read_many_answers(
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
        # No worker runs here: all of them are answered at once, with more than a window takes.
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
