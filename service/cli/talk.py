"""Commands that talk to a running service, and what all of these share: ingestion, usage."""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.table import Table

import palimpsest
from palimpsest import values
from service.cli.kinds import refuse_of_other_kind
from service.cli.output import CommandError, say, show, show_json, show_table
from service.cli.progress import follow
from service.cli.texts import CHUNK_CHARACTERS, read_schema, read_text, split

Address = Annotated[
    str,
    typer.Option(
        "--address", envvar="PALIMPSEST_ADDRESS", help="HOST:PORT of the service.", metavar="ADDR"
    ),
]
SessionName = Annotated[str, typer.Option("--session", "-s", help="The session.")]
MemoryName = Annotated[str, typer.Option("--memory", "-m", help="The memory.")]
After = Annotated[
    str | None, typer.Option("--after", help="A token: what it stands for is applied.")
]
MemoryArgument = Annotated[str, typer.Argument(help="The memory's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: The largest revision or position that there can be.
LAST = 2**63 - 1
#: The most tokens of a step, and of a memory or its amendments, that the proto allows.
MAX_CHUNK_TOKENS = 100_000
MAX_TOKENS = 1_000_000
#: How long a command may wait, in seconds.
DAY = 86_400.0

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_NAME = "default"
#: The schema of a memory when none is given: it fits any text.
DEFAULT_SCHEMA = '''class Notes:
    """What the text says, by topic."""
    topics: dict[str, list[str]]
    """Sentences that make sense by themselves, keyed by what they are about."""
'''
DEFAULT_TASK = "Keep what the text says about each topic: definitions, rules and facts."


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(ingest)
    app.command()(usage)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's work."""
    asyncio.run(work)


def token_of(after: str | None, applied: bool) -> str:
    """The token of --after. An empty one is refused: it would ask for nothing."""
    if after is not None and applied:
        raise CommandError("give --after or --applied, not both")
    if after == "":
        raise CommandError("--after: the token is empty")
    return after or ""


def ingest(
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.")],
    session: SessionName = DEFAULT_NAME,
    memory: MemoryName = DEFAULT_NAME,
    kind: Annotated[
        values.MemoryKind | None,
        typer.Option(help="What the memory is when it is made; without it: prism."),
    ] = None,
    schema: Annotated[
        str, typer.Option(help="A file with the schema of the memory that is made.")
    ] = "",
    task: Annotated[str, typer.Option(help="What the memory that is made is for.")] = "",
    model: Annotated[str, typer.Option(help="Its model as provider/name.")] = "",
    segment_tokens: Annotated[
        int,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Of a tree: tokens under a leaf; 0: 1,000."),
    ] = 0,
    producer: Annotated[
        str, typer.Option(help="The producer's name; default: from the text's content.")
    ] = "",
    chunk_characters: Annotated[
        int, typer.Option(min=100, max=60_000, help="Size of a chunk.")
    ] = CHUNK_CHARACTERS,
    wait: Annotated[bool, typer.Option(help="Wait until the memory has read it.")] = True,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Append a text to a session, and keep a memory of it.

    Session and memory are made when they do not exist; all memories of a session read all
    of its texts. Interrupted and run again with the same text it goes on where it stopped,
    and adds nothing twice.
    """
    wanted = _settings_of(kind, schema, task=task, model=model, segment_tokens=segment_tokens)
    pieces = list(split(read_text(file), chunk_characters))
    digest = hashlib.sha256(f"{chunk_characters}\0{chr(0).join(pieces)}".encode()).hexdigest()
    name = producer or f"text-{digest[:16]}"
    named = session, memory, name
    run(_ingest(address, named, pieces, kind=kind, wanted=wanted, wait=wait, as_json=as_json))


def _settings_of(kind: values.MemoryKind | None, schema: str, **plain: str | int) -> dict[str, Any]:
    """The settings that are given. Raises CommandError for those that the kind has not."""
    given = {name: value for name, value in plain.items() if value}
    refuse_of_other_kind(kind or "prism", [*given, *(["schema"] if schema else [])])
    return {**given, "schema": read_schema(schema)} if schema else given


async def _ingest(
    address: str,
    named: tuple[str, str, str],
    pieces: list[str],
    *,
    kind: values.MemoryKind | None,
    wanted: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> None:
    session_name, memory_name, producer_id = named
    async with palimpsest.connect(address) as client:
        session = await client.create_session(session_name, exist_ok=True)
        memory = await ensure_memory(session, memory_name, kind, wanted)
        await _name_other_readers(session, memory_name)
        async with session.producer(producer_id) as producer:
            skipped = min(producer.last_acked_sequence, len(pieces))
            if skipped:
                say(f"{skipped} of {len(pieces)} chunks are there already")
            for piece in pieces[skipped:]:
                await producer.append(piece)
            ack = await producer.flush()
        if ack is not None:
            say(f"{len(pieces) - skipped} chunks durable, up to position {ack.position}")
        state = await follow(memory) if wait else None
    if as_json:
        show_json(
            {
                "session": session_name,
                "memory": memory_name,
                "chunks": len(pieces),
                "skipped": skipped,
                "position": ack.position if ack else None,
                "token": ack.token if ack else None,
                "applied_position": state.applied_position if state else None,
                "revision": state.revision if state else None,
            }
        )
    elif state is not None:
        show(f"memory {memory_name!r} is at revision {state.revision}, everything applied")
    else:
        show(f"token {ack.token}" if ack else "nothing new")


async def _name_other_readers(session: palimpsest.Session, memory_name: str) -> None:
    """Says which other memories will read the text, since each of them costs model calls."""
    others = [
        repr(one.name)
        for one in await session.memories()
        if one.name != memory_name and one.status is not values.MemoryStatus.SEALED
    ]
    if others:
        say(
            f"read by {', '.join(others)} of session {session.name!r} too; a text of its own"
            " has a session of its own (--session)"
        )


async def ensure_memory(
    session: palimpsest.Session,
    name: str,
    kind: values.MemoryKind | None = None,
    wanted: Mapping[str, Any] = MappingProxyType({}),
) -> palimpsest.Memory:
    """The memory of that name, made with the settings that are wanted when it does not exist.

    What is not wanted is as the kind's defaults have it. Raises CommandError when it exists
    and is of another kind than the one asked for.
    """
    try:
        if kind == "tree":
            return await session.create_tree(name, **wanted)
        if kind == "state":
            return await session.create_state(name, **wanted)
        general = {} if "schema" in wanted else {"schema": DEFAULT_SCHEMA, "task": DEFAULT_TASK}
        return await session.create_memory(name, **{"chunk_tokens": 1000, **general, **wanted})
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


def usage(
    session: SessionName = DEFAULT_NAME,
    memory: Annotated[str, typer.Option("--memory", "-m", help="Only this memory.")] = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show what the model calls of a session came to."""
    run(_usage(address, session, memory, as_json))


async def _usage(address: str, session_name: str, memory: str, as_json: bool) -> None:
    async with palimpsest.connect(address) as client:
        report = await client.session(session_name).usage(memory)
    if as_json:
        show_json(
            {
                "total": usage_json(report.total),
                "lines": [
                    {"purpose": line.purpose, "model": line.model, **usage_json(line.usage)}
                    for line in report.lines
                ],
            }
        )
    else:
        show_usage(report)


def usage_json(used: values.Usage) -> dict[str, Any]:
    """Sums as plain JSON."""
    return {
        "calls": used.calls,
        "input_tokens": used.input_tokens,
        "predicted_cached_tokens": used.predicted_cached_tokens,
        "reported_cached_tokens": used.reported_cached_tokens,
        "output_tokens": used.output_tokens,
        "cost_micro_usd": used.cost_micro_usd,
    }


def show_usage(report: values.UsageReport) -> None:
    """Sums as a table."""
    table = Table(box=None, pad_edge=False)
    table.add_column("purpose")
    table.add_column("model")
    for name in ("calls", "input", "predicted cached", "output", "USD"):
        table.add_column(name, justify="right")
    lines = [(line.purpose, line.model, line.usage) for line in report.lines]
    for purpose, model, used in (*lines, ("total", "", report.total)):
        share = used.predicted_cached_tokens / used.input_tokens if used.input_tokens else 0.0
        price = "unknown" if used.cost_micro_usd is None else f"{used.cost_micro_usd / 1e6:.4f}"
        table.add_row(
            purpose,
            model,
            f"{used.calls:,}",
            f"{used.input_tokens:,}",
            f"{share:.0%}",
            f"{used.output_tokens:,}",
            price,
        )
    show_table(table)
