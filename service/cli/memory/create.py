"""`palimpsest memory create` and `memory rebuild`: a command for each kind, with its options."""

from typing import Annotated, Any

import typer

from palimpsest import Memory, MemoryInfo, Session
from service.cli.app import new_group
from service.cli.command import Json, command, new_request_id
from service.cli.kinds import KINDS
from service.cli.kinds.kind import KindCommands, Options
from service.cli.memory.output import memory_json, show_memory
from service.cli.output import CommandError, show, show_json
from service.cli.progress import follow_operation

NewName = Annotated[str, typer.Argument(help="The name of the new memory.")]

ExpiredLog = Annotated[
    bool,
    typer.Option(
        "--allow-expired-log",
        help="Read what remains of a log whose beginning has expired: what only expired chunks"
        " said is missing then.",
    ),
]


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    *others, last = KINDS
    create = new_group(f"Create a memory: {', '.join(others)} or {last}.")
    rebuild = new_group("Read the whole log again into a new memory beside the old one.")
    for kind in KINDS.values():
        command(create, kind.name, _create(kind))
        command(rebuild, kind.name, _rebuild(kind))
    memory.add_typer(create, name="create")
    memory.add_typer(rebuild, name="rebuild")


def _create(kind: KindCommands) -> Any:
    async def create(
        session: Session, name: NewName, options: Options, as_json: Json = False
    ) -> None:
        settings = options.settings()
        made = await kind.create(session, name, **settings, request_id=new_request_id())
        show_json(memory_json((await made.get()).info)) if as_json else show(made.id)

    create.__annotations__["options"] = kind.new_options
    create.__doc__ = kind.creating
    return create


def _rebuild(kind: KindCommands) -> Any:
    async def rebuild(
        memory: Memory,
        name: NewName,
        options: Options,
        allow_expired_log: ExpiredLog = False,
        as_json: Json = False,
    ) -> None:
        changes = options.settings()
        info = await memory_info(memory)
        if info.kind != kind.name:
            raise CommandError(
                f"{memory.id!r} is a {info.kind} memory: palimpsest memory rebuild {info.kind}"
            )
        operation = await kind.rebuild(
            memory, info, name, changes, allow_expired_log=allow_expired_log
        )
        info = await follow_operation(operation, "rebuilding")
        line = f"{info.id} is at revision {info.revision}, {kind.progress(info)}"
        show_memory(info, line, as_json)

    rebuild.__annotations__["options"] = kind.rebuild_options
    rebuild.__doc__ = f"""Read the whole log again into {kind.rebuilt}.

    What is not given is as in the old one (--memory). Ctrl-C ends the waiting only:
    `operation cancel` ends the rebuild.
    """
    return rebuild


async def memory_info(memory: Memory) -> MemoryInfo:
    """Returns a memory without its value."""
    listed = await memory.session.memories()
    found = next((one for one in listed if one.id == memory.id), None)
    return found or (await memory.get()).info
