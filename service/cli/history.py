"""Commands that look back: amendments, revisions, where a value came from, what changed."""

import sys
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import values
from service.cli.lines import (
    amendment_json,
    amendment_line,
    revision_json,
    revision_line,
    value_line,
)
from service.cli.output import CommandError, cut, say, show, show_json
from service.cli.talk import (
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    LAST,
    Address,
    Json,
    MemoryArgument,
    MemoryName,
    SessionName,
    run,
)

#: Of a chunk that explains an amendment, in characters.
EXCERPT_CHARACTERS = 160
#: Signs of a diff.
_SIGNS = {"add": "+", "remove": "-", "update": "~"}


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    memory.command("log")(memory_log)
    memory.command("revisions")(memory_revisions)
    memory.command("why")(memory_why)
    memory.command("diff")(memory_diff)
    memory.command("watch")(memory_watch)


def memory_log(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    path: Annotated[str, typer.Option(help="Only what is at this path or below it.")] = "",
    from_position: Annotated[
        int,
        typer.Option(
            "--from", min=0, max=LAST, help="Only steps over this position or later ones."
        ),
    ] = 0,
    to_position: Annotated[
        int,
        typer.Option(
            "--to", min=0, max=LAST, help="Only steps over this position or earlier ones."
        ),
    ] = 0,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Show what the schema refused instead.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show the amendments that made a memory, oldest first."""
    if rejected and (path or from_position or to_position):
        raise CommandError("--rejected shows all of them: give no --path, --from or --to with it")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            if rejected:
                await _show_rejections(memory, as_json)
                return
            wanted = {"from_position": from_position, "to_position": to_position}
            async for change in memory.amendments(path=path, **wanted):
                if as_json:
                    show_json(amendment_json(change))
                else:
                    show(amendment_line(change))

    run(work())


async def _show_rejections(memory: palimpsest.Memory, as_json: bool) -> None:
    async for one in memory.rejections():
        if as_json:
            show_json({"revision": one.revision, "reason": one.reason, "proposal": one.proposal})
        else:
            show(f"r{one.revision} {one.reason}: {cut(one.proposal, 100)}")


def memory_revisions(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List every revision of a memory and what caused it, oldest first."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            async for revision in client.session(session).memory(name).revisions():
                if as_json:
                    show_json(revision_json(revision))
                else:
                    show(f"{revision.created_at:%Y-%m-%d %H:%M:%S} {revision_line(revision)}")

    run(work())


def memory_why(
    path: Annotated[str, typer.Argument(help="$['a']['b'][0], $.'a'.'b'[0] or /a/b/0.")],
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    revision: Annotated[int | None, typer.Option(min=0, max=LAST, help="As it was then.")] = None,
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks of each.")] = 2,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show where the value at a path comes from: its amendments, newest first.

    Each with its revision, what has become of it, and the chunks that were read for it;
    > marks the chunk that says it most clearly. With --json: the value, then one line
    for each amendment.
    """

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            why = await client.session(session).memory(memory).provenance(path, revision=revision)
            head = {"path": why.path, "revision": why.revision, "exists": why.exists}
            if as_json:
                show_json({**head, "value": why.value})
            else:
                show(f"{why.path} at revision {why.revision}:")
                show(f"  {value_line(why.value)}" if why.exists else "  nothing is there")
            async for entry in why:
                if as_json:
                    show_json(_entry_json(entry))
                else:
                    _show_entry(entry, chunks)

    run(work())


def _entry_json(entry: values.ProvenanceEntry) -> dict[str, Any]:
    return {
        **amendment_json(entry.amendment),
        "comment": entry.revision.comment,
        "in_effect": entry.in_effect,
        "origin": entry.origin,
        "best_position": entry.best_position,
        "chunks": [{"position": c.position, "text": _text_of(c)} for c in entry.chunks],
        "chunks_truncated": entry.chunks_truncated,
    }


def _show_entry(entry: values.ProvenanceEntry, chunks: int) -> None:
    marks = ["in effect" if entry.in_effect else "replaced"]
    if entry.origin:
        marks.append("origin")
    show(f"{amendment_line(entry.amendment)} ({', '.join(marks)})")
    if entry.revision.comment:
        show(f"    {cut(entry.revision.comment, EXCERPT_CHARACTERS)}")
    best = entry.best_position
    shown = sorted(entry.chunks, key=lambda chunk: chunk.position != best)[:chunks]
    for chunk in shown:
        mark = ">" if chunk.position == best else " "
        text = _excerpt(_text_of(chunk), entry.amendment.value)
        show(f"  {mark} [{chunk.position}] {text}")
    if len(shown) < len(entry.chunks) or entry.chunks_truncated:
        more = "more" if entry.chunks_truncated else f"{len(entry.chunks) - len(shown)} more"
        show(f"    … {more}")


def _text_of(chunk: values.Chunk) -> str:
    return chunk.text or "\n".join(part for _, part in chunk.step_parts)


def _excerpt(text: str, value: Any) -> str:
    """The beginning of a chunk, or of the newest sentence of `value` in it."""
    line = " ".join(text.split())
    said = value[-1] if isinstance(value, list) and value else value
    at = line.find(" ".join(said.split())) if isinstance(said, str) else 0
    start = "" if at <= 0 else "… "
    return start + cut(line[max(at, 0) :], EXCERPT_CHARACTERS)


def memory_diff(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    revision: Annotated[
        int | None, typer.Option(min=0, max=LAST, help="The old side; default: the newest.")
    ] = None,
    other: Annotated[str, typer.Option(help="Another memory, as the new side.")] = "",
    other_revision: Annotated[
        int | None, typer.Option(min=0, max=LAST, help="The new side; default: the newest.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Compare two revisions of a memory, or two memories: + added, - removed, ~ changed."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            found = await (
                client.session(session)
                .memory(name)
                .diff(revision=revision, other=other, other_revision=other_revision)
            )
        if as_json:
            sides = {"revision": found.revision, "other_revision": found.other_revision}
            listed = [
                {"op": one.op, "path": one.path, "old": one.old, "new": one.new}
                for one in found.differences
            ]
            show_json({**sides, "differences": listed})
            return
        right = f"{other} " if other else ""
        show(f"{name} r{found.revision} -> {right}r{found.other_revision}")
        for one in found.differences:
            sides_ = [value_line(one.old)] if one.op != "add" else []
            sides_ += [value_line(one.new)] if one.op != "remove" else []
            show(f"{_SIGNS[one.op]} {one.path} {' -> '.join(sides_)}")
        if not found.differences:
            show("no difference")

    run(work())


def memory_watch(
    name: MemoryArgument = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="Begin at the first revision.")] = False,
    token: Annotated[str, typer.Option(help="Go on behind what this token stands for.")] = "",
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Print each revision of a memory as it is committed, until Ctrl-C.

    Begins behind the newest, unless told otherwise. A lost connection is gone around.
    At the end the token is printed with which another watch goes on.
    """
    if everything and token:
        raise typer.BadParameter("give --all or --token, not both")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            memory = client.session(session).memory(name)
            after = 0 if everything else None
            async with memory.watch(after_revision=after, resume_token=token) as watch:
                try:
                    async for event in watch:
                        _show_event(event, as_json)
                finally:
                    say(f"go on with --token {watch.resume_token}")

    run(work())


def _show_event(event: values.Committed, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                **revision_json(event.revision),
                "amendments": [amendment_json(one) for one in event.amendments],
                "amendments_truncated": event.amendments_truncated,
                "resume_token": event.resume_token,
            }
        )
    else:
        show(revision_line(event.revision))
        for one in event.amendments:
            show(f"  {one.op} {one.path}{_told_value(one)}")
        if event.amendments_truncated:
            show("  … more")
    # Whoever reads it through a pipe wants it now.
    sys.stdout.flush()


def _told_value(change: values.Amendment) -> str:
    return "" if change.op == "remove" else f" {value_line(change.value)}"
