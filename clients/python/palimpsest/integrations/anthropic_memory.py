"""Anthropic's memory tool (`pip install palimpsest-sdk[anthropic]`): files of a memory."""

import asyncio
from typing import Any

from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
from anthropic.types.beta import BetaCacheControlEphemeralParam

from palimpsest._errors import PalimpsestError
from palimpsest.integrations._memory_commands import CommandRefused
from palimpsest.integrations.memory_files import MemoryFiles, said
from palimpsest.sync import Session


class PalimpsestMemoryTool(BetaAbstractMemoryTool):
    """The memory tool, for `client.beta.messages.tool_runner`.

        memory = PalimpsestMemoryTool(palimpsest_client.session("alice-files"))
        runner = client.beta.messages.tool_runner(tools=[memory], ...)

    See `palimpsest.integrations.memory_files.MemoryFiles`.
    """

    def __init__(
        self,
        session: Session,
        memory: str = "files",
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = MemoryFiles(session, memory)

    def _run(self, command: Any) -> str:
        return _run(self._files, command)

    view = create = str_replace = insert = delete = rename = _run

    def clear_all_memory(self) -> str:
        """Removes all files, as one revision."""
        return self._files.clear()


class AsyncPalimpsestMemoryTool(BetaAsyncAbstractMemoryTool):
    """As `PalimpsestMemoryTool`, for an `AsyncAnthropic` client."""

    def __init__(
        self,
        session: Session,
        memory: str = "files",
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = MemoryFiles(session, memory)

    async def _run(self, command: Any) -> str:
        return await asyncio.to_thread(_run, self._files, command)

    view = create = str_replace = insert = delete = rename = _run

    async def clear_all_memory(self) -> str:
        """Removes all files, as one revision."""
        return await asyncio.to_thread(self._files.clear)


def _run(files: MemoryFiles, command: Any) -> str:
    try:
        return files.run(command.to_dict())
    except CommandRefused as error:
        raise ToolError(str(error)) from error
    except (PalimpsestError, ValueError) as error:
        raise ToolError(said(error)) from error
