"""`palimpsest mcp`: tools for the model of a program that speaks the Model Context Protocol."""

import asyncio
from typing import Annotated

import typer

from palimpsest import NotFound, PalimpsestError, Session
from service.cli.app import new_app, run_app
from service.cli.command import command
from service.cli.output import CommandError, say
from service.settings.mcp_tools import ADMIN_TOOLS, CALL_SECONDS, DEFAULT_TOOLS, checked


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "mcp", mcp, timeout=CALL_SECONDS)


def main() -> None:
    """Runs this command, and loads no other."""
    app = new_app()
    # A group: Typer leaves out the name of a command that is alone.
    app.callback()(_nothing)
    register(app)
    run_app(app, PalimpsestError)


def _nothing() -> None:
    return None


async def mcp(
    session: Session,
    thread: Annotated[
        str, typer.Option(help="What is remembered belongs to it, and only that is forgotten.")
    ] = "",
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Serve this tool; may be repeated. Default: {', '.join(DEFAULT_TOOLS)}. Others:"
            f" {', '.join(ADMIN_TOOLS)}."
        ),
    ] = None,
) -> None:
    """Serve the memory of a session as tools, over standard input and output (MCP).

    A program that speaks the Model Context Protocol starts it: docs/guides/mcp.md has the lines
    for Claude Code, Claude Desktop, Cursor and VS Code. It needs a running service, such as that of
    `palimpsest up`; while that is away, the tools say so.
    """
    # The protocol's library takes half a second to import.
    from service.mcp.scope import ToolScope
    from service.mcp.stdio import serve_stdio

    try:
        names = checked(tuple(tool or DEFAULT_TOOLS))
    except ValueError as error:
        raise CommandError(str(error)) from error
    checking = asyncio.create_task(_check(session))
    await serve_stdio(ToolScope(session=session, thread=thread), names)
    checking.cancel()


async def _check(session: Session) -> None:
    """Writes to the log of the program that started this one if there is no service."""
    try:
        await session.info()
    except NotFound:
        # The first text that is remembered creates it.
        return
    except PalimpsestError as error:
        say(f"the tools have no service yet: {error}")
