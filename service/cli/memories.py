"""Commands for memories: making, listing and reading them."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree as Drawing

import palimpsest
from palimpsest import values
from palimpsest.schemas import MAX_JSON_BYTES
from palimpsest.specs import JsonText
from palimpsest.tree_values import WorkingMemory
from service.cli import edits, history, state_options
from service.cli.kinds import refuse_of_other_kind
from service.cli.lines import memory_json, positions, status_of, trouble_lines
from service.cli.output import CommandError, out, show, show_json, show_table, tree_of
from service.cli.talk import (
    DAY,
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    LAST,
    MAX_CHUNK_TOKENS,
    MAX_TOKENS,
    Address,
    After,
    Json,
    MemoryArgument,
    SessionName,
    run,
    token_of,
)
from service.cli.texts import read_schema, read_text

MaybeSession = Annotated[
    str | None, typer.Option("--session", "-s", help=f"The session. Default: {DEFAULT_NAME}.")
]

#: Vectors, and recent chunks, of a working context that are shown.
MAX_CONTEXT_LINES = 20


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    memory = typer.Typer(
        no_args_is_help=True, help="Memories: make, read, look back, change by hand."
    )
    memory.command("create")(memory_create)
    memory.command("list")(memory_list)
    memory.command("show")(memory_show)
    memory.command("retry")(memory_retry)
    history.register(memory)
    edits.register(memory)
    app.add_typer(memory, name="memory")


def memory_create(
    context: typer.Context,
    name: MemoryArgument,
    kind: Annotated[values.MemoryKind, typer.Option(help="What it is.")] = "prism",
    schema: Annotated[
        str, typer.Option(help="A file with the schema: class source, or JSON Schema.")
    ] = "",
    json_schema: Annotated[str, typer.Option(help="A file with the schema as JSON Schema.")] = "",
    session: SessionName = DEFAULT_NAME,
    task: Annotated[str, typer.Option(help="What the memory is for.")] = "",
    question: Annotated[str, typer.Option(help="The question that it serves.")] = "",
    final_task: Annotated[
        str, typer.Option(help="How answers are to be: their form, length, language.")
    ] = "",
    model: Annotated[str, typer.Option(help="Model as provider/name.")] = "",
    encoding: Annotated[
        values.Encoding, typer.Option(help="How prompts show the memory.")
    ] = "adaptive",
    operations: Annotated[
        values.Operations, typer.Option(help="What the model may do.")
    ] = "add_and_update",
    coercion: Annotated[
        values.Coercion, typer.Option(help="What happens to a value of another type.")
    ] = "refuse",
    reply_format: Annotated[
        values.ReplyFormat, typer.Option(help="How the model writes its revisions.")
    ] = "auto",
    steps: Annotated[
        values.Steps,
        typer.Option(
            help="focused: past --memory-tokens a step sees what fits it; the memory may grow."
        ),
    ] = "whole",
    chunk_tokens: Annotated[
        int, typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens a step; 0: 2,000.")
    ] = 0,
    fold_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Fold amendments behind; 0: 100,000, or 8,000 with amendments.",
        ),
    ] = 0,
    memory_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Consolidate, or focus steps, behind; 0: 6,000, or what the window has room for.",
        ),
    ] = 0,
    linger: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="Seconds a step waits for more chunks. Default: 10 while all that waits is"
            " messages (the service's setting), else 0.",
        ),
    ] = None,
    segment_tokens: Annotated[
        int,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Of a tree: tokens under a leaf; 0: 1,000."),
    ] = 0,
    max_children: Annotated[
        int, typer.Option(min=0, max=32, help="Of a tree: children of a node; 0: 8.")
    ] = 0,
    summary_tokens: Annotated[
        int, typer.Option(min=0, max=8000, help="Of a tree: tokens of a summary; 0: 250.")
    ] = 0,
    reasoning: Annotated[
        bool, typer.Option(help="Of a tree: the model says why before it moves.")
    ] = True,
    working_memory: Annotated[
        WorkingMemory, typer.Option(help="Of a tree: what is carried down the path.")
    ] = "cut",
    working_memory_tokens: Annotated[
        int, typer.Option(min=0, max=32_000, help="Of a tree: tokens of that; 0: 500.")
    ] = 0,
    navigation_model: Annotated[
        str, typer.Option(help="Of a tree: model for questions, as provider/name.")
    ] = "",
    task_file: state_options.TaskFile = "",
    period: state_options.PeriodSteps = None,
    period_kind: state_options.PeriodKind = None,
    period_tokens: state_options.PeriodTokens = None,
    idle: state_options.Idle = None,
    state_tokens: state_options.StateTokens = None,
    pin: state_options.Pin = None,
    episode_vectors: state_options.EpisodeVectors = None,
    skip_failures: Annotated[bool, typer.Option(help="Skip what fails for good.")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Create a memory: PRISM from a schema, which is parsed and never run, a tree, or a state."""
    refuse_of_other_kind(kind, (name for name in context.params if _is_given(context, name)))
    if kind == "tree":
        run(
            _create(
                (address, session, name),
                as_json,
                palimpsest.Session.create_tree,
                segment_tokens=segment_tokens,
                max_children=max_children,
                summary_tokens=summary_tokens,
                reasoning=reasoning,
                working_memory=working_memory,
                working_memory_tokens=working_memory_tokens,
                model=model,
                navigation_model=navigation_model,
                reply_format=reply_format,
                skip_failures=skip_failures,
            )
        )
        return
    if kind == "state":
        settings = state_options.settings_of(
            {
                "task": task,
                "task_file": task_file,
                "period": period,
                "period_kind": period_kind,
                "period_tokens": period_tokens,
                "idle": idle,
                "state_tokens": state_tokens,
                "pin": pin,
                "episode_vectors": episode_vectors,
                "model": model,
                "reply_format": reply_format,
                "skip_failures": skip_failures,
            }
        )
        run(_create((address, session, name), as_json, palimpsest.Session.create_state, **settings))
        return
    if bool(schema) == bool(json_schema):
        raise CommandError("give --schema or --json-schema, one of them")
    shape = read_schema(schema) if schema else JsonText(read_text(json_schema, MAX_JSON_BYTES))

    run(
        _create(
            (address, session, name),
            as_json,
            palimpsest.Session.create_memory,
            schema=shape,
            task=task,
            question=question,
            final_task=final_task,
            encoding=encoding,
            operations=operations,
            coercion=coercion,
            reply_format=reply_format,
            steps=steps,
            chunk_tokens=chunk_tokens,
            fold_tokens=fold_tokens,
            memory_tokens=memory_tokens,
            linger=linger,
            model=model,
            skip_failures=skip_failures,
        )
    )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


async def _create(
    named: tuple[str, str, str],
    as_json: bool,
    create: Callable[..., Awaitable[palimpsest.Memory]],
    **settings: Any,
) -> None:
    address, session, name = named
    async with palimpsest.connect(address) as client:
        made = await create(client.session(session), name, **settings)
        if as_json:
            show_json(memory_json((await made.get()).info))
        else:
            show(name)


def memory_list(
    session: MaybeSession = None,
    stalled: Annotated[bool, typer.Option("--stalled", help="Those that gave up.")] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those whose model gives no reply for now.")
    ] = False,
    everywhere: Annotated[bool, typer.Option("--all", help="Of all sessions.")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List the memories of a session; with --all, --stalled or --waiting those of all."""
    if stalled and waiting:
        raise CommandError("give --stalled or --waiting, not both")
    if session is not None and everywhere:
        raise CommandError("give --session or --all, not both")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            if session is None and (everywhere or stalled or waiting):
                await _list_all(client, stalled=stalled, waiting=waiting, as_json=as_json)
                return
            found = [
                info
                for info in await client.session(session or DEFAULT_NAME).memories()
                if (info.stall is not None or not stalled)
                and (info.waiting_cause is not None or not waiting)
            ]
        table = Table("memory", "kind", "status", box=None, pad_edge=False)
        for name in ("revision", "applied", "head"):
            table.add_column(name, justify="right")
        for info in found:
            if as_json:
                show_json(memory_json(info))
            table.add_row(
                info.name,
                info.kind,
                status_of(info),
                str(info.revision),
                str(info.applied_position),
                str(info.head),
            )
        if not as_json:
            show_table(table)

    run(work())


async def _list_all(
    client: palimpsest.Client, *, stalled: bool, waiting: bool, as_json: bool
) -> None:
    table = Table("session", "memory", "kind", "status", "applied", "head", "cause")
    table.box, table.pad_edge = None, False
    async for info in client.memories(stalled=stalled, waiting=waiting):
        if as_json:
            show_json({"session": info.session, **memory_json(info)})
            continue
        position = (str(info.applied_position), str(info.head))
        cause = "; ".join(trouble_lines(info))
        table.add_row(info.session, info.name, info.kind, status_of(info), *position, cause)
    if not as_json and table.row_count:
        out.print(table)
    elif not as_json:
        show("none")


def memory_show(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    revision: Annotated[int | None, typer.Option(min=0, max=LAST, help="As it was then.")] = None,
    position: Annotated[
        int | None,
        typer.Option(min=0, max=LAST, help="As it was when the log was read up to here."),
    ] = None,
    after: After = None,
    applied: Annotated[bool, typer.Option(help="Wait until the whole log is applied.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")] = 30.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a memory as a tree, now, at a revision, or as of a position of the log."""
    token = token_of(after, applied)

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            state = await memory.get(
                revision=revision,
                position=position,
                after=token,
                fully_applied=applied,
                timeout=timeout,
            )
        if as_json:
            head = memory_json(state.info)
            at = {"revision": state.revision, "applied_position": state.applied_position}
            show_json({**head, **at, "value": state.value, "token": state.token})
            return
        if state.info.kind == "state":
            out.print(_context_of(state))
        else:
            title = (
                f"{name} at revision {state.revision}:"
                f" {state.applied_position} of {state.info.head} chunks applied"
            )
            out.print(tree_of(title, state.value))
        for line in trouble_lines(state.info):
            show(line)

    run(work())


def _context_of(state: values.MemoryState) -> Drawing:
    """A working context in lines."""
    vectors, recent = state.value["vectors"], state.value["recent"]
    compressed = recent[0]["position"] - 1 if recent else state.applied_position
    title = (
        f"{state.info.name} at revision {state.revision}:"
        f" {compressed} of {state.info.head} chunks compressed"
    )
    lines = {
        "vectors": [
            f"r{one['revision']} level {one['level']}"
            f" {positions(one['from_position'], one['to_position'])} {one['text']}"
            for one in vectors
        ],
        "recent": [f"[{one['position']}] {one['text']}" for one in recent],
    }
    return tree_of(title, lines, items=MAX_CONTEXT_LINES)


def memory_retry(
    name: Annotated[str | None, typer.Argument(help="The memory's name.")] = None,
    session: MaybeSession = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that gave up, of all sessions or of --session.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Let a stalled memory try again, or all of them with --all.

    What waits for its model needs none of this: it goes on by itself.
    """
    if everything and name is not None:
        raise CommandError("give a memory's name or --all, not both")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            if everything:
                retried = await client.retry_stalled(session or "")
                show_json({"retried": retried}) if as_json else show(f"{retried} try again")
                return
            memory = client.session(session or DEFAULT_NAME).memory(name or DEFAULT_NAME)
            info = await memory.retry()
        if as_json:
            show_json(memory_json(info))
        else:
            show(f"{info.name} is {info.status} at position {info.applied_position}")

    run(work())
