"""Commands for sessions."""

from typing import Annotated, Any

import typer
from rich.table import Table

import palimpsest
from palimpsest import values
from service.cli.output import cut, show, show_json, show_table
from service.cli.talk import DEFAULT_ADDRESS, LAST, Address, Json, run


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    session = typer.Typer(no_args_is_help=True, help="Sessions: create, list, show.")
    session.command("create")(session_create)
    session.command("list")(session_list)
    session.command("show")(session_show)
    app.add_typer(session, name="session")


def session_create(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    language: Annotated[
        str,
        typer.Option(
            help="What its text is searched in: english, german, simple (words as they are) …;"
            " default: the service's."
        ),
    ] = "",
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create a session."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            await client.create_session(name, language=language)
        show(name)

    run(work())


def session_list(address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    """List all sessions."""

    async def work() -> None:
        table = Table("session", box=None, pad_edge=False)
        for name in ("chunks", "bytes", "created"):
            table.add_column(name, justify="right")
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
            show_table(table)

    run(work())


def _session_json(info: values.SessionInfo) -> dict[str, Any]:
    return {
        "session": info.name,
        "head": info.head,
        "content_bytes": info.content_bytes,
        "created_at": info.created_at.isoformat(),
        "language": info.language,
    }


def session_show(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks.")] = 5,
    from_position: Annotated[int, typer.Option(min=1, max=LAST, help="The first of them.")] = 1,
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
            last = from_position + chunks - 1
            async for chunk in session.chunks(from_position=from_position, to_position=last):
                text = chunk.text or " / ".join(part for _, part in chunk.step_parts)
                if as_json:
                    show_json({"position": chunk.position, "kind": chunk.kind, "text": text})
                else:
                    show(f"  [{chunk.position}] {cut(text, 100)}")

    run(work())
