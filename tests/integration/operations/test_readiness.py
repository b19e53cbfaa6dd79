"""Readiness follows the database, liveness does not, and each process says so for itself."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from service.app import health
from service.app.health_socket import health_socket
from service.cli.commands import app
from service.cli.doctor import _api
from service.domain.operations.doctor import Severity
from service.rpc.server import LIVE, READY
from service.settings.config import Config
from service.usecases.operations import readiness as module
from service.usecases.operations.readiness import FAILURES, SUCCESSES, ReadinessWatch
from storage.engine.database import Database
from tests.support.cutting import Proxy, relayed
from tests.support.harness import Servers, api, worker

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
#: What needs the database.
DEPENDENT = ("", READY, "palimpsest.v1.SessionService", "palimpsest.v1.AnswerService")


@pytest.fixture
def run_dir(folder: Path) -> Path:
    made = folder / "run"
    made.mkdir(mode=0o700)
    return made


@asynccontextmanager
async def beside(process: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """Starts and ends a process while this loop, and the relay in it, continues."""
    with ExitStack() as stack:
        started = await asyncio.to_thread(stack.enter_context, process)
        try:
            yield started
        finally:
            await asyncio.to_thread(stack.close)


async def statuses(address: str, names: tuple[str, ...]) -> set[int]:
    async with aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return {
            (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names
        }


async def until(address: str, status: int) -> None:
    """Waits, as a load balancer does, until the server says that it is so."""
    async with asyncio.timeout(150), aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async for said in watch:
            if said.status == status:
                return


async def asked(run_dir: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Returns the result of a container's probe, in a process of its own."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "service.app.health", "--json", *options],
        env={**os.environ, "PALIMPSEST_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.prove
async def test_a_server_is_ready_as_long_as_its_database_is_there(url: str, run_dir: Path) -> None:
    async with relayed(url) as (relay, through):
        settings = {"PALIMPSEST_RUN_DIR": str(run_dir), "PALIMPSEST_PROBE_SECONDS": "0.05"}
        async with beside(api(through, **settings)) as (process, address):
            assert await statuses(address, (*DEPENDENT, LIVE)) == {SERVING}
            assert (await _api(address, Config())).level is Severity.OK
            code, told = await asked(run_dir)
            (one,) = told["processes"]
            assert (code, one["kind"], one["pid"], one["ready"]) == (0, "serve", process.pid, True)

            relay.hold()
            await until(address, NOT_SERVING)
            assert await statuses(address, DEPENDENT) == {NOT_SERVING}
            assert await statuses(address, (LIVE,)) == {SERVING}, "to kill it would not help"
            finding = await _api(address, Config())
            assert (finding.level, "cannot reach its database" in finding.said) == (
                Severity.BAD,
                True,
            )
            code, told = await asked(run_dir)
            assert (code, told["healthy"]) == (1, False)
            assert "did not answer within 2 s" in told["processes"][0]["cause"]
            assert (await asked(run_dir, "--live"))[0] == 0

            relay.release()
            await until(address, SERVING)
            assert await statuses(address, DEPENDENT) == {SERVING}
            assert (await asked(run_dir))[0] == 0
        assert await asked(run_dir) == (1, {"healthy": False, "processes": []})


async def test_workers_and_their_executors_answer_without_a_port(url: str, run_dir: Path) -> None:
    settings = {
        "PALIMPSEST_RUN_DIR": str(run_dir),
        # Not the offline one: with that no executor is started.
        "PALIMPSEST_MODEL": "openai/none",
    }
    with worker(url, **settings) as process:
        kinds: dict[str, int] = {}
        code = 1
        async with asyncio.timeout(150):
            while not (kinds.keys() == {"work", "executor"} and code == 0):
                code, told = await asked(run_dir)
                kinds = {one["kind"]: one["pid"] for one in told["processes"]}
        assert kinds["work"] == process.pid
        assert (await asked(run_dir, "--kind", "executor"))[0] == 0
        assert (await asked(run_dir, "--kind", "serve"))[0] == 1, "none of these runs here"
        process.kill()
        code, told = await asked(run_dir, "--kind", "work")
        assert (code, told["processes"]) == (1, []), "what it left behind is no process"
        assert not [name for name in os.listdir(run_dir) if name.startswith("work-")]


async def test_the_command_says_the_same_in_a_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_RUN_DIR", str(run_dir))

    async def said(*options: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, app, ["health", *options])
        return done.exit_code, done.output.strip()

    assert await said() == (1, f"no process of Palimpsest answers in {run_dir}")
    troubles = [""]
    async with health_socket(run_dir, "work", lambda: troubles[-1]):
        assert await said() == (0, f"work {os.getpid()} is ready")
        troubles.append("it is stopping")
        assert await said() == (1, f"work {os.getpid()} is not ready: it is stopping")
        assert (await said("--live"))[0] == 0
        code, line = await said("--json")
        assert (code, json.loads(line)["processes"][0]["cause"]) == (1, "it is stopping")


async def test_a_process_that_hangs_is_not_live(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(run_dir / "executor-1.sock"))
        hanging.listen()
        (one,) = await asyncio.to_thread(health.ask, run_dir)
        assert (one.kind, one.live, one.ready) == ("executor", False, False)
        well, line = await asyncio.to_thread(
            lambda: health.report(run_dir, None, live=True, as_json=False)
        )
    assert (well, "does not answer" in line) == (False, True)


def test_sockets_are_in_a_folder_of_the_user_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PALIMPSEST_RUN_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Config().run_dir == tmp_path / "palimpsest"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(Config().run_dir).endswith(f"/palimpsest-{os.geteuid()}")


def link_to(run_dir: Path) -> Path:
    link = run_dir.parent / "link"
    link.symlink_to(run_dir)
    return link


def open_to_others(run_dir: Path) -> Path:
    run_dir.chmod(0o777)
    return run_dir


@pytest.mark.parametrize("make", [link_to, open_to_others, lambda run_dir: run_dir / ("x" * 120)])
async def test_a_folder_that_others_may_have_made_is_not_used(
    run_dir: Path, make: Callable[[Path], Path]
) -> None:
    used = make(run_dir)
    async with health_socket(used, "work", lambda: ""):
        assert os.listdir(used) == []


async def lose(relay: Proxy, watch: ReadinessWatch) -> None:
    relay.hold()
    for _ in range(FAILURES):
        await watch.probe()


@pytest.mark.prove
async def test_one_probe_that_fails_changes_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relayed(url) as (relay, through):
        database = Database.connect(through, pool_size=1, name="probe")
        watch = ReadinessWatch(database, asyncio.Event(), probe_seconds=1)
        told: list[bool] = []

        async def listen(ready: bool) -> None:
            told.append(ready)

        await watch.begin(listen)
        monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 60)
        await watch.probe()
        monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 0.1)
        relay.hold()
        await watch.probe()
        assert (watch.cause, told) == ("", [True])
        relay.release()
        monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 60)
        await watch.probe()
        monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 0.1)
        await lose(relay, watch)
        assert ("did not answer" in watch.cause, told) == (True, [True, False])
        relay.release()
        monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 60)
        for _ in range(SUCCESSES):
            await watch.probe()
        assert (watch.cause, told) == ("", [True, False, True])
        await database.close()


async def test_what_was_missing_at_the_start_is_not_missing_afterwards(url: str) -> None:
    async with relayed(url) as (relay, through):
        database = Database.connect(through, pool_size=1, name="probe")
        watch = ReadinessWatch(database, asyncio.Event(), probe_seconds=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "PROBE_TIMEOUT_SECONDS", 0.1)
            relay.hold()
            for _ in range(FAILURES):
                await watch.probe()
            assert watch.cause == "it is starting: the database did not answer within 0.1 s"
        relay.release()
        told: list[bool] = []

        async def listen(ready: bool) -> None:
            told.append(ready)

        await watch.begin(listen)
        assert (watch.cause, told) == ("", [True])
        await database.close()


async def test_a_database_that_takes_no_writes_is_not_ready(url: str, servers: Servers) -> None:
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    async with await psycopg.AsyncConnection.connect(
        servers.as_superuser(url), autocommit=True
    ) as admin:
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    database = Database.connect(url, pool_size=1, name="probe")
    stop = asyncio.Event()
    watch = ReadinessWatch(database, stop, probe_seconds=1)
    assert watch.cause == module.STARTING
    await watch.begin()
    for _ in range(FAILURES):
        await watch.probe()
    assert "read-only" in watch.cause
    stop.set()
    assert watch.cause == module.STOPPING
    await database.close()
