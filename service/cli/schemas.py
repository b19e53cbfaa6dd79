"""Commands for schemas: having one generated, reading it again, checking one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import values
from palimpsest.specs import JsonText
from service.cli.output import CommandError, say, show_json
from service.cli.progress import LINE_SECONDS
from service.cli.talk import (
    DAY,
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    Address,
    Json,
    SessionName,
    run,
    usage_json,
)
from service.cli.texts import read_schema

Out = Annotated[Path | None, typer.Option("--out", "-o", help="A new file for the class source.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    schema = typer.Typer(no_args_is_help=True, help="Schemas: generate, show, check.")
    schema.command("generate")(schema_generate)
    schema.command("show")(schema_show)
    schema.command("check")(schema_check)
    app.add_typer(schema, name="schema")


def schema_generate(
    domain: Annotated[str, typer.Argument(help="What the texts are, in a sentence or more.")],
    example: Annotated[str, typer.Option(help="A question of the kind that will be asked.")],
    session: SessionName = DEFAULT_NAME,
    model: Annotated[str, typer.Option(help="Model as provider/name.")] = "",
    out: Out = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")] = 120.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Have a model write a schema; `memory create --schema` takes what is printed.

    The session, which the costs belong to, is made when it does not exist.
    """
    _refuse_taken(out)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = await client.create_session(session, exist_ok=True)
            async with _telling("generating a schema"):
                draft = await held.generate_schema(domain, example, model=model, timeout=timeout)
        _give(draft, out, as_json)

    run(work())


def schema_show(
    draft: Annotated[str, typer.Argument(help="The draft's id.")],
    session: SessionName = DEFAULT_NAME,
    out: Out = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a schema that was asked for earlier."""
    _refuse_taken(out)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            found = await client.session(session).schema_draft(draft)
        if found.status == "failed":
            raise CommandError(f"no schema could be made: {found.failure}")
        if found.status != "complete":
            raise CommandError(f"the schema is {found.status}; ask again later")
        _give(found, out, as_json)

    run(work())


def schema_check(
    file: Annotated[str, typer.Argument(help="A file with class source or JSON Schema, or -.")],
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Check a schema, and print it as models will be shown it. It is never run."""
    text = read_schema(file)
    is_json = isinstance(text, JsonText)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            shown = await client.check_schema(
                "" if is_json else text, json_schema=str(text) if is_json else ""
            )
        if as_json:
            show_json({"schema_source": shown})
        else:
            print(shown, end="")

    run(work())


@asynccontextmanager
async def _telling(what: str) -> AsyncIterator[None]:
    """Says that it goes on for as long as it does."""
    started = time.monotonic()

    async def tell() -> None:
        while True:
            await asyncio.sleep(LINE_SECONDS)
            say(f"{what}: {time.monotonic() - started:.0f} s")

    say(what)
    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


def _refuse_taken(out: Path | None) -> None:
    # Before anything is paid for, and so that nothing is written over.
    if out is None:
        return
    try:
        if out.exists():
            raise CommandError(f"{out} exists already")
        if not out.parent.is_dir():
            raise CommandError(f"cannot write {out}: there is no folder {out.parent}")
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}") from error


def _give(draft: values.SchemaDraft, out: Path | None, as_json: bool) -> None:
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(draft.schema_source)
        except OSError as error:
            # What was paid for is not lost.
            print(draft.schema_source, end="")
            raise CommandError(f"cannot write {out}: {error.strerror}") from error
    if as_json:
        show_json(_draft_json(draft))
    elif out is None:
        # As it is: neither markup nor wrapped.
        print(draft.schema_source, end="", flush=True)
    replies = "reply" if draft.attempts == 1 else "replies"
    say(f"draft {draft.draft_id} by {draft.model}, after {draft.attempts} {replies}")


def _draft_json(draft: values.SchemaDraft) -> dict[str, Any]:
    return {
        "draft_id": draft.draft_id,
        "schema_source": draft.schema_source,
        "model": draft.model,
        "attempts": draft.attempts,
        "usage": usage_json(draft.usage),
    }
