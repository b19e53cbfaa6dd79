"""How a worker gets its next items: the one part of `backlog` that knows how dispatch is made."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from service.config import Config
from service.dispatch.turns import Turns
from storage import queue
from storage.database import Database
from storage.queue import Done

#: Places of a worker by default.
CONCURRENCY = Config().worker_concurrency


class Fetcher:
    """What a worker's connection does, without its worker; its plans are the connection's."""

    def __init__(self, runner: asyncio.Runner, database: Database) -> None:
        self._runner = runner
        self._database = database

    def times(self, count: int) -> list[float]:
        """Takes an item so often, and gives it back; seconds that each taking took."""
        return self._runner.run(self._times(count))

    async def _times(self, count: int) -> list[float]:
        took: list[float] = []
        worker, turns = uuid4(), Turns(CONCURRENCY)
        for _ in range(count):
            began = time.perf_counter()
            taken = await queue.take(
                self._database,
                worker,
                done=(),
                looks=turns.looks(1, ()),
                total=1,
                bound=turns.bound(()),
            )
            took.append(time.perf_counter() - began)
            turns.count(taken)
            done = [Done(item=item, more=True) for _, item in taken.items]
            await queue.take(self._database, worker, done=done, looks=(), total=0)
        return took


@contextmanager
def fetcher(url: str) -> Iterator[Fetcher]:
    """A fetcher on the database at `url`, in the role of our processes."""
    with asyncio.Runner() as runner:
        database = Database.connect(url, pool_size=1, name="bench")
        try:
            yield Fetcher(runner, database)
        finally:
            runner.run(database.close())
