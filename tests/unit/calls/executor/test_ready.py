"""A worker takes nothing before its executor takes orders."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from service.llm.executor import client
from service.llm.executor.client import RemoteExecutor
from service.llm.executor.wire import NO_ORDER, frame, read_frame
from service.telemetry import logs
from tests.unit.calls.executor.test_reading_along import answering, far
from tests.unit.calls.scripted_calls import Ledger
from tests.unit.calls.test_streamed_replies import Writing


async def test_an_executor_says_when_it_takes_orders(tmp_path: Path) -> None:
    async with far(tmp_path, Writing([]), Ledger()), asyncio.timeout(30):
        remote = RemoteExecutor(tmp_path / "executor", stop_seconds=1)
        await remote.wait_until_ready(1000)
        await remote.close()


async def test_who_waits_for_an_executor_waits_until_it_says_so(tmp_path: Path) -> None:
    async def swallow(said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answers no order."""

    remote = RemoteExecutor(tmp_path / "old", stop_seconds=1)
    async with answering(tmp_path / "old", swallow), asyncio.timeout(30):
        await remote.wait_until_ready(0.05)
        waiting = asyncio.create_task(remote.wait_until_ready(1000))
        # The time of the first one may have passed before it was connected.
        while remote._reading is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        remote._reading.cancel()
        # It is gone: another one is started by the first call.
        await waiting
        await remote.close()


async def test_what_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    async with asyncio.timeout(30):
        await RemoteExecutor(tmp_path / "nowhere", stop_seconds=1).wait_until_ready(1000)


def test_a_worker_of_the_release_before_has_no_order_of_that_number() -> None:
    # Its orders are counted from 1; the frame is one that it looks at and leaves.
    assert NO_ORDER == 0
    assert frame({"id": NO_ORDER})[4:] == b'{"id":0}'


async def test_one_that_comes_back_is_found_without_a_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(client, "MAX_RECONNECT_SECONDS", 0.02)
    met: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await met.put(writer)

    remote = RemoteExecutor(tmp_path / "s", stop_seconds=1)
    connecting = asyncio.create_task(remote.stay_connected())
    try:
        for _ in range(3):
            server = await asyncio.start_unix_server(accept, tmp_path / "s")
            writer = await met.get()
            while not remote.is_connected:
                await asyncio.sleep(0.01)
            server.close()
            writer.close()
            while remote.is_connected:
                await asyncio.sleep(0.01)
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await remote.close()


async def test_who_reads_for_all_says_nothing_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[object] = []

    async def noted(reader: asyncio.StreamReader) -> Any:
        said.append(structlog.contextvars.get_contextvars())
        return await read_frame(reader)

    monkeypatch.setattr(client, "read_frame", noted)
    async with far(tmp_path, Writing([]), Ledger()), asyncio.timeout(30):
        remote = RemoteExecutor(tmp_path / "executor", stop_seconds=1)
        with logs.about(memory="m"):
            await remote.wait_until_ready(1000)
        await remote.close()
    assert said[0] == {}
