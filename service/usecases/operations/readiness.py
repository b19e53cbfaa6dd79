"""Watches, without flapping, whether this process can reach its database."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from storage.engine import database_state
from storage.engine.database import Database
from storage.engine.errors import ReadOnly, StorageError

_log = structlog.get_logger("palimpsest.readiness")

#: How long a probe may take, in seconds.
PROBE_TIMEOUT_SECONDS = 2.0
#: Probes in a row that must fail before a process counts as not ready …
FAILURES = 3
#: … and succeed before it counts as ready again.
SUCCESSES = 2
STARTING = "it is starting"
STOPPING = "it is stopping"

Listener = Callable[[bool], Awaitable[None]]


@dataclass(slots=True)
class Readiness:
    """The results of one process's probes; ready from the beginning."""

    ready: bool = True
    #: Why the newest probe failed; empty when it did not.
    trouble: str = ""
    #: Probes in a row that contradict `ready`.
    _contrary: int = 0

    def note(self, trouble: str) -> bool:
        """Notes a probe, with its trouble or an empty string; returns whether `ready` changed."""
        self.trouble = trouble
        if self.ready == (not trouble):
            self._contrary = 0
            return False
        self._contrary += 1
        if self._contrary < (FAILURES if self.ready else SUCCESSES):
            return False
        self.ready, self._contrary = not self.ready, 0
        return True


class ReadinessWatch:
    """Probes the database of one process, through a connection that nothing else uses.

    A burst that takes every connection of the process must not make it count as not ready.
    """

    def __init__(self, database: Database, stop: asyncio.Event, *, probe_seconds: float) -> None:
        """`database`: a pool of one connection. `stop`: set when the process is to stop.
        `probe_seconds`: between two probes."""
        self._database = database
        self._stop = stop
        self._probe_seconds = probe_seconds
        self._readiness = Readiness()
        self._has_begun = False
        self._listener: Listener | None = None

    @property
    def cause(self) -> str:
        """Returns why the process is not ready; empty when it is."""
        if self._stop.is_set():
            return STOPPING
        if not self._has_begun:
            trouble = self._readiness.trouble
            return f"{STARTING}: {trouble}" if trouble else STARTING
        return "" if self._readiness.ready else self._readiness.trouble

    async def begin(self, listener: Listener | None = None) -> None:
        """Marks the process as accepting work, having reached its database.

        `listener` is called with whether the database is there: now, and at each change.
        """
        self._has_begun, self._listener = True, listener
        # What was missing until now is there.
        self._readiness = Readiness()
        if listener is not None:
            await listener(self._readiness.ready)

    async def run(self) -> None:
        """Probes until it is cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(self._probe_seconds)

    async def probe(self) -> None:
        """Probes once."""
        trouble = await self._trouble()
        if not self._readiness.note(trouble):
            return
        if trouble:
            _log.warning("not ready", cause=trouble)
        else:
            _log.info("ready again")
        if self._listener is not None:
            await self._listener(self._readiness.ready)

    async def _trouble(self) -> str:
        bound = asyncio.timeout(PROBE_TIMEOUT_SECONDS)
        try:
            async with bound:
                await database_state.check_writable(self._database)
        except TimeoutError:
            return f"the database did not answer within {PROBE_TIMEOUT_SECONDS:g} s"
        except ReadOnly as error:
            return str(error)
        except StorageError as error:
            return f"the database cannot be reached: {error}"
        except Exception as error:
            # Probing must outlive whatever one probe runs into: what it is, is the trouble.
            _log.exception("a probe failed")
            return f"the database could not be probed: {type(error).__name__}"
        return ""
