"""Answers `palimpsest health` in the process that is asked."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from service.settings.files import is_ours

#: Longest cause that is reported: in any letters it fits what `service.app.health` reads.
MAX_CAUSE_CHARACTERS = 600

_log = structlog.get_logger("palimpsest.health")


@asynccontextmanager
async def health_socket(run_dir: Path, kind: str, cause: Callable[[], str]) -> AsyncIterator[None]:
    """Answers each connection with why this process is not ready; empty when it is.

    A process that cannot have its socket goes on without: that is logged, and probes fail.
    """
    path = run_dir / f"{kind}-{os.getpid()}.sock"

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"cause": cause()[:MAX_CAUSE_CHARACTERS]}).encode())
        writer.close()

    try:
        server = await asyncio.start_unix_server(answer, sock=_bound(path))
    except OSError as error:
        _log.warning("health cannot be asked for", path=str(path), cause=str(error))
        yield
        return
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    """Returns a socket at `path`, in a folder of our own. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(path.parent):
        raise PermissionError(f"{path.parent} is not a folder of this user alone (mode 0700)")
    # What a process of the same id left behind.
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    return bound
