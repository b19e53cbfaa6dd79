"""PgBouncer in transaction mode, in front of a server of the tests."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import palimpsest
from service.local import processes
from service.local.processes import ServerUser, free_port
from tests.support.harness import absent

#: Chunks that a client writes.
CHUNKS = 10
READY_SECONDS = 60.0
STOP_SECONDS = 10.0
#: Fewer than the clients of any test here: they have to share them.
SERVER_CONNECTIONS = 4


def program() -> str | None:
    """Returns where PgBouncer is; None when it is not installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def needed() -> str:
    """Returns where PgBouncer is. Skips the test without it; in CI it fails."""
    found = program()
    if found is None:
        absent("pgbouncer")
    return found


@contextmanager
def pooler(url: str, *, drops_options: bool) -> Iterator[str]:
    """Runs PgBouncer before the server of `url`, and gives the URL through it.

    `drops_options`: it does not refuse a connection's startup options, but ignores them.
    """
    with tempfile.TemporaryDirectory(prefix="palimpsest-pooler-") as name:
        # PgBouncer does not run as root.
        Path(name).chmod(0o755)
        with _running(url, Path(name), drops_options=drops_options) as through:
            yield through


@contextmanager
def _running(url: str, home: Path, *, drops_options: bool) -> Iterator[str]:
    found = program()
    assert found is not None, "it is installed"
    parts = urlsplit(url)
    port, user = free_port(), ServerUser.current()
    (home / "users").write_text(f'"{parts.username}" "{unquote(parts.password or "")}"\n')
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": home / "users",
        "pool_mode": "transaction",
        "default_pool_size": SERVER_CONNECTIONS,
        "max_client_conn": 500,
        "ignore_startup_parameters": "options" if drops_options else "",
    }
    lines = ["[databases]", f"* = host={parts.hostname} port={parts.port}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (home / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    with (home / "log").open("wb") as log:
        process = processes.spawn(
            [found, str(home / "pgbouncer.ini")],
            user=user,
            folder=home,
            output=log.fileno(),
            death_signal=signal.SIGKILL,
        )
    try:
        _wait(process, port, home / "log")
        yield f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{port}{parts.path}"
    finally:
        processes.stop(process, ((signal.SIGTERM, STOP_SECONDS),))


async def live(address: str, number: int) -> None:
    """Writes a session of its own, and reads it and what a memory makes of it.

    Raises AssertionError for anything else than what it wrote.
    """
    texts = [f"client {number} says {at}" for at in range(CHUNKS)]
    async with palimpsest.connect(address) as client:
        session = await client.create_session(f"pooled-{number}")
        memory = await session.create_memory("m", schema_source="class Notes:\n    said: str\n")
        ack = None
        async with session.producer("p") as producer:
            for text in texts:
                await producer.append(text)
                # Alone each takes the way of one round trip.
                ack = await producer.flush()
        assert ack is not None, "it was acked"
        read = [chunk.text async for chunk in session.chunks()]
        assert read == texts, f"read {read}"
        state = await memory.get(after=ack.read_token, timeout=READY_SECONDS)
        assert state.applied_position == CHUNKS, f"applied {state.applied_position}"


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        assert process.poll() is None, f"pgbouncer ended: {log.read_text(errors='replace')}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.05)
        else:
            return
