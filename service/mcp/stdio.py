"""Serves the tools to one client over standard input and output, which started this process."""

import math
from collections.abc import Collection

from mcp.server.stdio import stdio_server

from service.mcp.scope import ToolScope
from service.mcp.server import new_server
from service.mcp.subscriptions import Subscriptions


async def serve_stdio(scope: ToolScope, names: Collection[str]) -> None:
    """Serves until standard input ends."""
    # A service that is away comes back, and the program need not be restarted.
    kept = Subscriptions(give_up_seconds=math.inf)
    server = new_server(lambda _: scope, names, kept.subscriber)
    async with stdio_server() as (received, sent):
        try:
            await server.run(received, sent, server.create_initialization_options())
        finally:
            await kept.close()
