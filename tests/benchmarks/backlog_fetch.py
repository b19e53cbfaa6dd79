"""How a worker gets its next item: the one part of `backlog` that knows how dispatch is made.

`fetcher` gives what fits the code beside it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import UUID

import psycopg

from service.dispatch.procrastinate import _HINT
from service.dispatch.setup import TASK, connection_options
from tests.benchmarks.load_stack import one

#: Items that are hinted at by one statement.
BATCH = 1000
#: Session, id and tenant of a memory.
Memory = tuple[UUID, UUID, UUID]


class Fetcher(Protocol):
    """What a worker's connection does, without its worker."""

    def add(self, memories: Sequence[Memory]) -> None:
        """Tells workers of memories that have work, as an append does."""
        ...

    def times(self, count: int) -> list[float]:
        """Fetches so often, each time from the same queue; seconds that each fetch took."""
        ...


_FETCH = """
SELECT id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name,
    attempts, worker_id
FROM procrastinate_fetch_job_v2(%s::varchar[], %s)
"""


class _Procrastinate:
    """The queue of procrastinate; its plans are the connection's, as a worker's are."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def add(self, memories: Sequence[Memory]) -> None:
        """See `Fetcher`."""
        for first in range(0, len(memories), BATCH):
            some = memories[first : first + BATCH]
            locks = [f"memory:{key}:{identity}" for key, identity, _ in some]
            args = [_arguments(memory) for memory in some]
            priorities = [0] * len(some)
            self._connection.execute(
                _HINT, {"task": TASK, "locks": locks, "args": args, "priorities": priorities}
            )

    def times(self, count: int) -> list[float]:
        """See `Fetcher`."""
        took: list[float] = []
        # Of this while only: workers forget those that fall silent.
        worker = one(self._connection, "SELECT * FROM procrastinate_register_worker_v1()")
        for _ in range(count):
            with self._connection.transaction(force_rollback=True):
                began = time.perf_counter()
                self._connection.execute(_FETCH, ([TASK], worker))
                took.append(time.perf_counter() - began)
        self._connection.execute("SELECT procrastinate_unregister_worker_v1(%s)", (worker,))
        return took


def _arguments(memory: Memory) -> str:
    key, identity, tenant_id = memory
    named = {"tenant_id": tenant_id, "session_key": key, "item_id": identity}
    return json.dumps({"kind": "memory", **{name: str(value) for name, value in named.items()}})


@contextmanager
def fetcher(url: str) -> Iterator[Fetcher]:
    """A fetcher on the database at `url`, in the role of our processes."""
    with psycopg.connect(url, autocommit=True, options=connection_options()) as connection:
        yield _Procrastinate(connection)
