"""Commands that talk to a running service: sessions, ingestion, memories, questions."""

import asyncio
import hashlib
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import palimpsest
from palimpsest import values
from service.cli.output import CommandError, cut, err, out, say, show, show_json, tree_of
from service.cli.texts import CHUNK_CHARACTERS, read_text, split

Address = Annotated[
    str,
    typer.Option(
        "--address", envvar="PALIMPSEST_ADDRESS", help="HOST:PORT of the service.", metavar="ADDR"
    ),
]
SessionName = Annotated[str, typer.Option("--session", "-s", help="The session.")]
MemoryName = Annotated[str, typer.Option("--memory", "-m", help="The memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_NAME = "default"
#: How often progress is a line, where there is no terminal to draw a bar on.
LINE_SECONDS = 2.0
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
    app.command()(ask)
    app.command()(usage)
    session = typer.Typer(no_args_is_help=True, help="Sessions: create, list, show.")
    session.command("create")(session_create)
    session.command("list")(session_list)
    session.command("show")(session_show)
    app.add_typer(session, name="session")
    memory = typer.Typer(no_args_is_help=True, help="Memories: create, list, show, log, retry.")
    memory.command("create")(memory_create)
    memory.command("list")(memory_list)
    memory.command("show")(memory_show)
    memory.command("log")(memory_log)
    memory.command("retry")(memory_retry)
    app.add_typer(memory, name="memory")


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's work."""
    asyncio.run(work)


def ingest(
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.")],
    session: SessionName = DEFAULT_NAME,
    memory: MemoryName = DEFAULT_NAME,
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

    Session and memory are made when they do not exist. Interrupted and run again with
    the same text it goes on where it stopped, and adds nothing twice.
    """
    pieces = list(split(read_text(file), chunk_characters))
    digest = hashlib.sha256(f"{chunk_characters}\0{chr(0).join(pieces)}".encode()).hexdigest()
    name = producer or f"text-{digest[:16]}"
    run(_ingest(address, session, memory, name, pieces, wait=wait, as_json=as_json))


async def _ingest(
    address: str,
    session_name: str,
    memory_name: str,
    producer_id: str,
    pieces: list[str],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session(session_name, exist_ok=True)
        memory = await ensure_memory(session, memory_name)
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


async def ensure_memory(session: palimpsest.Session, name: str) -> palimpsest.Memory:
    """The memory of that name, made with the default schema when it does not exist."""
    try:
        return await session.create_memory(
            name, schema_source=DEFAULT_SCHEMA, task=DEFAULT_TASK, chunk_tokens=1000
        )
    except palimpsest.PalimpsestError as error:
        if error.reason != "MEMORY_EXISTS":
            raise
        return session.memory(name)


async def follow(memory: palimpsest.Memory) -> values.MemoryState:
    """Waits until the memory is at today's head, with a bar (or lines); its state."""
    state = await memory.get()
    head = state.info.head
    told = time.monotonic()
    with Progress(
        TextColumn("revising"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chunks, revision {task.fields[revision]}"),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
    ) as progress:
        bar = progress.add_task("", total=head, revision=state.revision)
        while state.applied_position < head:
            if state.info.stall is not None:
                stall = state.info.stall
                raise CommandError(
                    f"memory {memory.name!r} stalled at position {stall.position}: {stall.cause}"
                )
            progress.update(bar, completed=state.applied_position, revision=state.revision)
            if not err.is_terminal and time.monotonic() - told > LINE_SECONDS:
                told = time.monotonic()
                say(f"revising: {state.applied_position} of {head}, revision {state.revision}")
            await asyncio.sleep(0.2)
            state = await memory.get()
        progress.update(bar, completed=head, revision=state.revision)
    return state


def ask(
    query: Annotated[str, typer.Argument(help="The question.")],
    session: SessionName = DEFAULT_NAME,
    memory: MemoryName = DEFAULT_NAME,
    after: Annotated[str, typer.Option(help="A token: what it stands for must be applied.")] = "",
    applied: Annotated[bool, typer.Option(help="Wait until the whole log is applied.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 60.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Ask a memory a question; the answer comes with the positions it rests on."""
    run(_ask(address, session, memory, query, after, applied, timeout, as_json))


async def _ask(
    address: str,
    session_name: str,
    memory_name: str,
    query: str,
    after: str,
    applied: bool,
    timeout: float,
    as_json: bool,
) -> None:
    def hear(event: values.Waiting | values.Reading) -> None:
        if isinstance(event, values.Waiting):
            say(f"waiting: applied {event.applied_position} of {event.wanted_position}")

    async with palimpsest.connect(address) as client:
        memory = client.session(session_name).memory(memory_name)
        answer = await memory.ask(
            query, after=after, fully_applied=applied, timeout=timeout, on_event=hear
        )
    if as_json:
        show_json(answer_json(answer))
    else:
        show_answer(answer)


def answer_json(answer: values.Answer) -> dict[str, Any]:
    """An answer as plain JSON."""
    return {
        "query": answer.query,
        "text": answer.text,
        "citations": [
            {
                "position": cited.position,
                "path": cited.path,
                "revision": cited.revision,
                "excerpt": cited.excerpt,
            }
            for cited in answer.citations
        ],
        "revision": answer.revision,
        "applied_position": answer.applied_position,
        "model": answer.model,
        "answer_id": answer.answer_id,
    }


def show_answer(answer: values.Answer) -> None:
    """An answer for people."""
    show(answer.text)
    for cited in answer.citations:
        show(f"  [{cited.position}] {cited.path}")
    note = "; no language model: sentences of the memory, word for word"
    offline = answer.model.startswith("offline/")
    show(f"  by {answer.model} at revision {answer.revision}{note if offline else ''}")


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
    out.print(table)


def session_create(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create a session."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            await client.create_session(name)
        show(name)

    run(work())


def session_list(address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    """List all sessions."""

    async def work() -> None:
        table = Table("session", "chunks", "bytes", "created", box=None, pad_edge=False)
        async with palimpsest.connect(address) as client:
            async for info in client.sessions():
                if as_json:
                    show_json(_session_json(info))
                table.add_row(
                    info.name,
                    f"{info.head:,}",
                    f"{info.content_bytes:,}",
                    f"{info.created_at:%Y-%m-%d %H:%M}",
                )
        if not as_json:
            out.print(table)

    run(work())


def _session_json(info: values.SessionInfo) -> dict[str, Any]:
    return {
        "session": info.name,
        "head": info.head,
        "content_bytes": info.content_bytes,
        "created_at": info.created_at.isoformat(),
    }


def session_show(
    name: Annotated[str, typer.Argument(help="The session's name.")],
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks.")] = 5,
    from_position: Annotated[int, typer.Option(min=1, help="The first of them.")] = 1,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a session and some of its chunks."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            session = client.session(name)
            info = await session.info()
            if as_json:
                show_json(_session_json(info))
            else:
                show(f"{info.name}: {info.head} chunks, {info.content_bytes:,} bytes")
            left = chunks
            async for chunk in session.chunks(from_position=from_position):
                if left <= 0:
                    break
                left -= 1
                text = chunk.text or " / ".join((chunk.observation, chunk.thought, chunk.action))
                if as_json:
                    show_json({"position": chunk.position, "kind": chunk.kind, "text": text})
                else:
                    show(f"  [{chunk.position}] {cut(text, 100)}")

    run(work())


def memory_create(
    name: Annotated[str, typer.Argument(help="The memory's name.")],
    schema: Annotated[Path, typer.Option(help="A file with the schema's class source.")],
    session: SessionName = DEFAULT_NAME,
    task: Annotated[str, typer.Option(help="What the memory is for.")] = "",
    question: Annotated[str, typer.Option(help="The question that it serves.")] = "",
    model: Annotated[str, typer.Option(help="Model as provider/name.")] = "",
    chunk_tokens: Annotated[int, typer.Option(min=0, help="Tokens a step; 0: default.")] = 0,
    skip_failures: Annotated[bool, typer.Option(help="Skip what fails for good.")] = False,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Create a PRISM memory from a schema. The source is parsed, never run."""
    source = read_text(str(schema))

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            await client.session(session).create_memory(
                name,
                schema_source=source,
                task=task,
                question=question,
                model=model,
                chunk_tokens=chunk_tokens,
                skip_failures=skip_failures,
            )
        show(name)

    run(work())


def memory_list(
    session: SessionName = DEFAULT_NAME, address: Address = DEFAULT_ADDRESS, as_json: Json = False
) -> None:
    """List the memories of a session."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            found = await client.session(session).memories()
        table = Table("memory", "status", "revision", "applied", "head", box=None, pad_edge=False)
        for info in found:
            if as_json:
                show_json(_memory_json(info))
            table.add_row(
                info.name,
                str(info.status),
                str(info.revision),
                str(info.applied_position),
                str(info.head),
            )
        if not as_json:
            out.print(table)

    run(work())


def _memory_json(info: values.MemoryInfo) -> dict[str, Any]:
    return {
        "memory": info.name,
        "status": str(info.status),
        "revision": info.revision,
        "applied_position": info.applied_position,
        "head": info.head,
        "stall": None
        if info.stall is None
        else {"position": info.stall.position, "cause": info.stall.cause},
    }


def memory_show(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    revision: Annotated[int | None, typer.Option(min=0, help="As it was then.")] = None,
    after: Annotated[str, typer.Option(help="A token: what it stands for is applied.")] = "",
    applied: Annotated[bool, typer.Option(help="Wait until the whole log is applied.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 30.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a memory as a tree, now or at an earlier revision."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            state = await memory.get(
                revision=revision, after=after, fully_applied=applied, timeout=timeout
            )
        if as_json:
            head = _memory_json(state.info)
            at = {"revision": state.revision, "applied_position": state.applied_position}
            show_json({**head, **at, "value": state.value, "token": state.token})
            return
        title = (
            f"{name} at revision {state.revision}:"
            f" {state.applied_position} of {state.info.head} chunks applied"
        )
        out.print(tree_of(title, state.value))
        if state.info.stall is not None:
            show(f"stalled at position {state.info.stall.position}: {state.info.stall.cause}")

    run(work())


def memory_log(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Show what the schema refused instead.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show the amendments that made a memory, oldest first."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            if rejected:
                async for one in memory.rejections():
                    if as_json:
                        show_json({"revision": one.revision, "reason": one.reason})
                    else:
                        show(f"r{one.revision} {one.reason}: {cut(one.proposal, 100)}")
                return
            async for change in memory.amendments():
                if as_json:
                    show_json(amendment_json(change))
                else:
                    show(amendment_line(change))

    run(work())


def amendment_json(change: values.Amendment) -> dict[str, Any]:
    """An amendment as plain JSON."""
    return {
        "revision": change.revision,
        "from_position": change.from_position,
        "to_position": change.to_position,
        "op": change.op,
        "path": change.path,
        "value": change.value,
    }


def amendment_line(change: values.Amendment) -> str:
    """An amendment on one line."""
    first, last = change.from_position + 1, change.to_position
    where = f"[{first}]" if first == last else f"[{first}-{last}]"
    value = json.dumps(change.value, ensure_ascii=False)
    return f"r{change.revision} {where} {change.op} {change.path} {cut(value, 100)}"


def memory_retry(
    name: Annotated[str, typer.Argument(help="The memory's name.")] = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Let a stalled memory try again."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            info = await client.session(session).memory(name).retry()
        show(f"{name} is {info.status} at position {info.applied_position}")

    run(work())
