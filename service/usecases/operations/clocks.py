"""What this process's clock says, told to whoever looks after the deployment."""

import asyncio
import socket
import time
from collections.abc import Callable
from uuid import uuid4

import structlog

from service.domain.operations.doctor import SILENT_SECONDS
from storage.engine import clocks
from storage.engine.database import Database
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.clocks")

#: How often a process compares its clock with the database's.
NOTE_SECONDS = 30.0
#: Rows of processes that are gone are kept for so long.
KEPT_SECONDS = 3600.0
assert NOTE_SECONDS < SILENT_SECONDS / 2, "one that was lost is no silence"


class ProcessClock:
    """The clock of one process, from its start on."""

    def __init__(
        self, database: Database, kind: str, *, now: Callable[[], float] = time.time
    ) -> None:
        """`kind`: what the process does, such as "work". `now`: seconds since 1970."""
        self._database = database
        self._kind = kind
        self._now = now
        self._process_id = uuid4()

    async def run(self) -> None:
        """Notes what the clock says again and again, until it is cancelled."""
        while True:
            try:
                await self.note()
            except StorageError as error:
                _log.warning("clock not compared", cause=str(error))
            await asyncio.sleep(NOTE_SECONDS)

    async def note(self) -> None:
        """Notes it once, and forgets processes that are long gone. Raises StorageError."""
        async with self._database.without_tenant(name="clocks") as tx:
            await clocks.note(
                tx,
                self._process_id,
                kind=self._kind,
                host=socket.gethostname(),
                now=self._now,
            )
            await clocks.forget(tx, silent_seconds=KEPT_SECONDS)
