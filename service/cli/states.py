"""Commands for state memories: the working context, its vectors, and recording steps."""

from typing import Annotated, Any
from uuid import uuid4

import typer

import palimpsest
from palimpsest import StateVector, WorkingContext, values
from palimpsest.values import ContextForm
from service.cli.lines import positions
from service.cli.output import CommandError, cut, out, plain, say, show, show_json
from service.cli.step_lines import Step, read_steps
from service.cli.talk import (
    DAY,
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    LAST,
    Address,
    Json,
    MemoryName,
    SessionName,
    run,
)

#: Of a vector's line, in characters; less on a narrower terminal.
LINE_CHARACTERS = 110
#: Steps and vectors that a vector was made from, which `state show` names.
MAX_SOURCES = 20
#: What the proto allows.
MAX_LEVEL = 1000

_MADE = {
    "task": "the task prompt",
    "model": "by the model",
    "cut": "by the model, cut",
    "skipped": "by no model: skipped",
}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    state = typer.Typer(
        no_args_is_help=True, help="State memories: the working context, vectors, steps."
    )
    state.command("context")(state_context)
    state.command("list")(state_list)
    state.command("show")(state_show)
    state.command("record")(state_record)
    app.add_typer(state, name="state")


def state_context(
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a compression that is due.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(min=0, max=LAST, help="As it was when the log ended at this position."),
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print chat messages, a JSON object a line.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")] = 30.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Print the working context: the state vectors in use, and the steps since.

    Without --wait it is the latest: where a compression is due and not made yet, an older
    vector and more steps. A step is in it once, in any case. Control characters are written
    out; --json and --messages have them as they are.
    """
    if wait and at is not None:
        raise CommandError("give --wait or --at, not both: a past context has nothing to wait for")
    if messages and as_json:
        raise CommandError("give --messages or --json, not both")
    forms: list[ContextForm] = ["messages"] if messages else ["parts", "text"]

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            context = await (
                client.session(session)
                .state(memory)
                .context(
                    freshness="wait" if wait else "latest",
                    position=at,
                    forms=forms,
                    timeout=timeout,
                )
            )
        if as_json:
            show_json(context_json(context))
            return
        if messages:
            for one in context.messages:
                show_json({"role": one.role, "content": one.content})
        else:
            show(context.text)
        _say_figures(context)

    run(work())


def _say_figures(context: WorkingContext) -> None:
    say(
        f"revision {context.revision}: {context.memory_tokens:,} tokens of vectors,"
        f" {context.recent_tokens:,} of {context.head - context.applied_position} recent steps"
    )
    if context.compression_due:
        say(f"a compression is due: {context.trouble or 'it is under way'}")


def context_json(context: WorkingContext) -> dict[str, Any]:
    """A working context as plain JSON."""
    return {
        "revision": context.revision,
        "applied_position": context.applied_position,
        "head": context.head,
        "vectors": [vector_json(vector) for vector in context.vectors],
        "recent": [_step_json(step) for step in context.recent],
        "text": context.text,
        "memory_tokens": context.memory_tokens,
        "recent_tokens": context.recent_tokens,
        "compression_due": context.compression_due,
        "trouble": context.trouble,
        "token": context.token,
    }


def _step_json(step: values.RecentStep) -> dict[str, Any]:
    chunk = step.chunk
    parts = ("role", "text", "observation", "thought", "action")
    held: dict[str, Any] = {name: getattr(chunk, name) for name in parts if getattr(chunk, name)}
    if chunk.observed_first:
        held["observed_first"] = True
    return {"position": chunk.position, "kind": chunk.kind, **held, "tokens": step.tokens}


def vector_json(vector: StateVector) -> dict[str, Any]:
    """A state vector as plain JSON."""
    return {
        "revision": vector.revision,
        "level": vector.level,
        "made": vector.made,
        "after_position": vector.after_position,
        "from_position": vector.from_position,
        "to_position": vector.to_position,
        "children": list(vector.children),
        "tokens": vector.tokens,
        "replies": vector.replies,
        "appended": list(vector.appended),
        "text": vector.text,
    }


def state_list(
    level: Annotated[
        int, typer.Option(min=0, max=MAX_LEVEL, help="Only this one; 1: of steps; 0: all.")
    ] = 0,
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List the state vectors, oldest first: revision, level, what is new in it, its text."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            async for vector in client.session(session).state(memory).vectors(level=level):
                if as_json:
                    show_json(vector_json(vector))
                else:
                    show(vector_line(vector))

    run(work())


def vector_line(vector: StateVector) -> str:
    """A vector on one line."""
    where = positions(vector.from_position, vector.to_position)
    note = f", {vector.made}" if vector.made in ("cut", "skipped") else ""
    head = f"r{vector.revision} level {vector.level} {where} {vector.tokens:,} tokens{note}:"
    return cut(f"{head} {plain(vector.text)}", min(LINE_CHARACTERS, out.width))


def state_show(
    revision: Annotated[
        int | None,
        typer.Argument(min=0, max=LAST, help="That brought the vector; default: the newest, M."),
    ] = None,
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a state vector as a whole, and what it was made from."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            held = client.session(session).state(memory)
            vector = await _vector(held, revision)
            before = await _before(held, vector)
            if as_json:
                show_json({**vector_json(vector), "continues": before})
                return
            show(_title(vector))
            if vector.appended:
                show(f"  the model had dropped {', '.join(map(repr, vector.appended))}")
            if vector.revision:
                show(f"  made from {_sources(vector, before)}")
                await _show_sources(held, vector)
            show(vector.text)

    run(work())


async def _vector(state: palimpsest.State, revision: int | None) -> StateVector:
    """The vector of a revision, or M. Raises CommandError."""
    if revision is None:
        return (await state.context(forms=["parts"])).vectors[-1]
    if revision == 0:
        return (await state.context(position=0, forms=["parts"])).vectors[-1]
    async for vector in state.vectors():
        if vector.revision == revision:
            return vector
        if vector.revision > revision:
            break
    # Which refuses what is no revision.
    await state.get(revision=revision)
    raise CommandError(f"revision {revision} of memory {state.name!r} brought no vector")


async def _before(state: palimpsest.State, vector: StateVector) -> int | None:
    """The revision of the vector that it continues: 0 for the task prompt, None for none."""
    if not vector.revision:
        return None
    there = (await state.get(revision=vector.revision - 1)).value["vectors"]
    found = [one["revision"] for one in there if one["level"] == vector.level]
    return int(found[0]) if found else None


def _title(vector: StateVector) -> str:
    by = _MADE.get(vector.made, vector.made)
    replies = "" if vector.replies <= 1 else f" in {vector.replies} replies"
    title = f"r{vector.revision}, level {vector.level}: {by}{replies}, {vector.tokens:,} tokens"
    if not vector.revision:
        return title
    whole = positions(vector.after_position, vector.to_position)
    new = positions(vector.from_position, vector.to_position)
    return f"{title}, stands for {whole}" + (f", new are {new}" if new != whole else "")


def _sources(vector: StateVector, before: int | None) -> str:
    """What a vector was made from, in a few words."""
    continued = [] if before is None else [f"r{before}" if before else "the task prompt"]
    if vector.children:
        named = ", ".join(f"r{one}" for one in vector.children)
        return " and ".join([*continued, f"the vectors {named}:"])
    where = positions(vector.from_position, vector.to_position)
    return " and ".join([*continued, f"the steps {where}:"])


async def _show_sources(state: palimpsest.State, vector: StateVector) -> None:
    """Lines of the first steps, or vectors, that a vector was made from."""
    shown = 0
    if vector.children:
        async for child in state.vectors(level=vector.level - 1):
            if child.revision in vector.children and shown < MAX_SOURCES:
                show(f"    {vector_line(child)}")
                shown += 1
        left = len(vector.children) - shown
    else:
        first, last = vector.from_position + 1, vector.to_position
        async for chunk in state.session.chunks(
            from_position=first, to_position=min(last, vector.from_position + MAX_SOURCES)
        ):
            parts = (chunk.text, *(part for _, part in chunk.step_parts))
            line = " / ".join(plain(part) for part in parts if part)
            show("    " + cut(f"[{chunk.position}] {line}", min(LINE_CHARACTERS, out.width)))
            shown += 1
        left = vector.to_position - vector.from_position - shown
    if left > 0:
        show(f"    … {left} more")


def state_record(
    file: Annotated[
        str, typer.Argument(help="A file of steps, a JSON object a line, or - ; without it: one.")
    ] = "",
    observation: Annotated[str, typer.Option(help="What the agent saw.")] = "",
    thought: Annotated[str, typer.Option(help="What it thought.")] = "",
    action: Annotated[str, typer.Option(help="What it did.")] = "",
    observed_first: Annotated[
        bool, typer.Option("--observed-first", help="It saw that before it thought and acted.")
    ] = False,
    session: SessionName = DEFAULT_NAME,
    producer: Annotated[
        str, typer.Option(help="The producer's name; with one, run again it adds nothing twice.")
    ] = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Append a step of an agent to a session, or many; they are durable when it ends.

    A line is an object with observation, thought and action, or with role and text for a
    message; metadata may be an object of texts. The observation is what came of the action,
    unless observed_first is true. All lines are looked at before the first is sent.
    """
    one = Step(
        observation=observation, thought=thought, action=action, observed_first=observed_first
    )
    if file and not one.is_empty():
        raise CommandError("give a file, or --observation, --thought and --action, not both")
    if not file and one.is_empty():
        raise CommandError("a step needs --observation, --thought or --action, or a file")
    steps = read_steps(file) if file else [one]

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            name = producer or f"steps-{uuid4().hex}"
            async with client.session(session).producer(name) as stream:
                skipped = min(stream.last_acked_sequence, len(steps)) if producer and file else 0
                for step in steps[skipped:]:
                    await step.send(stream)
                ack = await stream.flush()
        if skipped:
            say(f"{skipped} of {len(steps)} steps are there already")
        if as_json:
            told = {"position": ack.position, "token": ack.token} if ack else {}
            show_json({"session": session, "steps": len(steps), "skipped": skipped, **told})
        elif ack is not None:
            last, count = ack.position, len(steps) - skipped
            show(f"{count} step{'s' * (count != 1)} durable, up to position {last}")
        else:
            show("nothing new")

    run(work())
