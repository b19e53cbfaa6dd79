"""Measures the export and the import of a long session, over gRPC and by the client.

The session has a log and no memory. `value` is the slower of both, in MB of lines a second; the
peaks are by how much the memory of the API server grew, and of this process, which is the client.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psycopg

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.support.harness import Servers, api
from verification.benchmarks.long_session import SENTENCE

CHARACTERS = 600

_CHUNKS = """
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
    text, observation, thought, action, digest, thread, source, occurred_at, metadata)
SELECT %(key)s, n, %(tenant)s, 'bench', n, 'message', 'user',
    left('Note ' || n || ' of ' || md5(n::text) || '. ' || repeat(%(sentence)s, 20),
        %(characters)s), '', '', '', '', 'thread-' || n %% 10, 'user:42', now(), '{"a": "b"}'
FROM generate_series(1, %(count)s) AS n
"""
_PRODUCER = """
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
VALUES (%(key)s, 'bench', %(tenant)s, 0, %(count)s)
"""
_HEAD = "UPDATE session SET head = %(count)s WHERE session_key = %(key)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the length of the session."""
    parser.add_argument("--chunks", type=int, default=100_000, help="chunks (100,000)")


def run(seconds: float, *, chunks: int) -> dict[str, Any]:
    """Measures; takes as long as it takes to write and move the session."""
    with Servers.started(fsync=True) as servers, tempfile.TemporaryDirectory() as folder:
        url, file = servers.new_database(), Path(folder) / "export"
        with api(url) as (_, address):
            asyncio.run(_create(address))
        _write(url, chunks)
        exported = _measured(url, lambda address: _export(address, file))
        size = file.stat().st_size
        imported = _measured(url, lambda address: _import(address, file))
    found = {"export": exported, "import": imported}
    for one in found.values():
        one["mb_a_second"] = round(size / 1e6 / one["seconds"], 1)
    client = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    slower = min(one["mb_a_second"] for one in found.values())
    return {"value": slower, "chunks": chunks, "mb": size // 10**6, "client_mb": client, **found}


async def _create(address: str) -> None:
    async with palimpsest.connect(address) as client:
        await client.create_session("bench")


def _write(url: str, chunks: int) -> None:
    values = {
        "key": session_key(DEFAULT_TENANT, "bench"),
        "tenant": DEFAULT_TENANT,
        "count": chunks,
        "sentence": SENTENCE,
        "characters": CHARACTERS,
    }
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('app.tenant', %s, false)", (str(DEFAULT_TENANT),))
        connection.execute("SET ROLE palimpsest_app")
        for statement in (_PRODUCER, _CHUNKS, _HEAD):
            connection.execute(statement, values)


def _measured(url: str, work: Any) -> dict[str, Any]:
    """Measures one direction, with an API server of its own."""
    with api(url) as (process, address):
        before = _peak(process.pid)
        began = time.monotonic()
        running: Coroutine[Any, Any, None] = work(address)
        asyncio.run(running)
        seconds = time.monotonic() - began
        return {"seconds": round(seconds, 2), "server_mb": (_peak(process.pid) - before) // 1024}


def _peak(pid: int) -> int:
    """Returns the largest resident size of a process until now, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def _export(address: str, file: Path) -> None:
    async with palimpsest.connect(address) as client:
        await client.session("bench").export(file)


async def _import(address: str, file: Path) -> None:
    async with palimpsest.connect(address) as client:
        await client.import_session(file, "copy")
