"""Frames of what a model writes, between a worker and its executor."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from service.domain.prompting.flows import ModelReply
from service.llm.executor.client import RemoteExecutor
from service.llm.executor.server import ExecutorServer
from service.llm.executor.wire import frame, read_frame, reply_to_json
from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.providers.failures import ModelFailure
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger
from tests.unit.calls.test_streamed_replies import ASK, Heard, Writing, at_once


@asynccontextmanager
async def far(folder: Path, writing: Writing, ledger: Ledger) -> AsyncIterator[Gateway]:
    """Yields a gateway whose calls an executor makes at the other end of a socket."""
    executor = CallExecutor(
        writing, ledger, DictIndex(), prices=lambda _: BRIEF, tries=3, lease_seconds=9,
        sleep=at_once,
    )  # fmt: skip
    path, ready, stop = folder / "executor", asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(ExecutorServer(executor).listen(path, stop, ready.set))
    await ready.wait()
    try:
        async with connected(path, ledger) as gateway:
            yield gateway
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def connected(path: Path, ledger: Ledger) -> AsyncIterator[Gateway]:
    remote = RemoteExecutor(path, stop_seconds=1)
    chooser = Router((), DictIndex(), lambda _: BRIEF)
    try:
        yield Gateway(
            ledger, chooser, remote, prices=lambda _: BRIEF, lease_seconds=9, sleep=at_once
        )
    finally:
        await remote.close()


async def test_what_is_written_is_heard_before_the_reply_is_there(tmp_path: Path) -> None:
    heard, ledger = Heard(), Ledger()
    lasts: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writing = Writing([(["ä", "b 🚢"], None)], waits=lambda: lasts)
    async with far(tmp_path, writing, ledger) as gateway:
        call = asyncio.create_task(gateway.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text))
        async with asyncio.timeout(30):
            while heard.pieces < 2:
                await asyncio.sleep(0.01)
        assert not call.done()
        lasts.set_result(None)
        assert (await call).text == heard.text == "äb 🚢"
        assert (heard.pieces, heard.restarts) == (2, 0)


async def test_a_try_that_broke_begins_anew_at_the_other_end(tmp_path: Path) -> None:
    heard = Heard()
    writing = Writing([(["a"], ModelFailure("it broke", retryable=True)), (["b", "c"], None)])
    async with far(tmp_path, writing, Ledger()) as gateway:
        await gateway.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text)
    assert (heard.text, heard.restarts, heard.pieces) == ("bc", 1, 3)


async def test_a_call_without_a_reader_has_no_such_frames(tmp_path: Path) -> None:
    writing = Writing([(["a", "b"], None)])
    async with far(tmp_path, writing, Ledger()) as gateway:
        assert (await gateway.call(ASK, model="m", scope=SCOPE)).text == "ab"
    assert [plan.on_text for plan in writing.plans] == [None]


async def test_a_call_is_called_off_at_the_other_end(tmp_path: Path) -> None:
    heard, ledger = Heard(), Ledger()
    writing = Writing([(["a"], None)], waits=lambda: asyncio.get_running_loop().create_future())
    async with far(tmp_path, writing, ledger) as gateway:
        call = asyncio.create_task(gateway.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text))
        async with asyncio.timeout(30):
            while not heard.pieces:
                await asyncio.sleep(0.01)
            gateway.call_off(SCOPE)
            with pytest.raises(ModelFailure, match="called off"):
                await call
    assert not ledger.intents


class Away:
    """The other end of a worker that hears nothing."""

    def __init__(self) -> None:
        self.said = bytearray()

    def write(self, raw: bytes) -> None:
        self.said += raw

    async def drain(self) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        """Nothing to close."""


async def test_an_order_is_called_off_that_came_together_with_it(tmp_path: Path) -> None:
    ledger = Ledger()
    writing = Writing([(["a"], None)], waits=lambda: asyncio.get_running_loop().create_future())
    executor = CallExecutor(
        writing, ledger, DictIndex(), prices=lambda _: BRIEF, tries=3, lease_seconds=9,
        sleep=at_once,
    )  # fmt: skip
    orders: list[dict[str, Any]] = []

    async def keep(said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        orders.append(said)

    async with answering(tmp_path / "keeps", keep), connected(tmp_path / "keeps", ledger) as one:
        asking = asyncio.create_task(one.call(ASK, model="m", scope=SCOPE))
        while not orders:
            await asyncio.sleep(0.01)
        asking.cancel()
    (order,) = orders
    reader, away = asyncio.StreamReader(), Away()
    off = {"id": order["id"], "call_off": order["order"]["key"]}
    reader.feed_data(frame(order) + frame(off))
    serving = asyncio.create_task(ExecutorServer(executor).serve(reader, cast(Any, away)))
    async with asyncio.timeout(30):
        while b"called off" not in away.said:
            await asyncio.sleep(0.01)
        reader.feed_eof()
        await serving
    assert not writing.plans, "the model was not asked"
    assert not ledger.intents


@asynccontextmanager
async def answering(
    path: Path, answer: Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (said := await read_frame(reader)) is not None:
            await answer(said, writer)
        writer.close()

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    server = await asyncio.start_unix_server(serve, sock=listening)
    try:
        yield
    finally:
        server.close()


async def test_an_executor_of_the_release_before_says_the_reply_alone(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked.append(said)
        reply = ModelReply(text="ab", model="m")
        writer.write(frame({"id": said["id"], **reply_to_json(reply)}))

    heard = Heard()
    async with answering(tmp_path / "old", answer), connected(tmp_path / "old", Ledger()) as one:
        reply = await one.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text)
        assert (reply.text, heard.text, heard.pieces) == ("ab", "ab", 1)
        await one.call(ASK, model="other", scope=SCOPE)
    assert [sorted(said) for said in asked] == [["id", "order", "tells"], ["id", "order"]]
    assert "on_text" not in str(asked)
