"""A whole service for benchmarks: servers, a slow model, an API and workers, as processes."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from tests.support.cutting import relayed
from tests.support.harness import Process, Servers, api, worker
from verification.benchmarks.calls import cpu_seconds
from verification.benchmarks.slow_model import NUMBER, Habit, slow_server

MODEL = "openai/slow"
#: The name of the memory that `SCHEMA` is for.
NOTES = "notes"
SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
#: Takes every chunk as news of one topic, so that a memory keeps its size.
UPDATE = (
    "[OBJECTS FOR UPDATE]\n"
    f'{{"$.\'topics\'.\'ship\'": {{"update": "It lies there in harbour {NUMBER}."}}}}\n'
    "[OBJECTS FOR ADD]\n{}"
)
QUESTION = "Whereabouts is that ship?"
ANSWER = "[ANSWER]\nIn the harbour.\n[PATHS]\n$.topics.ship\n"
#: Seconds between two looks at how far memories are.
LOOK_SECONDS = 0.1
#: A process is idle that takes less than so much CPU in each look for so long, in seconds.
IDLE_SHARE = 0.03
IDLE_SECONDS = 3.0


@dataclass(kw_only=True)
class Stack:
    """What runs."""

    servers: Servers
    #: The database's address, in the role of our processes.
    url: str
    #: Where the API listens.
    address: str
    server: Process
    #: What a worker of this stack is started with.
    environment: dict[str, str]
    workers: list[Process] = field(default_factory=list)
    _held: ExitStack = field(default_factory=ExitStack)

    def add_worker(self, **settings: str) -> Process:
        """Starts a worker more; it ends with the stack."""
        process = self._held.enter_context(worker(self.url, **{**self.environment, **settings}))
        self.workers.append(process)
        return process

    def connect(self) -> psycopg.Connection[Any]:
        """Returns a connection of the superuser's, outside of any transaction."""
        return psycopg.connect(self.servers.as_superuser(self.url), autocommit=True)

    def processes(self) -> dict[str, int]:
        """Ids of ours, of workers' executors as well, by a name for people."""
        found = {"api": self.server.pid}
        for number, one in enumerate(self.workers, start=1):
            if one.is_running():
                found[f"worker-{number}"] = one.pid
                found |= {f"executor-{number}": pid for pid in children(one.pid)}
        return found

    def postmaster(self) -> int:
        """Returns the process that all of PostgreSQL's are below."""
        process = self.servers.postgres._process
        assert process is not None, "it runs"
        return process.pid


@contextmanager
def stack(
    workers: int,
    *,
    model_seconds: float,
    reply: str = UPDATE,
    habits: Sequence[Habit] = (),
    wake_ups_are_lost: bool = False,
    **settings: str,
) -> Iterator[Stack]:
    """Yields a service with so many workers and a model that takes so long; `settings` are theirs.

    Questions that ask `QUESTION` get `ANSWER`, all other prompts `reply`. With
    `wake_ups_are_lost` no wake-up arrives once all have started.
    """
    asked = Habit(marker=QUESTION, seconds=model_seconds, reply=ANSWER)
    with (
        Servers.started() as servers,
        slow_server(model_seconds, reply, (*habits, asked)) as model,
        ExitStack() as held,
    ):
        url = servers.new_database()
        environment = {
            "PALIMPSEST_REDIS_URL": servers.valkey.url,
            "PALIMPSEST_MODEL": MODEL,
            "PALIMPSEST_MODEL_BASE_URL": model,
            "PALIMPSEST_MODEL_API_KEY": "none",
            "PALIMPSEST_LOG_LEVEL": "error",
            **settings,
        }
        silence: Callable[[], object] | None = None
        if wake_ups_are_lost:
            silence, through = held.enter_context(_silenced(url))
            environment["PALIMPSEST_SIGNALS_DATABASE_URL"] = through
        server, address = held.enter_context(api(url, **environment))
        made = Stack(
            servers=servers,
            url=url,
            address=address,
            server=server,
            environment=environment,
            _held=held,
        )
        for _ in range(workers):
            made.add_worker()
        if silence is not None:
            silence()
        yield made


@contextmanager
def _silenced(url: str) -> Iterator[tuple[Callable[[], object], str]]:
    """Yields a way to the database on which nothing is heard after a call, and its URL."""
    started: Future[tuple[Callable[[], object], Callable[[], object], str]] = Future()

    async def relay() -> None:
        ended = asyncio.Event()
        call = asyncio.get_running_loop().call_soon_threadsafe
        async with relayed(url) as (proxy, through):
            started.set_result((partial(call, proxy.hold), partial(call, ended.set), through))
            await ended.wait()
        # Those of its connections, which are cut.
        own = {asyncio.current_task()}
        await asyncio.gather(*(asyncio.all_tasks() - own), return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(relay(),))
    thread.start()
    silence, end, through = started.result(timeout=10)
    try:
        yield silence, through
    finally:
        end()
        thread.join()


def children(pid: int) -> list[int]:
    """Returns the processes that a process started from its first thread."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(what: str, look: Callable[[], bool], seconds: float) -> None:
    """Waits until `look()` is true; fails when that takes longer than anything should."""
    until = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(LOOK_SECONDS)


def wait_until_idle(process: Process) -> None:
    """Waits until a worker and its executor have started to their end: imports take seconds."""
    spent, seconds = cpu_seconds(process.pid), IDLE_SECONDS
    while seconds > 0:
        time.sleep(LOOK_SECONDS)
        now = cpu_seconds(process.pid)
        seconds = seconds - LOOK_SECONDS if now - spent < IDLE_SHARE else IDLE_SECONDS
        spent = now


_BEHIND = """
SELECT count(*) FROM memory m JOIN session s USING (session_key)
WHERE m.applied_position < s.head AND m.status = 'active'
"""


def count_behind(connection: psycopg.Connection[Any]) -> int:
    """Memories that have not applied all of their log."""
    return int(one(connection, _BEHIND))


def one(connection: psycopg.Connection[Any], query: str, values: Sequence[Any] = ()) -> Any:
    """Returns the only value of a query's only row."""
    row = connection.execute(query, values or None).fetchone()
    assert row is not None, "it counts or looks for what is there"
    return row[0]
