"""Removes recorded exchanges with models once what they were about is erased.

A process with PALIMPSEST_RECORD writes prompts and replies to its own disk, where no other one
reaches them. So it compares the sessions of its files with the erasures of the database.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

import structlog

from service.llm.providers import recording
from service.llm.providers.recording import RecordedFile
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log import erasures

_log = structlog.get_logger("palimpsest")

#: How often files and erasures are compared.
SWEEP_SECONDS = 30.0


class RecordedExchanges:
    """The exchanges that this process, and others on its machine, have recorded in a folder."""

    def __init__(self, database: Database, folder: Path, *, call_seconds: float) -> None:
        """`call_seconds`: a call takes no longer, and is recorded at its end."""
        self._database = database
        self._folder = folder
        self._call_seconds = call_seconds

    async def run(self) -> None:
        """Compares files and erasures, until it is cancelled."""
        while True:
            try:
                await self.sweep()
            except (StorageError, OSError) as error:
                _log.warning("cannot remove recorded exchanges of erased texts", cause=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> int:
        """Removes the files of what is erased; returns how many. Raises StorageError, OSError."""
        tenants = defaultdict[UUID, list[RecordedFile]](list)
        for one in await asyncio.to_thread(recording.recorded_files, self._folder):
            tenants[one.tenant_id].append(one)
        removed = 0
        for tenant, files in tenants.items():
            name = "recorded-exchanges"
            async with self._database.transaction(tenant, name=name) as tx:
                erased = await erasures.erased_until(tx, {one.session_key for one in files})
            gone = [one.path for one in files if self._is_erased(one, erased)]
            await asyncio.to_thread(_remove, gone)
            removed += len(gone)
        return removed

    def _is_erased(self, file: RecordedFile, erased: Mapping[UUID, datetime | None]) -> bool:
        if file.session_key not in erased:
            return False
        until = erased[file.session_key]
        return until is None or file.seconds <= until.timestamp() + self._call_seconds


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
