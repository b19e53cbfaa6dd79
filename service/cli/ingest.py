"""`palimpsest ingest`: appends a text to a session, and keeps a memory of it."""

import hashlib
from typing import Annotated, Any, Literal

import typer

import palimpsest
from palimpsest import ChunkLabels, Client, Memory, MemoryStatus, Session
from service.cli.command import (
    DEFAULT_NAME,
    MAX_CHUNK_TOKENS,
    Json,
    MemoryName,
    Model,
    SessionName,
    command,
    new_request_id,
)
from service.cli.files import CHUNK_CHARACTERS, read_schema, read_text, split
from service.cli.output import CommandError, say, show, show_json
from service.cli.progress import follow
from service.cli.search import moment

Kind = Literal["prism", "tree", "state"]

#: The schema of a memory when none is given: it fits any text.
DEFAULT_SCHEMA = '''class Notes:
    """What the text says, by topic."""
    topics: dict[str, list[str]]
    """Sentences that make sense by themselves, keyed by what they are about."""
'''
DEFAULT_TASK = "Keep what the text says about each topic: definitions, rules and facts."
#: Kinds of memories that have a setting, where not all have it.
_KINDS_WITH: dict[str, tuple[Kind, ...]] = {
    "schema": ("prism",),
    "task": ("prism", "state"),
    "segment_tokens": ("tree",),
}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "ingest", ingest)


async def ingest(
    client: Client,
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.")],
    session: SessionName = DEFAULT_NAME,
    memory: MemoryName = DEFAULT_NAME,
    kind: Annotated[
        Kind | None, typer.Option(help="What the memory is when it is made; without it: prism.")
    ] = None,
    schema: Annotated[
        str, typer.Option(help="A file with the schema of the memory that is made.")
    ] = "",
    task: Annotated[str, typer.Option(help="What the memory that is made is for.")] = "",
    model: Model = "",
    segment_tokens: Annotated[
        int,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Trees: tokens under a leaf; 0: 1,000."),
    ] = 0,
    producer: Annotated[
        str, typer.Option(help="The producer's name; default: from the text's content.")
    ] = "",
    chunk_characters: Annotated[
        int, typer.Option(min=100, max=60_000, help="Size of a chunk.")
    ] = CHUNK_CHARACTERS,
    thread: Annotated[
        str, typer.Option(help="The conversation in the session that the text belongs to.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Where the text is from: a person, a document, a system.")
    ] = "",
    occurred_at: Annotated[
        str, typer.Option(metavar="TIME", help="When it happened, such as 2026-11-30T12:00Z.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="Wait until the memory has read it.")] = True,
    as_json: Json = False,
) -> None:
    """Append a text to a session, and keep a memory of it.

    Session and memory are made when they do not exist; `memory create` has more settings. All
    memories of a session read all of its texts. Interrupted and run again with the same text it
    goes on where it stopped, and adds nothing twice.
    """
    settings = {
        "schema": schema,
        "task": task,
        "model": model,
        "segment_tokens": segment_tokens,
    }
    wanted = {name: value for name, value in settings.items() if value}
    for name in wanted:
        if (kind or "prism") not in _KINDS_WITH.get(name, (kind or "prism",)):
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option}: a {kind or 'prism'} memory has no such setting")
    if schema:
        wanted["schema"] = read_schema(schema)
    labels: ChunkLabels = {
        "thread": thread,
        "source": source,
        "occurred_at": moment("--occurred-at", occurred_at),
    }
    pieces = list(split(read_text(file), chunk_characters))
    # The same text in another thread is another text.
    said = [one for one in (thread, source, occurred_at) if one]
    content = "\0".join([str(chunk_characters), *pieces, *said])
    digest = hashlib.sha256(content.encode()).hexdigest()
    appended = await client.create_session(session, exist_ok=True)
    kept = await _ensure_memory(appended, memory, kind, wanted)
    await _name_other_readers(appended, memory)
    async with appended.producer(producer or f"text-{digest[:16]}") as stream:
        skipped = min(stream.last_acked_sequence, len(pieces))
        if skipped:
            say(f"{skipped} of {len(pieces)} chunks are there already")
        for piece in pieces[skipped:]:
            await stream.append(piece, **labels)
        ack = await stream.flush()
    if ack is not None:
        say(f"{len(pieces) - skipped} chunks durable, up to position {ack.position}")
    state = await follow(kept) if wait else None
    if as_json:
        show_json(
            {
                "session": session,
                "memory": memory,
                "chunks": len(pieces),
                "skipped": skipped,
                "position": ack.position if ack else None,
                "read_token": ack.read_token if ack else None,
                "applied_position": state.applied_position if state else None,
                "revision": state.revision if state else None,
            }
        )
    elif state is not None:
        show(f"memory {memory!r} is at revision {state.revision}, everything applied")
    else:
        show(f"read token {ack.read_token}" if ack else "nothing new")


async def _name_other_readers(session: Session, memory_name: str) -> None:
    """Says which other memories will read the text, since each of them costs model calls."""
    others = [
        repr(one.id)
        for one in await session.memories()
        if one.id != memory_name and one.status is not MemoryStatus.SEALED
    ]
    if others:
        say(
            f"read by {', '.join(others)} of session {session.id!r} too; a text of its own"
            " has a session of its own (--session)"
        )


async def _ensure_memory(
    session: Session, name: str, kind: Kind | None, wanted: dict[str, Any]
) -> Memory:
    """Returns the memory of that name, made with the settings that are wanted if it is new.

    Raises CommandError when it exists and is of another kind than the one asked for.
    """
    settings = {**wanted, "request_id": new_request_id()}
    try:
        if kind == "tree":
            return await session.create_tree(name, **settings)
        if kind == "state":
            return await session.create_state(name, **settings)
        general = {} if "schema" in wanted else {"schema": DEFAULT_SCHEMA, "task": DEFAULT_TASK}
        return await session.create_memory(name, **{"chunk_tokens": 1000, **general, **settings})
    except palimpsest.PalimpsestError as error:
        if error.reason != "MEMORY_EXISTS":
            raise
    memory = session.memory(name)
    there = (await memory.get()).info.kind
    if kind not in (None, there):
        raise CommandError(f"memory {name!r} is there already, and is a {there} memory")
    if wanted:
        say(f"memory {name!r} is there already and keeps its settings")
    return memory
