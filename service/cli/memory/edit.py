"""Commands that change a memory without new chunks: `palimpsest memory set`, `fold` and others."""

import json
from functools import partial
from typing import Annotated, Any

import typer

from palimpsest import Client, Edit, Edited, Memory, PalimpsestError
from service.cli.command import (
    DEFAULT_NAME,
    LAST,
    Json,
    MissingOk,
    NamedMemory,
    PathArgument,
    SessionName,
    add_commands,
    new_request_id,
)
from service.cli.files import read_schema
from service.cli.kinds import KINDS
from service.cli.memory.create import memory_info
from service.cli.memory.output import amendment_line, memory_json, show_memory
from service.cli.operation import operation_json
from service.cli.output import CommandError, plain_json, show, show_json
from service.cli.progress import follow_operation

Expect = Annotated[
    int | None,
    typer.Option("--expect", min=0, max=LAST, help="Only if this is the newest revision."),
]
Comment = Annotated[str, typer.Option(help="A note, such as the reason; kept with the revision.")]


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    add_commands(memory, set_, unset, rollback, fold, consolidate, update, delete, flush)


async def set_(
    memory: Memory,
    path: PathArgument,
    value: Annotated[str, typer.Argument(help="JSON; what is no JSON is a text.")],
    expect: Expect = None,
    comment: Comment = "",
    as_json: Json = False,
) -> None:
    """Put a value into a memory by hand.

    The value is JSON. What is no JSON is a text, and so is JSON that the schema refuses
    at that path but would take as a text: 1984 is a number where a number belongs, and
    a text where a text does. Write '"null"' for the text null.
    """
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        parsed = value
    revise = partial(memory.edit, expected_revision=expect, comment=comment)
    try:
        revised = await revise([Edit.put(path, parsed)], request_id=new_request_id())
    except PalimpsestError as refused:
        if refused.reason != "EDIT_INVALID" or isinstance(parsed, str):
            raise
        try:
            revised = await revise([Edit.put(path, value)], request_id=new_request_id())
        except PalimpsestError as as_text:
            # What is wrong with it as JSON says more.
            raise (refused if as_text.reason == "EDIT_INVALID" else as_text) from None
    _show_revised(revised, as_json)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def unset(
    memory: Memory,
    path: PathArgument,
    expect: Expect = None,
    comment: Comment = "",
    as_json: Json = False,
) -> None:
    """Remove a value from a memory by hand; later elements of a list move up."""
    revised = await memory.edit(
        [Edit.remove(path)],
        expected_revision=expect,
        comment=comment,
        request_id=new_request_id(),
    )
    _show_revised(revised, as_json)


def _show_revised(revised: Edited, as_json: bool) -> None:
    if as_json:
        made = plain_json(revised.amendments)
        show_json({**memory_json(revised.info), "amendments": made})
        return
    for one in revised.amendments:
        show(amendment_line(one))
    if not revised.amendments:
        show(f"nothing changes at revision {revised.info.revision}")


async def rollback(
    memory: Memory,
    revision: Annotated[
        int, typer.Argument(min=0, max=LAST, help="The revision whose state returns.")
    ],
    expect: Expect = None,
    comment: Comment = "",
    as_json: Json = False,
) -> None:
    """Restore the state of an earlier revision, as a new one. The log is not read again."""
    info = await memory.rollback(
        revision, expected_revision=expect, comment=comment, request_id=new_request_id()
    )
    done = f"{memory.id} is at revision {info.revision}, as it was at revision {revision}"
    show_memory(info, done, as_json)


async def fold(memory: NamedMemory, as_json: Json = False) -> None:
    """Write the amendments into a new base, so that prompts show each value once."""
    made = await memory.fold()
    done = "is folded" if made.folded else "has nothing to fold"
    line = f"{memory.id} {done} at revision {made.info.revision}"
    show_memory(made.info, line, as_json, folded=made.folded)


async def consolidate(
    memory: NamedMemory,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done.")] = False,
    as_json: Json = False,
) -> None:
    """Request a consolidation: the model merges and shortens, once the log is read."""
    operation = await memory.consolidate()
    if not wait:
        line = f"{memory.id} is to be consolidated by operation {operation.id}"
        show_json(operation_json(operation.info)) if as_json else show(line)
        return
    # A command that waits does not wait for more chunks as well.
    await memory.flush()
    info = await follow_operation(operation, "consolidating")
    show_memory(info, f"{memory.id} is consolidated, at revision {info.revision}", as_json)


async def update(
    memory: NamedMemory,
    schema: Annotated[
        str | None,
        typer.Option(help="A file with a schema that has more fields; the value stays."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model as provider/name; empty: the service's default.")
    ] = None,
    navigation_model: Annotated[
        str | None, typer.Option(help="Of a tree: the model for questions; empty: its model.")
    ] = None,
    expect: Expect = None,
    comment: Comment = "",
    as_json: Json = False,
) -> None:
    """Give a live memory a schema with more fields, or another model.

    What was read before is not read again: `memory rebuild` does that. A memory that waits for
    its model tries again with the new one.
    """
    if schema is None and model is None and navigation_model is None:
        raise CommandError("give --schema, --model or --navigation-model")
    kind = KINDS[(await memory_info(memory)).kind]
    given = {"schema": schema, "model": model, "navigation_model": navigation_model}
    changes: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    for name in changes:
        if name not in kind.changeable:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{memory.id!r} is a {kind.name} memory: it has no {option}")
    if schema is not None:
        changes["schema"] = read_schema(schema)
    info = await kind.update(
        memory, changes, comment=comment, expected_revision=expect, request_id=new_request_id()
    )
    show_memory(info, f"{memory.id} is updated, at revision {info.revision}", as_json)


async def delete(
    client: Client,
    name: Annotated[str, typer.Argument(help="The memory.")],
    session: SessionName = DEFAULT_NAME,
    missing_ok: MissingOk = False,
) -> None:
    """Delete a memory with its history. This cannot be undone; the log stays."""
    memory = client.session(session).memory(name)
    await memory.delete(missing_ok=missing_ok, request_id=new_request_id())
    show(f"{name} is deleted")


async def flush(
    client: Client,
    name: Annotated[str, typer.Argument(help="The memory; without one: all of them.")] = "",
    session: SessionName = DEFAULT_NAME,
    as_json: Json = False,
) -> None:
    """End the wait for more chunks: what is in the log is read now.

    Prints a token; `memory show --after TOKEN` waits until that is done.
    """
    named = client.session(session)
    flushed = await (named.memory(name).flush() if name else named.flush())
    show_json(flushed) if as_json else show(f"token {flushed.read_token}")
