"""`palimpsest state`: the working context of an agent, its vectors, and recording steps."""

from typing import Annotated, Any, Literal
from uuid import uuid4

import typer

from palimpsest import Chunk, Session, State, StateVector, WorkingContext
from service.cli.command import LAST, Freshness, Json, Timeout, add_group
from service.cli.files import Step, read_steps
from service.cli.output import (
    CommandError,
    counted,
    cut,
    out,
    plain,
    plain_json,
    range_text,
    say,
    show,
    show_each,
    show_json,
)

#: Characters of a vector's line; fewer on a narrower terminal.
LINE_CHARACTERS = 110
#: Steps and vectors that a vector was made from, which `state show` names.
MAX_SOURCES = 20
#: What the proto allows.
MAX_LEVEL = 1000

_ORIGINS = {
    "task": "the task prompt",
    "model": "by the model",
    "cut": "by the model, cut",
    "skipped": "by no model: skipped",
}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "State memories: the working context, vectors, steps."
    add_group(app, "state", summary, context, list_, show_, record)


async def context(
    state: State,
    freshness: Freshness,
    at: Annotated[
        int | None,
        typer.Option(min=0, max=LAST, help="As it was when the log ended at this position."),
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print chat messages, a JSON object a line.")
    ] = False,
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Print the working context: the state vectors in use, and the steps since.

    With --applied it waits for a compression that is due; without it has an older vector and
    more steps instead. A step is in it once, in any case. Control characters are written
    out; --json and --messages have them as they are.
    """
    wanted = freshness.wanted()
    if at is not None and any(wanted.values()):
        raise CommandError("give --at or --applied, not both: a past context never changes")
    if messages and as_json:
        raise CommandError("give --messages or --json, not both")
    forms: list[Literal["parts", "text", "messages"]] = ["parts", "text"]
    found = await state.context(
        position=at,
        forms=["messages"] if messages else forms,
        timeout=timeout,
        **wanted,
    )
    if as_json:
        whole = plain_json(found)
        del whole["messages"]
        whole |= plain_json(whole.pop("read_point"))
        show_json({**whole, "recent": [_chunk_json(chunk) for chunk in found.recent]})
        return
    if messages:
        for one in found.messages:
            show_json(one)
    else:
        show(found.text)
    _say_figures(found)


def _say_figures(context: WorkingContext) -> None:
    read, blocked = context.read_point, context.blocked
    say(
        f"revision {read.revision}: {context.memory_tokens:,} tokens of vectors,"
        f" {context.recent_tokens:,} of {context.head - read.applied_position} recent steps"
    )
    if context.compression_due:
        say(f"a compression is due: {blocked.cause if blocked else 'it is under way'}")


def _chunk_json(chunk: Chunk) -> dict[str, Any]:
    parts = ("role", "text", "observation", "thought", "action")
    given: dict[str, Any] = {name: getattr(chunk, name) for name in parts if getattr(chunk, name)}
    if chunk.observed_first:
        given["observed_first"] = True
    return {"position": chunk.position, "kind": chunk.kind, **given}


async def list_(
    state: State,
    freshness: Freshness,
    level: Annotated[
        int, typer.Option(min=0, max=MAX_LEVEL, help="Only this one; 1: of steps; 0: all.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """List the state vectors, oldest first: revision, level, what is new in it, its text."""
    found = state.vectors(level=level, **freshness.wanted())
    await show_each(found, vector_line, as_json=as_json)


def vector_line(vector: StateVector) -> str:
    """Returns a vector on one line."""
    where = range_text(vector.new_positions)
    note = f", {vector.origin}" if vector.origin in ("cut", "skipped") else ""
    head = f"r{vector.revision} level {vector.level} {where} {vector.tokens:,} tokens{note}:"
    return cut(f"{head} {plain(vector.text)}", min(LINE_CHARACTERS, out.width))


async def show_(
    state: State,
    revision: Annotated[
        int | None,
        typer.Argument(
            min=0, max=LAST, help="The revision that added the vector; default: the newest, M."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a state vector as a whole, and what it was made from."""
    vector = await _vector(state, revision)
    before = await _before(state, vector)
    if as_json:
        show_json({**plain_json(vector), "continues": before})
        return
    show(_title(vector))
    if vector.added_pins:
        show(f"  the model had dropped {', '.join(map(repr, vector.added_pins))}")
    if vector.revision:
        show(f"  made from {_sources(vector, before)}")
        await _show_sources(state, vector)
    show(vector.text)


async def _vector(state: State, revision: int | None) -> StateVector:
    """Returns the vector of a revision, or M. Raises CommandError."""
    if revision is None:
        return (await state.context(forms=["parts"])).vectors[-1]
    if revision == 0:
        return (await state.context(position=0, forms=["parts"])).vectors[-1]
    async for vector in state.vectors():
        if vector.revision == revision:
            return vector
        if vector.revision > revision:
            break
    # Refuses a revision that does not exist.
    await state.get(revision=revision)
    raise CommandError(f"revision {revision} of memory {state.id!r} added no vector")


async def _before(state: State, vector: StateVector) -> int | None:
    """Returns the revision of the vector that it continues; 0 is the task prompt, None none."""
    if not vector.revision:
        return None
    there = (await state.get(revision=vector.revision - 1)).value["vectors"]
    found = [one["revision"] for one in there if one["level"] == vector.level]
    return int(found[0]) if found else None


def _title(vector: StateVector) -> str:
    by = _ORIGINS.get(vector.origin, vector.origin)
    replies = "" if vector.replies <= 1 else f" in {vector.replies} replies"
    title = f"r{vector.revision}, level {vector.level}: {by}{replies}, {vector.tokens:,} tokens"
    if not vector.revision:
        return title
    whole, new = range_text(vector.positions), range_text(vector.new_positions)
    return f"{title}, stands for {whole}" + (f", new are {new}" if new != whole else "")


def _sources(vector: StateVector, before: int | None) -> str:
    """Returns what a vector was made from, in a few words."""
    continued = [] if before is None else [f"r{before}" if before else "the task prompt"]
    if vector.children:
        named = ", ".join(f"r{one}" for one in vector.children)
        return " and ".join([*continued, f"the vectors {named}:"])
    where = range_text(vector.new_positions)
    return " and ".join([*continued, f"the steps {where}:"])


async def _show_sources(state: State, vector: StateVector) -> None:
    """Prints the first steps, or vectors, that a vector was made from."""
    shown = left = 0
    if vector.children:
        async for child in state.vectors(level=vector.level - 1):
            if child.revision in vector.children and shown < MAX_SOURCES:
                show(f"    {vector_line(child)}")
                shown += 1
        left = len(vector.children) - shown
    elif (new := vector.new_positions) is not None:
        async for chunk in state.session.chunks(
            from_position=new.first, to_position=min(new.last, new.first + MAX_SOURCES - 1)
        ):
            parts = (chunk.text, *(part for _, part in chunk.step_parts))
            line = " / ".join(plain(part) for part in parts if part)
            show("    " + cut(f"[{chunk.position}] {line}", min(LINE_CHARACTERS, out.width)))
            shown += 1
        left = new.last - new.first + 1 - shown
    if left > 0:
        show(f"    … {left} more")


async def record(
    named: Session,
    file: Annotated[
        str, typer.Argument(help="A file of steps, a JSON object a line, or - ; without it: one.")
    ] = "",
    observation: Annotated[str, typer.Option(help="What the agent saw.")] = "",
    thought: Annotated[str, typer.Option(help="What it thought.")] = "",
    action: Annotated[str, typer.Option(help="What it did.")] = "",
    observed_first: Annotated[
        bool, typer.Option("--observed-first", help="It saw that before it thought and acted.")
    ] = False,
    producer: Annotated[
        str, typer.Option(help="The producer's name; with one, run again it adds nothing twice.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Append a step of an agent to a session, or many; they are durable when it ends.

    A line is an object with observation, thought and action, or with role and text for a
    message; metadata may be an object of texts. The observation is what came of the action,
    unless observed_first is true. All lines are checked before the first is sent.
    """
    one = Step(
        observation=observation, thought=thought, action=action, observed_first=observed_first
    )
    if file and not one.is_empty():
        raise CommandError("give a file, or --observation, --thought and --action, not both")
    if not file and one.is_empty():
        raise CommandError("a step needs --observation, --thought or --action, or a file")
    steps = read_steps(file) if file else [one]
    async with named.producer(producer or f"steps-{uuid4().hex}") as stream:
        skipped = min(stream.last_acked_sequence, len(steps)) if producer and file else 0
        for step in steps[skipped:]:
            await step.send(stream)
        ack = await stream.flush()
    if skipped:
        say(f"{skipped} of {len(steps)} steps are there already")
    if as_json:
        last = {"position": ack.position, "read_token": ack.read_token} if ack else {}
        show_json({"session": named.id, "steps": len(steps), "skipped": skipped, **last})
    elif ack is not None:
        done = counted(len(steps) - skipped, "step")
        show(f"{done} durable, up to position {ack.position}")
    else:
        show("nothing new")
