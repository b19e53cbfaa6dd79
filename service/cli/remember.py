"""`palimpsest remember` and `palimpsest recall`: a session as the memory of a chat."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest import Session
from service.cli.command import Freshness, Json, Labels, Timeout, command
from service.cli.files import read_text
from service.cli.output import CommandError, counted, plain_json, say, show, show_json
from service.cli.search import Occurred, SearchMode, moment

#: What the proto allows.
MAX_RECALL_TOKENS = 100_000


class Section(StrEnum):
    """A section of a recalled text; the option can be given several times."""

    MEMORY = "memory"
    CHUNKS = "chunks"
    UNREAD = "unread"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "remember", remember)
    command(app, "recall", recall)


async def remember(
    session: Session,
    text: Annotated[str, typer.Argument(help="A text, or - for standard input.")] = "",
    messages: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="In place of a text: a JSON list of messages, as OpenAI's and Anthropic's"
            " clients have them; - for standard input.",
        ),
    ] = "",
    system: Annotated[
        bool, typer.Option("--system", help="Also messages of the system and the developer.")
    ] = False,
    thread: Annotated[
        str, typer.Option(help="The conversation in the session that it belongs to.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Where it is from: a person, a document, a system.")
    ] = "",
    occurred_at: Annotated[
        str, typer.Option(metavar="TIME", help="When it happened, such as 2026-11-30T12:00Z.")
    ] = "",
    request_id: Annotated[
        str, typer.Option(metavar="ID", help="The same under this id is stored once.")
    ] = "",
    wait: Annotated[
        bool, typer.Option(help="Wait until all memories of the session have read it.")
    ] = False,
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Store a text or messages in a session, and create it if it is missing.

    A call of a tool and its result become one step of an agent. Images, audio and files are
    refused before anything is stored. Each call stores what it is given: pass messages that are
    new. `ingest` suits long documents: it keeps a memory of them, and continues where it stopped.
    """
    if bool(text) == bool(messages):
        raise CommandError("give a text, - for standard input, or --messages FILE")
    given = _read_messages(messages) if messages else _read(text)
    try:
        found = await session.remember(
            given,
            include_system=system,
            request_id=request_id or None,
            wait=wait,
            timeout=timeout,
            thread=thread,
            source=source,
            occurred_at=moment("--occurred-at", occurred_at),
        )
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        show_json({"session": session.id, **plain_json(found)})
        return
    if found.skipped:
        say(f"{counted(found.skipped, 'message')} left out: of the system, or empty")
    if found.positions is None:
        show("nothing to remember")
        return
    say(f"{counted(found.chunks, 'chunk')} durable, up to position {found.positions.last}")
    show("all memories have read it" if wait else f"read token {found.read_token}")


async def recall(
    session: Session,
    freshness: Freshness,
    labels: Labels,
    occurred: Occurred,
    query: Annotated[
        str,
        typer.Argument(help="What is to be known; default: the newest messages."),
    ] = "",
    tokens: Annotated[
        int, typer.Option(min=0, max=MAX_RECALL_TOKENS, help="The text's length at most; 0: 1,000.")
    ] = 0,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory", "-m", help="Recall from it; may be repeated. Default: `default`, else all."
        ),
    ] = None,
    section: Annotated[
        list[Section] | None, typer.Option(help="Only this section; may be repeated.")
    ] = None,
    mode: Annotated[SearchMode, typer.Option(help="By what chunks are found.")] = "auto",
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Print what a session knows that fits a query, as a text for a prompt.

    The text has entries of the memory, the chunks that fit best, and the newest chunks. No
    language model is asked. Filters apply to chunks. With --after or --applied it waits until
    memory and index have applied what was written.
    """
    found = await session.recall(
        query,
        tokens=tokens,
        memories=memory or (),
        sections=[one.value for one in section or ()],
        mode=mode,
        timeout=timeout,
        **freshness.wanted(),
        **labels.wanted(),
        **occurred.wanted(),
    )
    if not found and not found.read_point.applied_position:
        raise CommandError(
            f"session {session.id!r} has nothing yet: `palimpsest remember TEXT --session"
            f" {shlex.quote(session.id)}` stores something"
        )
    if as_json:
        show_json({"session": session.id, **plain_json(found)})
    elif found:
        show(found.text)
    else:
        say(f"nothing of session {session.id!r} fits: name a query, or more --tokens")


def _read(text: str) -> str:
    """Returns the text that was given, or standard input's. Raises CommandError for a file."""
    if text == "-":
        return read_text("-")
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):
        # Too long for a name, or with a NUL character.
        is_file = False
    if is_file:
        raise CommandError(
            f"{text} is a file, and a text is wanted: `remember - < {text}` stores its text,"
            f" `remember --messages {text}` its messages, and `ingest {text}` a document"
        )
    return text


def _read_messages(name: str) -> list[Any]:
    """Returns the messages in a file. Raises CommandError."""
    shown = "standard input" if name == "-" else name
    try:
        found = json.loads(read_text(name))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{shown} is not JSON: {error}") from error
    messages = found if isinstance(found, list) else [found]
    for number, message in enumerate(messages, start=1):
        # JSON has no times.
        if isinstance(message, dict) and isinstance(message.get("occurred_at"), str):
            where = f"{shown}: message {number}: occurred_at"
            message["occurred_at"] = moment(where, message["occurred_at"])
    return messages
