"""Commands for what a running service keeps: sessions and memories."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import palimpsest
from palimpsest import values
from service.cli.output import cut, out, show, show_json, tree_of
from service.cli.talk import DEFAULT_ADDRESS, DEFAULT_NAME, Address, Json, SessionName, run
from service.cli.texts import read_text


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    session = typer.Typer(no_args_is_help=True, help="Sessions: create, list, show.")
    session.command("create")(session_create)
    session.command("list")(session_list)
    session.command("show")(session_show)
    app.add_typer(session, name="session")
    memory = typer.Typer(no_args_is_help=True, help="Memories: create, list, show, log, retry.")
    memory.command("create")(memory_create)
    memory.command("list")(memory_list)
    memory.command("show")(memory_show)
    memory.command("log")(memory_log)
    memory.command("retry")(memory_retry)
    app.add_typer(memory, name="memory")


def session_create(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create a session."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            await client.create_session(name)
        show(name)

    run(work())


def session_list(address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    """List all sessions."""

    async def work() -> None:
        table = Table("session", "chunks", "bytes", "created", box=None, pad_edge=False)
        async with palimpsest.connect(address) as client:
            async for info in client.sessions():
                if as_json:
                    show_json(_session_json(info))
                table.add_row(
                    info.name,
                    f"{info.head:,}",
                    f"{info.content_bytes:,}",
                    f"{info.created_at:%Y-%m-%d %H:%M}",
                )
        if not as_json:
            out.print(table)

    run(work())


def _session_json(info: values.SessionInfo) -> dict[str, Any]:
    return {
        "session": info.name,
        "head": info.head,
        "content_bytes": info.content_bytes,
        "created_at": info.created_at.isoformat(),
    }


def session_show(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks.")] = 5,
    from_position: Annotated[int, typer.Option(min=1, help="The first of them.")] = 1,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a session and some of its chunks."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            session = client.session(name)
            info = await session.info()
            if as_json:
                show_json(_session_json(info))
            else:
                show(f"{info.name}: {info.head} chunks, {info.content_bytes:,} bytes")
            left = chunks
            async for chunk in session.chunks(from_position=from_position):
                if left <= 0:
                    break
                left -= 1
                text = chunk.text or " / ".join((chunk.observation, chunk.thought, chunk.action))
                if as_json:
                    show_json({"position": chunk.position, "kind": chunk.kind, "text": text})
                else:
                    show(f"  [{chunk.position}] {cut(text, 100)}")

    run(work())


def memory_create(
    name: Annotated[str, typer.Argument(help="The memory's name.")],
    schema: Annotated[Path, typer.Option(help="A file with the schema's class source.")],
    session: SessionName = DEFAULT_NAME,
    task: Annotated[str, typer.Option(help="What the memory is for.")] = "",
    question: Annotated[str, typer.Option(help="The question that it serves.")] = "",
    model: Annotated[str, typer.Option(help="Model as provider/name.")] = "",
    chunk_tokens: Annotated[int, typer.Option(min=0, help="Tokens a step; 0: default.")] = 0,
    skip_failures: Annotated[bool, typer.Option(help="Skip what fails for good.")] = False,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create a PRISM memory from a schema. The source is parsed, never run."""
    source = read_text(str(schema))

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            await client.session(session).create_memory(
                name,
                schema_source=source,
                task=task,
                question=question,
                model=model,
                chunk_tokens=chunk_tokens,
                skip_failures=skip_failures,
            )
        show(name)

    run(work())


def memory_list(
    session: SessionName = DEFAULT_NAME, address: Address = DEFAULT_ADDRESS, as_json: Json = False
) -> None:
    """List the memories of a session."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            found = await client.session(session).memories()
        table = Table("memory", "status", "revision", "applied", "head", box=None, pad_edge=False)
        for info in found:
            if as_json:
                show_json(_memory_json(info))
            table.add_row(
                info.name,
                str(info.status),
                str(info.revision),
                str(info.applied_position),
                str(info.head),
            )
        if not as_json:
            out.print(table)

    run(work())


def _memory_json(info: values.MemoryInfo) -> dict[str, Any]:
    return {
        "memory": info.name,
        "status": str(info.status),
        "revision": info.revision,
        "applied_position": info.applied_position,
        "head": info.head,
        "stall": None
        if info.stall is None
        else {"position": info.stall.position, "cause": info.stall.cause},
    }


def memory_show(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    revision: Annotated[int | None, typer.Option(min=0, help="As it was then.")] = None,
    after: Annotated[str, typer.Option(help="A token: what it stands for is applied.")] = "",
    applied: Annotated[bool, typer.Option(help="Wait until the whole log is applied.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 30.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a memory as a tree, now or at an earlier revision."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            state = await memory.get(
                revision=revision, after=after, fully_applied=applied, timeout=timeout
            )
        if as_json:
            head = _memory_json(state.info)
            at = {"revision": state.revision, "applied_position": state.applied_position}
            show_json({**head, **at, "value": state.value, "token": state.token})
            return
        title = (
            f"{name} at revision {state.revision}:"
            f" {state.applied_position} of {state.info.head} chunks applied"
        )
        out.print(tree_of(title, state.value))
        if state.info.stall is not None:
            show(f"stalled at position {state.info.stall.position}: {state.info.stall.cause}")

    run(work())


def memory_log(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Show what the schema refused instead.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show the amendments that made a memory, oldest first."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            if rejected:
                async for one in memory.rejections():
                    if as_json:
                        show_json({"revision": one.revision, "reason": one.reason})
                    else:
                        show(f"r{one.revision} {one.reason}: {cut(one.proposal, 100)}")
                return
            async for change in memory.amendments():
                if as_json:
                    show_json(amendment_json(change))
                else:
                    show(amendment_line(change))

    run(work())


def amendment_json(change: values.Amendment) -> dict[str, Any]:
    """An amendment as plain JSON."""
    return {
        "revision": change.revision,
        "from_position": change.from_position,
        "to_position": change.to_position,
        "op": change.op,
        "path": change.path,
        "value": change.value,
    }


def amendment_line(change: values.Amendment) -> str:
    """An amendment on one line."""
    first, last = change.from_position + 1, change.to_position
    where = f"[{first}]" if first == last else f"[{first}-{last}]"
    value = json.dumps(change.value, ensure_ascii=False)
    return f"r{change.revision} {where} {change.op} {change.path} {cut(value, 100)}"


def memory_retry(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Let a stalled memory try again."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            info = await client.session(session).memory(name).retry()
        show(f"{name} is {info.status} at position {info.applied_position}")

    run(work())
