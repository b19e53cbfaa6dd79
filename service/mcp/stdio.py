"""Serves the tools to one client over standard input and output, which started this process."""

from collections.abc import Collection

from mcp.server.stdio import stdio_server

from service.mcp.scope import ToolScope
from service.mcp.server import new_server


async def serve_stdio(scope: ToolScope, names: Collection[str]) -> None:
    """Serves until standard input ends."""
    server = new_server(lambda _: scope, names)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
