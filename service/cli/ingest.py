"""`palimpsest ingest`: appends a text to a session, and keeps a memory of it."""

import hashlib
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import ChunkLabels, Client, Memory, MemoryStatus, Session
from palimpsest._splitting import CHUNK_CHARACTERS, split
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
from service.cli.files import read_schema, read_text
from service.cli.kinds import DEFAULT_KIND, KINDS
from service.cli.output import CommandError, counted, say, show, show_json
from service.cli.progress import follow
from service.cli.search import moment


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "ingest", ingest)


async def ingest(
    client: Client,
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.")],
    session: SessionName = DEFAULT_NAME,
    memory: MemoryName = DEFAULT_NAME,
    kind: Annotated[
        palimpsest.MemoryKind | None,
        typer.Option(help=f"The kind of a new memory; default: {DEFAULT_KIND}."),
    ] = None,
    schema: Annotated[str, typer.Option(help="A file with the schema of a new memory.")] = "",
    task: Annotated[str, typer.Option(help="What a new memory is for.")] = "",
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

    Creates session and memory when they do not exist; `memory create` has more settings. All
    memories of a session read all of its texts. After an interruption, run it again
    with the same text: it continues where it stopped, and adds nothing twice.
    """
    settings = {
        "schema": schema,
        "task": task,
        "model": model,
        "segment_tokens": segment_tokens,
    }
    wanted = {name: value for name, value in settings.items() if value}
    made = KINDS[kind or DEFAULT_KIND]
    for name in wanted:
        if name not in made.ingest_settings:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option}: a {made.name} memory has no such setting")
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
        new = counted(len(pieces) - skipped, "chunk")
        say(f"{new} durable, up to position {ack.position}")
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
    session: Session, name: str, kind: palimpsest.MemoryKind | None, wanted: dict[str, Any]
) -> Memory:
    """Returns the memory of that name, made with the settings that are wanted if it is new.

    Raises CommandError when it exists and is of another kind than the one asked for.
    """
    made = KINDS[kind or DEFAULT_KIND]
    try:
        return await made.ingest(session, name, **wanted, request_id=new_request_id())
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
