"""`palimpsest schema`: have a model write a schema, check one."""

from pathlib import Path
from typing import Annotated

import typer

from palimpsest import Client, GeneratedSchema, JsonText, Operation
from service.cli.command import DEFAULT_NAME, Json, Model, SessionName, Timeout, add_group
from service.cli.files import read_schema
from service.cli.output import CommandError, plain_json, say, show_json
from service.cli.progress import follow_operation, ticking

Out = Annotated[Path | None, typer.Option("--out", "-o", help="A new file for the class source.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Schemas: generate, check."
    add_group(app, "schema", summary, generate, check)


async def generate(
    client: Client,
    domain: Annotated[str, typer.Argument(help="What the texts are, in a sentence or more.")],
    example: Annotated[str, typer.Option(help="A question of the kind that will be asked.")],
    session: SessionName = DEFAULT_NAME,
    model: Model = "",
    out: Out = None,
    timeout: Timeout = 120.0,
    as_json: Json = False,
) -> None:
    """Have a model write a schema; `memory create prism --schema` takes what is printed.

    The session, which the costs belong to, is made when it does not exist. What is late is
    not lost: `operation wait` prints it.
    """
    _refuse_taken(out)
    owner = await client.create_session(session, exist_ok=True)
    async with ticking("generating a schema"):
        operation = await owner.request_schema(domain, example, model=model)
        await follow_operation(operation, "generating", timeout=timeout)
    _give(operation, out, as_json)


async def check(
    client: Client,
    file: Annotated[str, typer.Argument(help="A file with class source or JSON Schema, or -.")],
    as_json: Json = False,
) -> None:
    """Check a schema, and print it as models will be shown it. It is never run."""
    text = read_schema(file)
    is_json = isinstance(text, JsonText)
    shown = await client.check_schema(
        "" if is_json else text, json_schema=str(text) if is_json else ""
    )
    if as_json:
        show_json({"schema_source": shown})
    else:
        print(shown, end="")


def _refuse_taken(out: Path | None) -> None:
    # Checked before any cost; an existing file is never overwritten.
    if out is None:
        return
    try:
        if out.exists():
            raise CommandError(f"{out} exists already")
        if not out.parent.is_dir():
            raise CommandError(f"cannot write {out}: there is no folder {out.parent}")
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}") from error


def _give(operation: Operation[GeneratedSchema], out: Path | None, as_json: bool) -> None:
    schema = operation.result
    assert schema is not None, "it was waited for"
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(schema.schema_source)
        except OSError as error:
            # What was paid for is not lost.
            print(schema.schema_source, end="")
            raise CommandError(f"cannot write {out}: {error.strerror}") from error
    if as_json:
        usage = plain_json(operation.usage)
        show_json({"operation": operation.id, **plain_json(schema), "usage": usage})
    elif out is None:
        # As it is: neither markup nor wrapped.
        print(schema.schema_source, end="", flush=True)
    replies = "reply" if schema.attempts == 1 else "replies"
    say(f"by {schema.model}, after {schema.attempts} {replies}")
