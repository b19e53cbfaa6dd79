"""A signal at a command that runs a loop of its own: it ends in order, without a traceback."""

import asyncio
import gc
import logging
import signal
from collections.abc import Iterator

import pytest

from service.cli.run import StopSignals
from service.local.processes import STOP_SIGNALS


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    # What other tests left would say so in the log of whichever test runs when it is collected.
    gc.collect()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_midst_of_a_task_ends_all_tasks(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    async def task(name: str) -> None:
        try:
            if name == "busy":
                await asyncio.sleep(0)
                signal.raise_signal(number)
                # Asked for again it cuts nothing short.
                signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def work() -> None:
        await asyncio.gather(task("idle"), task("busy"), task("idle"))

    with caplog.at_level(logging.DEBUG, "asyncio"), pytest.raises(SystemExit) as stopped:
        StopSignals().run(work())
    assert stopped.value.code == 128 + number
    assert sorted(ended) == ["busy", "idle", "idle"]
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_work_that_no_signal_ends_is_done_and_its_errors_are_its_own() -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)
        if name == "cancelled":
            raise asyncio.CancelledError

    stop = StopSignals()
    stop.run(work("whole"))
    with pytest.raises(asyncio.CancelledError):
        stop.run(work("cancelled"))
    assert done == ["whole", "cancelled"]
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
