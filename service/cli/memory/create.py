"""`palimpsest memory create` and `memory rebuild`: a command for each kind, with its options."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

import palimpsest
from palimpsest import Memory, MemoryInfo, Operation, Session
from service.cli.app import new_group
from service.cli.command import MAX_CHUNK_TOKENS, MAX_TOKENS, Json, command, given, new_request_id
from service.cli.files import read_schema, read_text
from service.cli.memory.output import memory_json
from service.cli.output import CommandError, show, show_json
from service.cli.progress import follow_operation

#: What the proto bounds of a tree's settings, and of a state memory's.
MAX_CHILDREN = 32
MAX_SUMMARY_TOKENS = 8_000
MAX_WORKING_MEMORY_TOKENS = 32_000
MAX_PERIOD = 1000
MAX_STATE_TOKENS = 32_000
MAX_EPISODE_VECTORS = 64
MAX_IDLE_SECONDS = 30 * 86_400.0
MAX_LINGER_SECONDS = 3600.0

Task = Annotated[str | None, typer.Option(help="What the memory is for.")]
Model = Annotated[str | None, typer.Option(help="Model as provider/name.")]
ReplyFormat = Annotated[
    Literal["auto", "text", "structured"] | None,
    typer.Option(help="How the model writes its replies; default: auto."),
]
SkipFailures = Annotated[
    bool | None,
    typer.Option("--skip-failures/--no-skip-failures", help="Skip what fails for good."),
]


@dataclass(frozen=True, slots=True)
class PrismOptions:
    """Settings of a PRISM memory that a rebuild may change."""

    schema: Annotated[
        str | None, typer.Option(help="A file with the schema: class source, or JSON Schema.")
    ] = None
    task: Task = None
    question: Annotated[str | None, typer.Option(help="The question that it serves.")] = None
    final_task: Annotated[
        str | None, typer.Option(help="How answers are to be: their form, length, language.")
    ] = None
    encoding: Annotated[
        Literal["adaptive", "amendments", "in_place"] | None,
        typer.Option(help="How prompts show the memory; default: adaptive."),
    ] = None
    allowed_ops: Annotated[
        Literal["add_and_update", "add_only"] | None,
        typer.Option(help="Which amendments the model may propose; default: add_and_update."),
    ] = None
    steps: Annotated[
        Literal["whole", "focused"] | None,
        typer.Option(
            help="focused: past --memory-tokens a step sees what fits it; the memory may grow."
        ),
    ] = None
    chunk_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens a step; 0: 2,000.")
    ] = None
    model: Model = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = given(self)
        return {**found, "schema": read_schema(found["schema"])} if "schema" in found else found


@dataclass(frozen=True, slots=True)
class NewPrismOptions(PrismOptions):
    """Settings of a new PRISM memory."""

    coercion: Annotated[
        Literal["refuse", "lossless"] | None,
        typer.Option(help="What happens to a value of another type; default: refuse."),
    ] = None
    fold_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Fold amendments past so many; 0: 100,000, or 8,000 with amendments.",
        ),
    ] = None
    memory_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Consolidate, or focus steps, past so many; 0: 6,000, or what the window has"
            " room for.",
        ),
    ] = None
    linger: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_LINGER_SECONDS,
            help="Seconds a step waits for more chunks. Default: 10 while all that waits is"
            " messages (the service's setting), else 0.",
        ),
    ] = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Settings of a summary tree."""

    segment_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens under a leaf; 0: 1,000."),
    ] = None
    max_children: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHILDREN, help="Children of a node; 0: 8.")
    ] = None
    summary_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SUMMARY_TOKENS, help="Tokens of a summary; 0: 250."),
    ] = None
    reasoning: Annotated[
        bool | None,
        typer.Option(
            "--reasoning/--no-reasoning",
            help="Whether the model says why before it moves; default: it does.",
        ),
    ] = None
    working_memory: Annotated[
        Literal["off", "cut", "summarized"] | None,
        typer.Option(help="What is carried down the path; default: cut."),
    ] = None
    working_memory_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_WORKING_MEMORY_TOKENS, help="Tokens of that; 0: 500."),
    ] = None
    model: Model = None
    navigation_model: Annotated[
        str | None, typer.Option(help="Model for questions, as provider/name; default: --model.")
    ] = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it."""
        return given(self)


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Settings of a state memory."""

    task: Annotated[str | None, typer.Option(help="The task prompt, the first vector.")] = None
    task_file: Annotated[
        str | None, typer.Option(help="A file with the task prompt, or - for standard input.")
    ] = None
    period: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_PERIOD, help="N, steps that a compression takes; 0: 10."),
    ] = None
    period_kind: Annotated[
        Literal["fixed", "adaptive"] | None,
        typer.Option(help="Always N steps, or fewer when they say much; default: fixed."),
    ] = None
    period_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TOKENS,
            help="Tokens that stay uncompressed at most; default: 4,000; 0: any.",
        ),
    ] = None
    idle: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_IDLE_SECONDS,
            help="Compress also after so many seconds without a step; 0: never.",
        ),
    ] = None
    state_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_STATE_TOKENS, help="Tokens of a vector; 0: 500.")
    ] = None
    pin: Annotated[
        list[str] | None, typer.Option(help="A text that every vector has; may be repeated.")
    ] = None
    episode_vectors: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_EPISODE_VECTORS,
            help="K, vectors that make one of the next level; 0: no episodes.",
        ),
    ] = None
    model: Model = None
    reply_format: ReplyFormat = None
    skip_failures: SkipFailures = None

    def settings(self) -> dict[str, Any]:
        """Returns what was given, as the client takes it. Raises CommandError."""
        found = given(self)
        if file := found.pop("task_file", ""):
            if found.get("task"):
                raise CommandError("give --task or --task-file, not both")
            found["task"] = read_text(file).rstrip()
        if "idle" in found:
            found["idle_seconds"] = found.pop("idle")
        if "pin" in found:
            found["pinned"] = tuple(found.pop("pin"))
        return found


NewName = Annotated[str, typer.Argument(help="The name of the new memory.")]


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    create = new_group("Create a memory: prism, tree or state.")
    command(create, "prism", create_prism)
    command(create, "tree", create_tree)
    command(create, "state", create_state)
    memory.add_typer(create, name="create")
    rebuild = new_group("Read the whole log again into a new memory beside the old one.")
    command(rebuild, "prism", rebuild_prism)
    command(rebuild, "tree", rebuild_tree)
    command(rebuild, "state", rebuild_state)
    memory.add_typer(rebuild, name="rebuild")


async def create_prism(
    session: Session, name: NewName, options: NewPrismOptions, as_json: Json = False
) -> None:
    """Create a PRISM memory, which is revised by the texts of its session.

    Its schema says what it holds. It is parsed and never run; `schema generate` writes one.
    """
    settings = options.settings()
    if "schema" not in settings:
        raise CommandError("give --schema, a file; `palimpsest schema generate` writes one")
    made = await session.create_memory(name, **settings, request_id=new_request_id())
    await _show(made, as_json)


async def create_tree(
    session: Session, name: NewName, options: TreeOptions, as_json: Json = False
) -> None:
    """Create a summary tree, which grows over the texts of its session."""
    settings = options.settings()
    made = await session.create_tree(name, **settings, request_id=new_request_id())
    await _show(made, as_json)


async def create_state(
    session: Session, name: NewName, options: StateOptions, as_json: Json = False
) -> None:
    """Create a state memory, which compresses the steps of an agent."""
    settings = options.settings()
    made = await session.create_state(name, **settings, request_id=new_request_id())
    await _show(made, as_json)


async def _show(memory: Memory, as_json: bool) -> None:
    if as_json:
        show_json(memory_json((await memory.get()).info))
    else:
        show(memory.id)


async def rebuild_prism(
    memory: Memory, name: NewName, options: PrismOptions, as_json: Json = False
) -> None:
    """Read the whole log again into a new PRISM memory.

    What is not given is as in the old one (--memory). Ctrl-C ends the waiting only:
    `operation cancel` ends the rebuild.
    """
    settings = options.settings()
    await memory_info(memory, "prism")
    await _show_rebuilt(await memory.rebuild(name, **settings), as_json)


async def rebuild_tree(
    tree: palimpsest.Tree, name: NewName, options: TreeOptions, as_json: Json = False
) -> None:
    """Read the whole log again into a new tree, which is open.

    What is not given is as in the old one (--memory). Ctrl-C ends the waiting only:
    `operation cancel` ends the rebuild.
    """
    found = (await memory_info(tree, "tree")).tree
    settings = replace(found, **options.settings()) if found else None
    await _show_rebuilt(await tree.rebuild(name, settings=settings), as_json)


async def rebuild_state(
    state: palimpsest.State,
    name: NewName,
    options: StateOptions,
    no_pins: Annotated[bool, typer.Option("--no-pins", help="Nothing is pinned.")] = False,
    as_json: Json = False,
) -> None:
    """Read the whole log again into a new state memory.

    What is not given is as in the old one (--memory). Ctrl-C ends the waiting only:
    `operation cancel` ends the rebuild.
    """
    changes = options.settings()
    if no_pins and "pinned" in changes:
        raise CommandError("give --pin or --no-pins, not both")
    if no_pins:
        changes["pinned"] = ()
    found = (await memory_info(state, "state")).state
    settings = replace(found, **changes) if found else None
    await _show_rebuilt(await state.rebuild(name, settings=settings), as_json)


async def memory_info(memory: Memory, kind: str = "") -> MemoryInfo:
    """Returns a memory without its value. Raises CommandError for one of another kind."""
    listed = await memory.session.memories()
    found = next((one for one in listed if one.id == memory.id), None)
    info = found or (await memory.get()).info
    if kind and info.kind != kind:
        raise CommandError(
            f"{memory.id!r} is a {info.kind} memory: palimpsest memory rebuild {info.kind}"
        )
    return info


async def _show_rebuilt(operation: Operation[MemoryInfo], as_json: bool) -> None:
    info = await follow_operation(operation, "rebuilding")
    if as_json:
        show_json(memory_json(info))
        return
    done = "everything applied"
    if info.kind == "state":
        done = f"{info.applied_position} of {info.head} chunks compressed"
    show(f"{info.id} is at revision {info.revision}, {done}")
