"""Orders that break at either end: no call waits for ever, and nothing of them stays."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.domain.values import fault_hook
from service.llm.executor.client import RemoteExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.providers.failures import ModelFailure
from tests.support.fake_index import DictIndex
from tests.unit.calls.executor.test_reading_along import answering, far
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger
from tests.unit.calls.test_streamed_replies import ASK, Writing


@contextmanager
def once(point: str) -> Iterator[Callable[[], int]]:
    """Raises at `point` the first time, and counts how often it is reached."""
    reached = 0

    def act(at: str) -> None:
        nonlocal reached
        reached += at == point
        if at == point and reached == 1:
            raise LookupError("a defect")

    fault_hook.install(act)
    try:
        yield lambda: reached
    finally:
        fault_hook.install(None)


@pytest.mark.parametrize("point", ["order:received", "outcome:known"])
async def test_a_worker_learns_that_its_order_broke_outside_of_the_call(
    tmp_path: Path, point: str
) -> None:
    writing = Writing([(["a"], None), (["a"], None)])
    with once(point) as reached:
        async with far(tmp_path, writing, Ledger()) as gateway, asyncio.timeout(30):
            with pytest.raises(ModelFailure, match="is gone") as failed:
                await gateway.call(ASK, model="m", scope=SCOPE)
            assert failed.value.retryable
            assert reached() == 1


async def test_an_order_that_broke_while_it_was_sent_is_not_kept(tmp_path: Path) -> None:
    async def swallow(said: object, writer: asyncio.StreamWriter) -> None:
        """Never answers."""

    remote = RemoteExecutor(tmp_path / "slow", stop_seconds=1)
    gateway = Gateway(
        Ledger(), Router((), DictIndex(), lambda _: BRIEF), remote, prices=lambda _: BRIEF,
        lease_seconds=9,
    )  # fmt: skip
    async with answering(tmp_path / "slow", swallow):
        with once("order:connected"), pytest.raises(LookupError):
            await gateway.call(ASK, model="m", scope=SCOPE)
        assert not remote._waiting
        await remote.close()


async def test_a_connection_that_breaks_as_an_order_is_sent_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(said: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def drain(writer: asyncio.StreamWriter) -> None:
        assert remote._reading is not None
        await asyncio.wait((remote._reading,))
        raise ConnectionResetError("it hung up")

    remote = RemoteExecutor(tmp_path / "far", stop_seconds=1)
    gateway = Gateway(
        Ledger(), Router((), DictIndex(), lambda _: BRIEF), remote, prices=lambda _: BRIEF,
        lease_seconds=9,
    )  # fmt: skip
    unheard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    try:
        async with answering(tmp_path / "far", hang_up):
            monkeypatch.setattr(asyncio.StreamWriter, "drain", drain)
            with pytest.raises(ModelFailure, match="it hung up"):
                await gateway.call(ASK, model="m", scope=SCOPE)
            monkeypatch.undo()
            await remote.close()
        gc.collect()
        await asyncio.sleep(0)
        assert not unheard
    finally:
        loop.set_exception_handler(None)
