"""`palimpsest memory rebuild`: the whole log again, into a new memory beside the old one."""

from dataclasses import replace
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import Memory, values
from palimpsest.tree_values import ReplyFormat, WorkingMemory
from service.cli import kinds, state_options
from service.cli.kinds import refuse_of_other_kind
from service.cli.lines import memory_json
from service.cli.output import CommandError, show, show_json
from service.cli.progress import Bar
from service.cli.state_options import settings_of
from service.cli.talk import (
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    MAX_CHUNK_TOKENS,
    Address,
    Json,
    MemoryName,
    SessionName,
    run,
)
from service.cli.texts import read_schema

#: What a PRISM memory cannot change.
KINDS_WITH = {
    **kinds.KINDS_WITH,
    "reply_format": ("tree", "state"),
    "skip_failures": ("tree", "state"),
}


def memory_rebuild(
    new: Annotated[str, typer.Argument(help="The name of the new memory.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    schema: Annotated[
        str, typer.Option(help="A file with another schema: class source, or JSON Schema.")
    ] = "",
    task: Annotated[str | None, typer.Option(help="Another task.")] = None,
    question: Annotated[str | None, typer.Option(help="Another question.")] = None,
    final_task: Annotated[
        str | None, typer.Option(help="How answers are to be now: form, length, language.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as provider/name.")] = None,
    encoding: Annotated[values.Encoding | None, typer.Option(help="Another encoding.")] = None,
    operations: Annotated[
        values.Operations | None, typer.Option(help="What the model may do.")
    ] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens a step.")
    ] = None,
    steps: Annotated[
        values.Steps | None, typer.Option(help="What steps are shown of a large memory.")
    ] = None,
    segment_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Of a tree: tokens under a leaf; 0: 1,000."),
    ] = None,
    max_children: Annotated[
        int | None, typer.Option(min=0, max=32, help="Of a tree: children of a node; 0: 8.")
    ] = None,
    summary_tokens: Annotated[
        int | None, typer.Option(min=0, max=8000, help="Of a tree: tokens of a summary; 0: 250.")
    ] = None,
    reasoning: Annotated[
        bool | None,
        typer.Option(
            "--reasoning/--no-reasoning", help="Of a tree: the model says why before it moves."
        ),
    ] = None,
    working_memory: Annotated[
        WorkingMemory | None, typer.Option(help="Of a tree: what is carried down the path.")
    ] = None,
    working_memory_tokens: Annotated[
        int | None, typer.Option(min=0, max=32_000, help="Of a tree: tokens of that; 0: 500.")
    ] = None,
    navigation_model: Annotated[
        str | None, typer.Option(help="Of a tree: model for questions, as provider/name.")
    ] = None,
    task_file: state_options.TaskFile = "",
    period: state_options.PeriodSteps = None,
    period_kind: state_options.PeriodKind = None,
    period_tokens: state_options.PeriodTokens = None,
    idle: state_options.Idle = None,
    state_tokens: state_options.StateTokens = None,
    pin: state_options.Pin = None,
    no_pins: Annotated[
        bool, typer.Option("--no-pins", help="Of a state memory: nothing is pinned.")
    ] = False,
    episode_vectors: state_options.EpisodeVectors = None,
    reply_format: Annotated[
        ReplyFormat | None,
        typer.Option(help="Of a tree or a state memory: how the model writes its moves."),
    ] = None,
    skip_failures: Annotated[
        bool | None,
        typer.Option(
            "--skip-failures/--no-skip-failures",
            help="Of a tree or a state memory: skip what fails for good.",
        ),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Read the whole log again into a new memory beside the old one.

    What is not given is as in the old memory. Ctrl-C ends the waiting only: the new
    memory goes on by itself.
    """
    options = {
        "schema": read_schema(schema) if schema else None,
        "task": task,
        "question": question,
        "final_task": final_task,
        "encoding": encoding,
        "operations": operations,
        "chunk_tokens": chunk_tokens,
        "steps": steps,
        "segment_tokens": segment_tokens,
        "max_children": max_children,
        "summary_tokens": summary_tokens,
        "reasoning": reasoning,
        "working_memory": working_memory,
        "working_memory_tokens": working_memory_tokens,
        "navigation_model": navigation_model,
        "task_file": task_file or None,
        "period": period,
        "period_kind": period_kind,
        "period_tokens": period_tokens,
        "idle": idle,
        "state_tokens": state_tokens,
        "pin": [] if no_pins else pin,
        "episode_vectors": episode_vectors,
        "reply_format": reply_format,
        "skip_failures": skip_failures,
    }
    if no_pins and pin:
        raise CommandError("give --pin or --no-pins, not both")
    given = {name: value for name, value in options.items() if value is not None}
    run(_rebuild((address, session, memory, new), model, given, as_json))


async def _rebuild(
    named: tuple[str, str, str, str], model: str | None, given: dict[str, Any], as_json: bool
) -> None:
    address, session_name, name, new = named
    with Bar("rebuilding", 0) as bar:
        goal: list[int] = []

        def hear(info: values.MemoryInfo) -> None:
            goal[:] = goal or [info.head]
            bar.show(info, total=goal[0])

        async with palimpsest.connect(address) as client:
            session = client.session(session_name)
            memory, changes = _changed(session, await _info(session, name), given)
            made = await memory.rebuild(new, model=model, on_progress=hear, **changes)
            info = await _info(session, made.name)
    if as_json:
        show_json(memory_json(info))
    elif info.kind == "state":
        done = f"{info.applied_position} of {info.head} chunks compressed"
        show(f"{new} is at revision {info.revision}, {done}")
    else:
        show(f"{new} is at revision {info.revision}, everything applied")


async def _info(session: palimpsest.Session, name: str) -> values.MemoryInfo:
    """A memory, without its value. Raises NotFound."""
    found = [info for info in await session.memories() if info.name == name]
    return found[0] if found else (await session.memory(name).get()).info


def _changed(
    session: palimpsest.Session, info: values.MemoryInfo, given: dict[str, Any]
) -> tuple[Memory, dict[str, Any]]:
    """The memory of its kind, and what its `rebuild` changes: settings are given as a whole.

    Raises CommandError for the first option that the memory's kind does not have.
    """
    refuse_of_other_kind(info.kind, given, KINDS_WITH)
    if info.tree is not None:
        settings = replace(info.tree, **given) if given else None
        return session.tree(info.name), {"settings": settings}
    if info.state is not None:
        changed = replace(info.state, **settings_of(given)) if given else None
        return session.state(info.name), {"settings": changed}
    return session.memory(info.name), given
