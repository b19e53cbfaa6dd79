"""Processes left by a killed run are ended, and no others."""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest

from service.local import processes
from service.local.folder import OwnFolder
from service.local.postgres import PostgresServer
from service.local.processes import ServerError
from service.local.valkey import ValkeyServer
from tests.support.embedded import add, begin, naming, rows, run, working_in
from tests.support.harness import eventually

pytestmark = pytest.mark.prove

SLEEP = shutil.which("sleep")


def test_a_strangers_process_in_the_data_folder_lives_on(folder: Path) -> None:
    pg, vk = folder / "pg", folder / "vk"
    with PostgresServer(pg), ValkeyServer(vk):
        pass
    strangers = [subprocess.Popen(["sleep", "600"], cwd=place) for place in (pg, pg / "data", vk)]
    strangers += [
        # Named and started like ours, and other programs.
        subprocess.Popen(["postgres", "600"], executable=SLEEP, cwd=pg / "data"),
        subprocess.Popen(
            ["tail", "-f", str(vk / "valkey.conf")], cwd=vk, stdout=subprocess.DEVNULL
        ),
    ]
    try:
        with PostgresServer(pg) as server, ValkeyServer(vk):
            assert rows(server.url) == []
        assert [one.poll() for one in strangers] == [None] * len(strangers)
    finally:
        for one in strangers:
            one.kill()
            one.wait()


@pytest.mark.parametrize("moment_seconds", [0.0, 0.05, 0.2, 0.4])
def test_a_start_goes_well_after_one_that_was_killed_during_initdb(
    folder: Path, moment_seconds: float
) -> None:
    home = folder / "pg"
    script = f"""
        from pathlib import Path
        from service.local.postgres import PostgresServer
        PostgresServer(Path({str(home)!r})).start()
    """
    parent = begin(script)
    # Or it has run already, where this process had to wait for a processor.
    eventually(
        "initdb runs",
        lambda: naming(f"--pgdata={home}/data.part") or (home / "data").exists(),
    )
    time.sleep(moment_seconds)
    parent.kill()
    parent.communicate()
    with PostgresServer(home) as server:
        add(server.url, 1)
        assert rows(server.url) == [1]
    assert naming(str(home)) == []
    assert not (home / "data.part").exists()
    assert not (home / "initdb.password").exists()


def orphaned(server: str, home: Path) -> list[int]:
    """Returns what a killed run leaves where nothing ties a server to its parent, as on macOS."""
    script = f"""
        import os, signal
        from pathlib import Path
        from service.local import processes
        from service.local.postgres import PostgresServer
        from service.local.valkey import ValkeyServer
        processes._BECOME = processes._BECOME.replace('"linux"', '"nothing"')
        server = {server}(Path({str(home)!r}))
        server.start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(script).returncode == -signal.SIGKILL
    left = working_in(home)
    assert left
    return left


@pytest.mark.parametrize("server", [PostgresServer, ValkeyServer])
@pytest.mark.parametrize("hung", [False, True], ids=["running", "hung"])
def test_servers_of_a_killed_run_are_ended(
    folder: Path,
    server: type[PostgresServer] | type[ValkeyServer],
    hung: bool,
) -> None:
    home = folder / "home"
    left = orphaned(server.__name__, home)
    for pid in left if hung else ():
        # A backend of the connection that was killed may end by itself meanwhile.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    with server(home):
        assert not set(left) & set(working_in(home))


def test_a_server_that_was_started_by_hand_on_the_data_is_ended(folder: Path) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
        programs, user = server._programs, server._user
    log = OwnFolder.make(folder / "hand", user).log("log")
    command = [str(programs / "postgres"), "-D", ".", "--unix_socket_directories="]
    command.append(f"--port={processes.free_port()}")
    by_hand = processes.spawn(
        command,
        user=user,
        folder=home / "data",
        output=log.handle,
        death_signal=signal.SIGKILL,
    )
    eventually("it works there", lambda: (home / "data/postmaster.pid").exists())
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]
    assert by_hand.wait(60) is not None
    log.close()


def test_a_server_on_other_data_is_none_of_ours(folder: Path) -> None:
    with PostgresServer(folder / "one") as one, PostgresServer(folder / "two") as two:
        assert one._process is not None
        assert two._process is not None
        mine = psutil.Process(one._process.pid)
        other = psutil.Process(two._process.pid)
        assert one._is_ours(mine)
        assert not one._is_ours(other)
        stranger = SimpleNamespace(effective=mine.uids().effective + 1)
        assert not one._is_ours(shown(mine, uids=lambda: stranger))
        # Started from a shell in our data, on the way to its own.
        assert not one._is_ours(shown(other, cwd=mine.cwd))


def shown(process: psutil.Process, **others: Any) -> Any:
    """Returns a process as the system shows it, but for these methods."""
    names = ("uids", "exe", "name", "cmdline", "cwd")
    return SimpleNamespace(**{**{name: getattr(process, name) for name in names}, **others})


def test_a_backend_that_hangs_does_not_stop_a_restart(folder: Path) -> None:
    with PostgresServer(folder / "pg") as server:
        add(server.url, 1)
        with psycopg.connect(server.url) as connection:
            os.kill(connection.info.backend_pid, signal.SIGSTOP)
            assert server._process is not None
            server._process.kill()
            server._process.wait()
            server.restart()
            assert rows(server.url) == [1]


def test_a_server_that_hangs_is_stopped(folder: Path) -> None:
    for server in (PostgresServer(folder / "pg"), ValkeyServer(folder / "vk")):
        server.start()
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        server.stop()
    assert working_in(folder) == []


@pytest.mark.parametrize(
    "text", ["", "{pid}\n", "{pid}\n/nowhere\n1\n1\n\n127.0.0.1\n1 1\nready\n"]
)
def test_a_stale_pid_file_is_not_believed(folder: Path, text: str) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
    pid_file = home / "data" / "postmaster.pid"
    pid_file.write_text(text.format(pid=os.getpid()))
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]


@pytest.mark.parametrize("server", ["PostgresServer", "ValkeyServer"])
def test_of_two_that_start_at_once_one_has_the_folder(folder: Path, server: str) -> None:
    script = f"""
        import sys
        from pathlib import Path
        from service.local.postgres import PostgresServer
        from service.local.processes import ServerError
        from service.local.valkey import ValkeyServer
        try:
            with {server}(Path({str(folder / "a" / "home")!r})) as server:
                print("works", flush=True)
                sys.stdin.read()
        except ServerError as error:
            print(error, flush=True)
    """
    starts = [begin(script) for _ in range(4)]
    said = sorted(one.stdout.readline().strip() for one in starts if one.stdout)
    for one in starts:
        one.communicate("")
    taken = f"another process uses the data folder {folder / 'a' / 'home'}"
    assert [one.partition(":")[0] for one in said] == [taken] * 3 + ["works"]


@pytest.mark.parametrize("kind", [PostgresServer, ValkeyServer])
def test_a_taken_port_is_changed_at_start_and_waited_for_at_restart(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[PostgresServer] | type[ValkeyServer],
) -> None:
    free_port = processes.free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(processes, "free_port", lambda: next(ports, 0) or free_port())
        server = kind(folder / "home")
        server.start()
        assert server._port != taken.getsockname()[1]
    try:
        port = server._port
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        taken = socket.create_server(("127.0.0.1", port))
        threading.Timer(1.0, taken.close).start()
        server.restart()
        assert server._port == port
    finally:
        server.stop()


def test_a_second_start_does_not_end_the_first(folder: Path) -> None:
    with PostgresServer(folder / "pg") as server, ValkeyServer(folder / "vk") as valkey:
        for one in (server, valkey):
            with pytest.raises(ServerError, match="is running already"):
                one.start()
            assert one.is_running()
        assert rows(server.url) == []


def test_a_forked_process_keeps_no_folder(folder: Path) -> None:
    home = folder / "pg"
    script = f"""
        import os, signal, time
        from pathlib import Path
        from service.local.postgres import PostgresServer
        with PostgresServer(Path({str(home)!r})) as server:
            for entry in Path("/proc", str(server._process.pid), "fd").iterdir():
                assert not os.readlink(entry).endswith("owner.lock")
            forked = os.fork()
            if not forked:
                time.sleep(600)
                os._exit(0)
        with PostgresServer(Path({str(home)!r})):
            print("works")
        os.kill(forked, signal.SIGKILL)
    """
    done = run(script)
    assert done.stdout.strip() == "works", done.stderr
