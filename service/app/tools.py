"""The tools for models of an API server, which are loaded when a client first asks for them."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.rpc.pipeline import Handler
from service.settings.config import Config

if TYPE_CHECKING:
    from service.mcp.http import ToolsApplication


def tools_of(
    config: Config, methods: Mapping[str, Handler], check: Handler
) -> "ToolsOnDemand | None":
    """Returns the tools of a server; None where it serves none."""
    return ToolsOnDemand(config, methods, check) if config.mcp_tools else None


class ToolsOnDemand:
    """An ASGI application: `service.mcp.http`, which takes half a second to import."""

    def __init__(self, config: Config, methods: Mapping[str, Handler], check: Handler) -> None:
        self._config = config
        self._methods = methods
        self._check = check
        self._lock = asyncio.Lock()
        self._application: ToolsApplication | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves a request; part of ASGI."""
        async with self._lock:
            if self._application is None:
                application = await asyncio.to_thread(self._made)
                await application.start()
                self._application = application
        await self._application(scope, receive, send)

    async def end_streams(self) -> None:
        """Ends the streams of changes: before the server waits for what it still serves."""
        if self._application is not None:
            await self._application.end_streams()

    async def stop(self) -> None:
        """Ends what serves requests."""
        if self._application is not None:
            await self._application.stop()

    def _made(self) -> "ToolsApplication":
        from service.mcp.http import ToolsApplication

        config = self._config
        return ToolsApplication(self._methods, self._check, config.limits, config.mcp_tools)
