"""An executor that is started before its worker has loaded anything."""

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.cli import run
from service.llm.executor.client import RemoteExecutor
from service.llm.executor.spawning import Spawned
from service.llm.executor.wire import NO_ORDER, frame

_LOADS = (
    "import sys, service.llm.executor.spawning; print([n for n in sys.modules if '.' not in n])"
)


def test_to_start_one_loads_nothing_that_takes_long() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADS], capture_output=True, text=True, check=True
    )
    for name in ("litellm", "sqlalchemy", "grpc", "pydantic", "structlog", "opentelemetry"):
        assert f"'{name}'" not in done.stdout


@pytest.fixture
def spawned() -> Iterator[tuple[Spawned, socket.socket]]:
    """Yields a process that is started already, and the other end of the socket to it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, subprocess.Popen(["true"]) as process:
        yield Spawned(process, ours), theirs


async def test_the_one_that_was_started_is_used_and_no_other(
    spawned: tuple[Spawned, socket.socket],
) -> None:
    remote = RemoteExecutor(None, stop_seconds=1, spawned=spawned[0])
    spawned[1].sendall(frame({"id": NO_ORDER}))
    await remote.wait_until_ready(1000)
    await remote.close()
    assert await asyncio.to_thread(spawned[1].recv, 1) == b"", "the other end was closed"


async def test_an_executor_that_was_never_asked_is_ended(
    spawned: tuple[Spawned, socket.socket],
) -> None:
    await RemoteExecutor(None, stop_seconds=60, spawned=spawned[0]).close()
    assert await asyncio.to_thread(spawned[1].recv, 1) == b""
    assert spawned[0].process.returncode == 0


def test_garbage_is_looked_for_again_once_a_process_is_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        run._starting()
        assert not gc.isenabled()
        run._ready("working")
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
    assert capsys.readouterr().out == "working\n"
