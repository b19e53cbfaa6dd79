"""`palimpsest schema`: have a model write a schema, show it again, check one."""

from pathlib import Path
from typing import Annotated

import typer

from palimpsest import Client, JsonText, SchemaDraft, Session
from service.cli.app import new_group
from service.cli.command import DEFAULT_NAME, Json, Model, SessionName, Timeout, command
from service.cli.files import read_schema
from service.cli.output import CommandError, say, show_json
from service.cli.progress import ticking

Out = Annotated[Path | None, typer.Option("--out", "-o", help="A new file for the class source.")]


group = new_group("Schemas: generate, show, check.")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    command(group, "generate", generate)
    command(group, "show", show_)
    command(group, "check", check)
    app.add_typer(group, name="schema")


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

    The session, which the costs belong to, is made when it does not exist.
    """
    _refuse_taken(out)
    owner = await client.create_session(session, exist_ok=True)
    async with ticking("generating a schema"):
        draft = await owner.generate_schema(domain, example, model=model, timeout=timeout)
    _give(draft, out, as_json)


async def show_(
    session: Session,
    draft: Annotated[str, typer.Argument(help="The draft's id.")],
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show a schema that was asked for earlier."""
    _refuse_taken(out)
    found = await session.schema_draft(draft)
    if found.status == "failed":
        raise CommandError(f"no schema could be made: {found.failure}")
    if found.status != "complete":
        raise CommandError(f"the schema is {found.status}; ask again later")
    _give(found, out, as_json)


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


def _give(draft: SchemaDraft, out: Path | None, as_json: bool) -> None:
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(draft.schema_source)
        except OSError as error:
            # What was paid for is not lost.
            print(draft.schema_source, end="")
            raise CommandError(f"cannot write {out}: {error.strerror}") from error
    if as_json:
        show_json(draft)
    elif out is None:
        # As it is: neither markup nor wrapped.
        print(draft.schema_source, end="", flush=True)
    replies = "reply" if draft.attempts == 1 else "replies"
    say(f"draft {draft.draft_id} by {draft.model}, after {draft.attempts} {replies}")
