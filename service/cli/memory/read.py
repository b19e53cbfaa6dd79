"""`palimpsest memory list`, `show` and `retry`."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import typer

from palimpsest import Client, MemoryInfo
from service.cli.command import (
    DEFAULT_NAME,
    LAST,
    AtRevision,
    Freshness,
    Json,
    MaybeSession,
    NamedMemory,
    Timeout,
    add_commands,
)
from service.cli.kinds import KINDS
from service.cli.memory.output import memory_json, problem_lines, status_of
from service.cli.output import CommandError, out, show, show_json, show_list


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    add_commands(memory, list_, show_, retry)


async def list_(
    client: Client,
    session: MaybeSession = None,
    status: Annotated[
        Literal["active", "stalled", "sealed", "waiting", "over_budget"] | None,
        typer.Option(help="Only those of this status."),
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="Of all sessions.")] = False,
    as_json: Json = False,
) -> None:
    """List the memories of a session; with --all, or with --status alone, those of all."""
    if session is not None and everywhere:
        raise CommandError("give --session or --all, not both")
    everywhere = session is None and (everywhere or status is not None)

    async def found() -> AsyncIterator[MemoryInfo]:
        if everywhere:
            async for info in client.memories(status=status):
                yield info
            return
        for info in await client.session(session or DEFAULT_NAME).memories(status=status):
            yield info

    columns = ("memory", "kind", "status", ">revision", ">applied", ">head")
    await show_list(
        found(),
        lambda info: [
            (
                *([info.session] if everywhere else []),
                *(info.id, info.kind, status_of(info)),
                *map(str, (info.revision, info.applied_position, info.head)),
                *(["; ".join(problem_lines(info))] if everywhere else []),
            )
        ],
        ("session", *columns, "cause") if everywhere else columns,
        as_json=as_json,
        to_json=memory_json,
    )


async def show_(
    memory: NamedMemory,
    freshness: Freshness,
    revision: AtRevision = None,
    position: Annotated[
        int | None,
        typer.Option(min=0, max=LAST, help="As it was when the log was read up to here."),
    ] = None,
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Show a memory as a tree, now, at a revision, or as of a position of the log."""
    state = await memory.get(
        revision=revision,
        position=position,
        **freshness.wanted(),
        timeout=timeout,
    )
    if as_json:
        at = {"revision": state.revision, "applied_position": state.applied_position}
        show_json(
            {**memory_json(state.info), **at, "value": state.value, "read_token": state.read_token}
        )
        return
    out.print(KINDS[state.info.kind].drawing(state))
    for line in problem_lines(state.info):
        show(line)


async def retry(
    client: Client,
    name: Annotated[str | None, typer.Argument(help="The memory's name.")] = None,
    session: MaybeSession = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All stalled memories, of all sessions or of --session.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Retry a stalled memory, or all of them with --all.

    A memory that waits for its model needs no retry: it continues by itself.
    """
    if everything and name is not None:
        raise CommandError("give a memory's name or --all, not both")
    if everything:
        retried = await client.retry_stalled(session or "")
        show_json({"retried": retried}) if as_json else show(f"{retried} try again")
        return
    memory = client.session(session or DEFAULT_NAME).memory(name or DEFAULT_NAME)
    retried = await memory.retry()
    done = "tries again" if retried else "was not stalled"
    show_json({"retried": int(retried)}) if as_json else show(f"{memory.id} {done}")
