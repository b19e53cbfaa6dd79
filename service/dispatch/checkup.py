"""What a checkup reads of the dispatch tables."""

from dataclasses import dataclass

import psycopg

from service.dispatch.counting import COUNTS, OF_JOBS
from service.dispatch.setup import DispatchMismatch, connection_options, verify

#: How long the server may take to let us in, in seconds.
CONNECT_SECONDS = 5

_LOOK = f"""
SELECT {COUNTS},
    (SELECT count(*) FROM procrastinate_workers
     WHERE last_heartbeat >= now() - make_interval(secs => %(silent)s)),
    (SELECT count(*) FROM procrastinate_workers
     WHERE last_heartbeat < now() - make_interval(secs => %(silent)s))
{OF_JOBS}
"""  # noqa: S608 - all of it is ours


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchFacts:
    """What waits, what runs, and who lives."""

    #: Hints that no worker has taken, and items in hand.
    queued: int
    running: int
    #: Age of the oldest hint that waits, in seconds.
    oldest_seconds: float
    #: Workers that said that they live, and workers that fell silent.
    workers: int
    silent: int
    #: What is wrong with the tables; empty when nothing is.
    problem: str


async def read_dispatch(url: str, *, dead_after_seconds: float) -> DispatchFacts:
    """Looks at the queue. Raises ConnectionError when it cannot."""
    try:
        problem = ""
        try:
            await verify(url)
        except DispatchMismatch as error:
            problem = str(error)
        async with await psycopg.AsyncConnection.connect(
            url, options=connection_options(), connect_timeout=CONNECT_SECONDS
        ) as connection:
            await connection.set_read_only(True)
            cursor = await connection.execute(_LOOK, {"silent": dead_after_seconds})
            row = await cursor.fetchone()
    except psycopg.Error as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConnectionError(line) from error
    assert row is not None, "an aggregate has a row"
    queued, running, oldest, workers, silent = row
    return DispatchFacts(
        queued=queued,
        running=running,
        oldest_seconds=oldest,
        workers=workers,
        silent=silent,
        problem=problem,
    )
