"""Commands that change a memory without new chunks: `palimpsest memory set`, `fold` and others."""

import asyncio
import json
from functools import partial
from typing import Annotated, Any

import typer

from palimpsest import Client, Edit, Edited, Memory, MemoryInfo, PalimpsestError
from service.cli.command import DEFAULT_NAME, LAST, Json, NamedMemory, SessionName, command
from service.cli.files import read_schema
from service.cli.memory.output import amendment_line, memory_json
from service.cli.output import plain_json, show, show_json
from service.cli.progress import LOOK_SECONDS, Bar, refuse_stopped

PathArgument = Annotated[str, typer.Argument(help="$['a']['b'][0], $.'a'.'b'[0] or /a/b/0.")]
Expect = Annotated[
    int | None,
    typer.Option("--expect", min=0, max=LAST, help="Only if this is the newest revision."),
]
Comment = Annotated[str, typer.Option(help="A note, such as the reason; kept with the revision.")]


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    command(memory, "set", set_)
    command(memory, "unset", unset)
    command(memory, "rollback", rollback)
    command(memory, "fold", fold)
    command(memory, "consolidate", consolidate)
    command(memory, "schema", schema)
    command(memory, "model", model)
    command(memory, "flush", flush)


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
        revised = await revise([Edit.put(path, parsed)])
    except PalimpsestError as refused:
        if refused.reason != "EDIT_INVALID" or isinstance(parsed, str):
            raise
        try:
            revised = await revise([Edit.put(path, value)])
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
    """Take a value out of a memory by hand; later elements of a list move up."""
    edits = [Edit.remove(path)]
    _show_revised(await memory.edit(edits, expected_revision=expect, comment=comment), as_json)


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
    info = await memory.rollback(revision, expected_revision=expect, comment=comment)
    done = f"{memory.name} is at revision {info.revision}, as it was at revision {revision}"
    _show_info(info, done, as_json)


def _show_info(info: MemoryInfo, line: str, as_json: bool, **more: Any) -> None:
    if as_json:
        show_json({**memory_json(info), **more})
    else:
        show(line)


async def fold(memory: NamedMemory, as_json: Json = False) -> None:
    """Write the amendments into a new base, so that prompts show each value once."""
    made = await memory.fold()
    done = "is folded" if made.folded else "has nothing to fold"
    line = f"{memory.name} {done} at revision {made.info.revision}"
    _show_info(made.info, line, as_json, folded=made.folded)


async def consolidate(
    memory: NamedMemory,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is made.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for a pass that merges and shortens, once what is in the log now is read."""
    info = await memory.consolidate()
    line = f"{memory.name} is consolidated after position {info.consolidate_position}"
    if wait:
        # A command that waits does not wait for more chunks as well.
        await memory.flush()
        info = await _consolidated(memory, info)
        line = f"{memory.name} is consolidated, at revision {info.revision}"
    _show_info(info, line, as_json)


async def _consolidated(memory: Memory, info: MemoryInfo) -> MemoryInfo:
    with Bar("revising", info.consolidate_position or 0) as bar:
        while info.consolidate_position is not None:
            bar.show(info)
            refuse_stopped(info)
            await asyncio.sleep(LOOK_SECONDS)
            info = (await memory.get()).info
    return info


async def schema(
    memory: Memory,
    file: Annotated[str, typer.Argument(help="The new schema: class source, or JSON Schema.")],
    expect: Expect = None,
    comment: Comment = "",
    as_json: Json = False,
) -> None:
    """Give a live memory a schema with more fields; its value stays.

    What was read before is not read again: `memory rebuild prism` does that.
    """
    shape = read_schema(file)
    info = await memory.update_schema(shape, expected_revision=expect, comment=comment)
    line = f"{memory.name} has the schema at revision {info.revision}"
    _show_info(info, line, as_json)


async def model(
    memory: Memory,
    model: Annotated[str, typer.Argument(help="provider/name; empty: the service's default.")],
    as_json: Json = False,
) -> None:
    """Give a live memory another model; one that waits for its model tries again with it."""
    info = await memory.update_model(model)
    _show_info(info, f"{memory.name} is kept by {model or 'the default model'}", as_json)


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
    show_json(flushed) if as_json else show(f"token {flushed.token}")
