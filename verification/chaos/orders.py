"""Orders to a process of a run: JSON lines over a Unix socket, one answer for each."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: How long an order may take.
ORDER_SECONDS = 30.0


async def take(path: Path, do: Callable[[dict[str, Any]], dict[str, Any]]) -> asyncio.Server:
    """Does what comes at `path` from now on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(do(json.loads(line))).encode() + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(serve, path)


class Orders:
    """Gives orders to a process; not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ORDER_SECONDS)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw", encoding="utf-8")

    def give(self, **order: Any) -> dict[str, Any]:
        """Has an order done; what came of it."""
        self._lines.write(json.dumps(order) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"who takes orders is gone, or could not: {order}")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        """Leaves the process alone."""
        self._lines.close()
        self._socket.close()
