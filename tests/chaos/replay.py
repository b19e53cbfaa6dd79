"""Workers killed at every step of a call: each call is paid for once, each chunk applied once.

Real PostgreSQL, Valkey, sockets and processes: a model server that counts what it is
asked, a caller that outlives the workers, and one worker after the other, each killed
with SIGKILL at the step that the schedule says (from inside, by the caller or by the
model server) or at any time. The same seed makes the same schedule.
"""

import asyncio
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlalchemy import text

from service.config import Config
from service.domain.prism.spec import PrismSpec
from service.domain.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.work import WorkItem, WorkKind
from storage import memories, sessions
from storage.database import Database, Transaction
from tests.chaos import bodies
from tests.chaos.points import Point, Trap
from tests.harness import Servers
from tests.integration.writing import append_texts

KEY = session_key(DEFAULT_TENANT, "s")
NAMES = ("one", "two", "three")
SPEC = PrismSpec(
    schema_source="class N:\n    topics: dict[str, str]\n",
    chunk_tokens=1,
    model="openai/counting",
)
#: A worker that is to die anywhere lives at most so long.
MAX_LIFE_SECONDS = 0.25
#: A worker that has neither died nor ended after so long hangs.
HANG_SECONDS = 200.0
STARTED_SECONDS = 200.0


def run(kills: int, seed: int) -> dict[str, Any]:
    """Kills so many workers; what it found, with `wrong` a list of sentences."""
    with Servers.started() as servers, tempfile.TemporaryDirectory() as name:
        return _Run(servers, Path(name), random.Random(seed)).run(kills)


class _Run:
    def __init__(self, servers: Servers, folder: Path, rng: random.Random) -> None:
        self._random = rng
        self._folder = folder
        self._trap = Trap()
        self._paid = folder / "paid"
        self._lost = folder / "lost"
        for path in (self._paid, self._lost):
            path.touch()
        self._socket = folder / "caller"
        self._redis_url = servers.valkey.url
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = self._listening.getsockname()[1]
        self._config = Config(
            database_url=SecretStr(servers.new_database()),
            model_base_url=f"http://127.0.0.1:{port}/v1",
            drain_seconds=600,
            step_backoff_seconds=0.05,
        )
        self._items = [
            WorkItem(
                kind=WorkKind.MEMORY,
                tenant_id=DEFAULT_TENANT,
                session_key=KEY,
                item_id=memory_id(KEY, name),
            )
            for name in NAMES
        ]
        self._died: Counter[str] = Counter()

    def run(self, kills: int) -> dict[str, Any]:
        chunks = kills // len(NAMES) + 20
        asyncio.run(self._make(chunks))
        helpers = [bodies.forked(bodies.model, self._listening, self._paid, self._trap)]
        helpers.append(
            bodies.forked(
                bodies.caller,
                self._config,
                self._socket,
                self._lost,
                self._trap,
                self._redis_url,
            )
        )
        try:
            self._wait_for_caller(helpers[-1])
            started = time.monotonic()
            for number, point in enumerate(self._schedule(kills), start=1):
                self._kill_one(point)
                if number % 50 == 0:
                    seconds = time.monotonic() - started
                    print(f"{number} workers killed in {seconds:.0f} s", file=sys.stderr)
            self._finish()
        finally:
            for pid in helpers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        wrong = asyncio.run(self._look(chunks))
        return {
            "value": len(wrong),
            "goal": "0",
            "kills": sum(self._died.values()),
            "kills_by_point": dict(sorted(self._died.items())),
            "calls": chunks * len(NAMES),
            "paid": len(self._paid.read_text().splitlines()),
            "leases_lost": self._leases_lost(),
            "wrong": wrong,
        }

    def _schedule(self, kills: int) -> list[Point]:
        """Every point as often as any other, in an order that the seed makes."""
        points = [point for point in Point if point is not Point.NOWHERE]
        schedule: list[Point] = [points[number % len(points)] for number in range(kills)]
        self._random.shuffle(schedule)
        return schedule

    def _kill_one(self, point: Point) -> None:
        self._trap.set(point)
        pid = bodies.forked(
            bodies.worker, self._config, self._socket, self._trap, list(self._items)
        )
        watch = os.pidfd_open(pid)
        anywhere = point is Point.ANYWHERE
        patience = self._random.random() * MAX_LIFE_SECONDS if anywhere else HANG_SECONDS
        ended, _, _ = select.select([watch], [], [], patience)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        os.close(watch)
        _, status = os.waitpid(pid, 0)
        if not ended and not anywhere:
            raise RuntimeError(f"a worker that was to die at {point.name} hangs")
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"a worker that was to die at {point.name} did not come there")
        self._died[point.name.lower()] += 1

    def _finish(self) -> None:
        """The last worker lives."""
        self._trap.set(Point.NOWHERE)
        pid = bodies.forked(
            bodies.worker, self._config, self._socket, self._trap, list(self._items)
        )
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError("the last worker failed")

    def _wait_for_caller(self, pid: int) -> None:
        until = time.monotonic() + STARTED_SECONDS
        while not self._socket.exists():
            if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > until:
                raise RuntimeError("the caller did not start")
            time.sleep(0.05)

    def _database(self) -> Database:
        assert self._config.database_url is not None
        return Database.connect(
            self._config.database_url.get_secret_value(), pool_size=2, name="chaos"
        )

    async def _make(self, chunks: int) -> None:
        database = self._database()
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, KEY, "s")
        await append_texts(database, "s", [f"w{number}" for number in range(chunks)])
        for name in NAMES:
            async with database.transaction(DEFAULT_TENANT) as tx:
                await memories.create(
                    tx,
                    session_key=KEY,
                    memory_id=memory_id(KEY, name),
                    name=name,
                    # Each with prompts of its own, so that every call differs.
                    spec=replace(SPEC, task=f"Task {name}."),
                    head=chunks,
                    value="{}",
                    digest=b"",
                )
        await database.close()

    def _leases_lost(self) -> int:
        """Calls that the caller had under way when somebody else took them over."""
        return len(set(self._lost.read_text().splitlines()))

    async def _look(self, chunks: int) -> list[str]:
        wrong = []
        asked = Counter(self._paid.read_text().splitlines())
        again = {prompt: times for prompt, times in asked.items() if times > 1}
        # Who stands still for longer than the lease has lost it, and nobody waits any more.
        if sum(again.values()) - len(again) > self._leases_lost():
            for prompt, times in again.items():
                wrong.append(f"a call was paid {times} times: {prompt[:12]}")
        if len(asked) != chunks * len(NAMES):
            wrong.append(f"{len(asked)} different calls, {chunks * len(NAMES)} were due")
        database = self._database()
        try:
            async with database.transaction(DEFAULT_TENANT) as tx:
                for table, due in (("call", chunks * len(NAMES)), ("intent", 0)):
                    found = await tx.connection.execute(text(f"SELECT count(*) FROM {table}"))
                    rows = found.scalar_one()
                    if rows != due:
                        wrong.append(f"{rows} rows in {table}, {due} were due")
                for name in NAMES:
                    wrong += await _memory_wrong(tx, name, chunks)
        finally:
            await database.close()
        return wrong


async def _memory_wrong(tx: Transaction, name: str, chunks: int) -> list[str]:
    key = (KEY, memory_id(KEY, name))
    stored = await memories.get(tx, *key)
    assert stored is not None, "it was made"
    wrong = []
    if stored.applied_position != chunks:
        wrong.append(f"{name} is at {stored.applied_position} of {chunks}")
    due = {f"w{number}" for number in range(chunks)}
    value = await tx.connection.execute(
        text("SELECT value FROM prism_value WHERE memory_id = :memory"), {"memory": key[1]}
    )
    if set(json.loads(value.scalar_one())["topics"]) != due:
        wrong.append(f"{name} does not hold what the chunks said")
    applied = await tx.connection.execute(
        text("SELECT count(*) FROM amendment WHERE memory_id = :memory"), {"memory": key[1]}
    )
    if (rows := applied.scalar_one()) != chunks:
        wrong.append(f"{name} has {rows} amendments, {chunks} were due")
    return wrong
