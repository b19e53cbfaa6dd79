"""How a worker gets its next item: the one part of `backlog` that knows how dispatch is made."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from service.dispatch.turns import Turns
from storage.memories import queue
from storage.tables import SWEEPER_ROLE


class Fetcher:
    """A worker's connection without its worker; its plans are the connection's, as a worker's."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def times(self, count: int) -> list[float]:
        """Takes one item so often, each time of the same queue; seconds that each took."""
        turns, took = Turns(concurrency=16), []
        values = queue.take_values(uuid4(), done=(), scan=turns.scan(1, ()))
        role = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(SWEEPER_ROLE))
        for _ in range(count):
            with self._connection.transaction(force_rollback=True):
                self._connection.execute(role)
                began = time.perf_counter()
                self._connection.execute(queue.TAKE, values, prepare=True)
                took.append(time.perf_counter() - began)
        return took


@contextmanager
def fetcher(url: str) -> Iterator[Fetcher]:
    """Yields a fetcher on the database at `url`, in the role of our processes."""
    with psycopg.connect(url, autocommit=True, options="-c role=palimpsest_app") as connection:
        yield Fetcher(connection)
