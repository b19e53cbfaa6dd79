"""`palimpsest memory rebuild`: the whole log again, into a new memory beside the old one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import Memory, values
from palimpsest.tree_values import ReplyFormat, TreeSettings, WorkingMemory
from service.cli.lines import memory_json
from service.cli.output import CommandError, show, show_json
from service.cli.progress import Bar
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

Hear = Callable[[values.MemoryInfo], None]


def memory_rebuild(
    new: Annotated[str, typer.Argument(help="The name of the new memory.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    schema: Annotated[
        str, typer.Option(help="A file with another schema: class source, or JSON Schema.")
    ] = "",
    task: Annotated[str | None, typer.Option(help="Another task.")] = None,
    question: Annotated[str | None, typer.Option(help="Another question.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as provider/name.")] = None,
    encoding: Annotated[values.Encoding | None, typer.Option(help="Another encoding.")] = None,
    operations: Annotated[
        values.Operations | None, typer.Option(help="What the model may do.")
    ] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=0, max=MAX_CHUNK_TOKENS, help="Tokens a step.")
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
    reply_format: Annotated[
        ReplyFormat | None, typer.Option(help="Of a tree: how the model writes its moves.")
    ] = None,
    skip_failures: Annotated[
        bool | None,
        typer.Option(
            "--skip-failures/--no-skip-failures", help="Of a tree: skip what fails for good."
        ),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Read the whole log again into a new memory beside the old one.

    What is not given is as in the old memory. Ctrl-C ends the waiting only: the new
    memory goes on by itself.
    """
    of_prism = {
        "schema": read_schema(schema) if schema else None,
        "task": task,
        "question": question,
        "encoding": encoding,
        "operations": operations,
        "chunk_tokens": chunk_tokens,
    }
    of_tree = {
        "segment_tokens": segment_tokens,
        "max_children": max_children,
        "summary_tokens": summary_tokens,
        "reasoning": reasoning,
        "working_memory": working_memory,
        "working_memory_tokens": working_memory_tokens,
        "navigation_model": navigation_model,
        "reply_format": reply_format,
        "skip_failures": skip_failures,
    }
    run(
        _rebuild((address, session, memory, new), model, _given(of_prism), _given(of_tree), as_json)
    )


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


async def _rebuild(
    named: tuple[str, str, str, str],
    model: str | None,
    of_prism: dict[str, Any],
    of_tree: dict[str, Any],
    as_json: bool,
) -> None:
    address, session_name, name, new = named
    with Bar("rebuilding", 0) as bar:
        goal: list[int] = []

        def hear(info: values.MemoryInfo) -> None:
            goal[:] = goal or [info.head]
            bar.show(info, total=goal[0])

        async with palimpsest.connect(address) as client:
            session = client.session(session_name)
            made: Memory
            if of_tree:
                settings = await _tree_settings(session.memory(name), of_prism, of_tree)
                tree = session.tree(name)
                made = await tree.rebuild(new, settings=settings, model=model, on_progress=hear)
            else:
                made = await session.memory(name).rebuild(
                    new, model=model, on_progress=hear, **of_prism
                )
            info = (await made.get()).info
    if as_json:
        show_json(memory_json(info))
    else:
        show(f"{new} is at revision {info.revision}, everything applied")


async def _tree_settings(
    memory: Memory, of_prism: dict[str, Any], of_tree: dict[str, Any]
) -> TreeSettings:
    """What the new tree has as a whole: the old one's, but for what is given.

    Raises CommandError for the first option that the memory's kind does not have.
    """
    info = (await memory.get()).info
    for option in of_prism if info.tree is not None else of_tree:
        named = option.replace("_", "-")
        raise CommandError(f"--{named}: a {info.kind} memory has no such setting")
    assert info.tree is not None, "a memory without tree settings was refused"
    return replace(info.tree, **of_tree)
