"""Commands that change a memory without new chunks: by hand, or by reading the log again."""

import asyncio
import json
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import Edit, values
from palimpsest.errors import InvalidArgument
from service.cli import rebuilding
from service.cli.lines import amendment_json, amendment_line, memory_json, refuse_stopped
from service.cli.output import show, show_json
from service.cli.progress import LOOK_SECONDS, Bar
from service.cli.talk import (
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    LAST,
    Address,
    Json,
    MemoryArgument,
    MemoryName,
    SessionName,
    run,
)
from service.cli.texts import read_schema

PathArgument = Annotated[str, typer.Argument(help="$['a']['b'][0], $.'a'.'b'[0] or /a/b/0.")]
Expect = Annotated[
    int | None,
    typer.Option("--expect", min=0, max=LAST, help="Only if this is the newest revision."),
]
Comment = Annotated[str, typer.Option(help="Who or why; kept with the revision.")]


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    memory.command("set")(memory_set)
    memory.command("unset")(memory_unset)
    memory.command("rollback")(memory_rollback)
    memory.command("fold")(memory_fold)
    memory.command("consolidate")(memory_consolidate)
    memory.command("schema")(memory_schema)
    memory.command("model")(memory_model)
    memory.command("rebuild")(rebuilding.memory_rebuild)
    memory.command("flush")(memory_flush)


def memory_set(
    path: PathArgument,
    value: Annotated[str, typer.Argument(help="JSON; what is no JSON is a text.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    expect: Expect = None,
    comment: Comment = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Put a value into a memory by hand.

    The value is JSON. What is no JSON is a text, and so is JSON that the schema refuses
    at that path but would take as a text: 1984 is a number where a number belongs, and
    a text where a text does. Write '"null"' for the text null.
    """

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = client.session(session).memory(memory)
            revised = await _put(held, path, value, expect, comment)
        _show_revised(revised, as_json)

    run(work())


async def _put(
    memory: palimpsest.Memory, path: str, value: str, expect: int | None, comment: str
) -> values.Revised:
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        parsed = value
    edit = Edit.put(path, parsed)
    try:
        return await memory.revise([edit], expected_revision=expect, comment=comment)
    except InvalidArgument as refused:
        if refused.reason != "EDIT_INVALID" or isinstance(parsed, str):
            raise
        as_text = Edit.put(path, value)
        try:
            return await memory.revise([as_text], expected_revision=expect, comment=comment)
        except InvalidArgument:
            # What is wrong with it as JSON says more.
            raise refused from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def memory_unset(
    path: PathArgument,
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    expect: Expect = None,
    comment: Comment = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Take a value out of a memory by hand; elements behind it in a list move up."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            revised = await (
                client.session(session)
                .memory(memory)
                .revise([Edit.remove(path)], expected_revision=expect, comment=comment)
            )
        _show_revised(revised, as_json)

    run(work())


def _show_revised(revised: values.Revised, as_json: bool) -> None:
    if as_json:
        made = [amendment_json(one) for one in revised.amendments]
        show_json({**memory_json(revised.info), "amendments": made})
        return
    for one in revised.amendments:
        show(amendment_line(one))
    if not revised.amendments:
        show(f"nothing changes at revision {revised.info.revision}")


def memory_rollback(
    revision: Annotated[
        int, typer.Argument(min=0, max=LAST, help="The revision whose state returns.")
    ],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    expect: Expect = None,
    comment: Comment = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Restore the state of an earlier revision, as a new one. The log is not read again."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = client.session(session).memory(memory)
            info = await held.rollback(revision, expected_revision=expect, comment=comment)
        done = f"{memory} is at revision {info.revision}, as it was at revision {revision}"
        _show_info(info, done, as_json)

    run(work())


def _show_info(info: values.MemoryInfo, line: str, as_json: bool, **more: Any) -> None:
    if as_json:
        show_json({**memory_json(info), **more})
    else:
        show(line)


def memory_fold(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Write the amendments into a new base, so that prompts show each value once."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            made = await client.session(session).memory(name).fold()
        line = f"{name} is folded at revision {made.info.revision}"
        if not made.folded:
            line = f"{name} has nothing to fold at revision {made.info.revision}"
        _show_info(made.info, line, as_json, folded=made.folded)

    run(work())


def memory_consolidate(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is made.")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Ask for a pass that merges and shortens, once what is in the log now is read."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            info = await memory.consolidate()
            line = f"{name} is consolidated behind position {info.consolidate_position}"
            if wait:
                # Whoever waits does not want to wait for more chunks as well.
                await memory.flush()
                info = await _consolidated(memory, info)
                line = f"{name} is consolidated, at revision {info.revision}"
        _show_info(info, line, as_json)

    run(work())


async def _consolidated(memory: palimpsest.Memory, info: values.MemoryInfo) -> values.MemoryInfo:
    with Bar("revising", info.consolidate_position or 0) as bar:
        while info.consolidate_position is not None:
            bar.show(info)
            refuse_stopped(info)
            await asyncio.sleep(LOOK_SECONDS)
            info = (await memory.get()).info
    return info


def memory_schema(
    file: Annotated[str, typer.Argument(help="The new schema: class source, or JSON Schema.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    expect: Expect = None,
    comment: Comment = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Give a live memory a schema with more fields; its value stays.

    What was read before is not read again: `memory rebuild` does that.
    """
    schema = read_schema(file)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = client.session(session).memory(memory)
            info = await held.update_schema(schema, expected_revision=expect, comment=comment)
        line = f"{memory} has the schema at revision {info.revision}"
        _show_info(info, line, as_json, schema_source=info.schema_source)

    run(work())


def memory_model(
    model: Annotated[str, typer.Argument(help="provider/name; empty: the service's default.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Give a live memory another model; one that waits for its model tries again with it."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            info = await client.session(session).memory(memory).update_model(model)
        _show_info(info, f"{memory} is kept by {model or 'the default model'}", as_json)

    run(work())


def memory_flush(
    name: Annotated[str, typer.Argument(help="The memory; without one: all of them.")] = "",
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """End the wait for more chunks: what is in the log is read now.

    Prints a token; `memory show --after TOKEN` waits until that is done.
    """

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = client.session(session)
            flushed = await (held.memory(name).flush() if name else held.flush())
        if as_json:
            show_json({"token": flushed.token, "head": flushed.head})
        else:
            show(f"token {flushed.token}")

    run(work())
