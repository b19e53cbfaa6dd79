"""The history of a memory: `palimpsest memory log`, `revisions`, `why`, `diff` and `watch`."""

from typing import Annotated, Any

import typer

from palimpsest import Chunk, Committed, Memory, ProvenanceEntry
from service.cli.command import (
    LAST,
    AtRevision,
    Freshness,
    Json,
    NamedMemory,
    PathArgument,
    add_commands,
)
from service.cli.memory.output import amendment_line, change_line, revision_line
from service.cli.output import (
    CommandError,
    cut,
    plain_json,
    say,
    show,
    show_each,
    show_json,
    trust_mark,
    value_line,
)

#: Characters of a chunk that explains an amendment.
EXCERPT_CHARACTERS = 160
#: Signs of a diff.
_SIGNS = {"add": "+", "remove": "-", "update": "~"}


def register(memory: typer.Typer) -> None:
    """Adds the commands."""
    add_commands(memory, log, revisions, why, diff, watch)


async def log(
    memory: NamedMemory,
    freshness: Freshness,
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
    as_json: Json = False,
) -> None:
    """Show the amendments that made a memory, oldest first."""
    if rejected and (path or from_position or to_position):
        raise CommandError("--rejected shows all of them: give no --path, --from or --to with it")
    if rejected:
        await show_each(
            memory.rejections(**freshness.wanted()),
            lambda one: f"r{one.revision} {one.reason}: {cut(one.proposal, 100)}",
            as_json=as_json,
        )
        return
    changes = memory.amendments(
        path=path,
        from_position=from_position,
        to_position=to_position,
        **freshness.wanted(),
    )
    await show_each(changes, amendment_line, as_json=as_json)


async def revisions(memory: NamedMemory, freshness: Freshness, as_json: Json = False) -> None:
    """List every revision of a memory and what caused it, oldest first."""
    await show_each(
        memory.revisions(**freshness.wanted()),
        lambda one: f"{one.created_at:%Y-%m-%d %H:%M:%S} {revision_line(one)}",
        as_json=as_json,
    )


async def why(
    memory: Memory,
    path: PathArgument,
    freshness: Freshness,
    revision: AtRevision = None,
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks of each.")] = 2,
    as_json: Json = False,
) -> None:
    """Show where the value at a path comes from: its amendments, newest first.

    Each with its revision, what has become of it, and the chunks that were read for it;
    > marks the chunk that says it most clearly. With --json: the value, then one line
    for each amendment.
    """
    found = await memory.provenance(path, revision=revision, **freshness.wanted())
    if as_json:
        head = {"path": found.path, **plain_json(found.read_point), "exists": found.exists}
        show_json({**head, "value": found.value})
    else:
        show(f"{found.path} at revision {found.read_point.revision}:")
        show(f"  {value_line(found.value)}" if found.exists else "  nothing is there")
    async for entry in found:
        if as_json:
            show_json(_entry_json(entry))
        else:
            _show_entry(entry, chunks)


def _entry_json(entry: ProvenanceEntry) -> dict[str, Any]:
    found = plain_json(entry)
    chunks = [{"position": one.position, "text": _text_of(one)} for one in entry.chunks]
    comment = found.pop("revision")["comment"]
    return {**found.pop("amendment"), **found, "comment": comment, "chunks": chunks}


def _show_entry(entry: ProvenanceEntry, chunks: int) -> None:
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
        show(f"  {mark} [{chunk.position}]{trust_mark(chunk.trust)} {text}")
    if len(shown) < len(entry.chunks) or entry.chunks_truncated:
        more = "more" if entry.chunks_truncated else f"{len(entry.chunks) - len(shown)} more"
        show(f"    … {more}")


def _text_of(chunk: Chunk) -> str:
    return chunk.text or "\n".join(part for _, part in chunk.step_parts)


def _excerpt(text: str, value: Any) -> str:
    """Returns the beginning of a chunk, or of the newest sentence of `value` in it."""
    line = " ".join(text.split())
    said = value[-1] if isinstance(value, list) and value else value
    at = line.find(" ".join(said.split())) if isinstance(said, str) else 0
    start = "" if at <= 0 else "… "
    return start + cut(line[max(at, 0) :], EXCERPT_CHARACTERS)


async def diff(
    memory: NamedMemory,
    freshness: Freshness,
    revision: Annotated[
        int | None, typer.Option(min=0, max=LAST, help="The old side; default: the newest.")
    ] = None,
    other: Annotated[str, typer.Option(help="Another memory, as the new side.")] = "",
    other_revision: Annotated[
        int | None, typer.Option(min=0, max=LAST, help="The new side; default: the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two revisions of a memory, or two memories: + added, - removed, ~ changed."""
    found = await memory.diff(
        revision=revision,
        other=other,
        other_revision=other_revision,
        **freshness.wanted(),
    )
    if as_json:
        show_json(found)
        return
    right = f"{other} " if other else ""
    old, new = found.read_point.revision, found.other_read_point.revision
    show(f"{memory.id} r{old} -> {right}r{new}")
    for one in found.differences:
        sides = [value_line(one.old)] if one.op != "add" else []
        sides += [value_line(one.new)] if one.op != "remove" else []
        show(f"{_SIGNS[one.op]} {one.path} {' -> '.join(sides)}")
    if not found.differences:
        show("no difference")


async def watch(
    memory: NamedMemory,
    everything: Annotated[bool, typer.Option("--all", help="Begin at the first revision.")] = False,
    token: Annotated[str, typer.Option(help="Continue after what this token stands for.")] = "",
    as_json: Json = False,
) -> None:
    """Print each revision of a memory as it is committed, until Ctrl-C.

    Begins after the newest, unless --all or --token says otherwise, and reconnects when the
    connection is lost. At the end the token is printed with which another watch continues.
    """
    if everything and token:
        raise CommandError("give --all or --token, not both")
    after = 0 if everything else None
    async with memory.watch(after_revision=after, resume_token=token) as found:
        try:
            async for event in found:
                _show_event(event, as_json)
        finally:
            say(f"go on with --token {found.resume_token}")


def _show_event(event: Committed, as_json: bool) -> None:
    if as_json:
        found = plain_json(event)
        show_json({**found.pop("revision"), **found})
    else:
        show(revision_line(event.revision))
        for one in event.amendments:
            show(f"  {change_line(one)}")
        if event.amendments_truncated:
            show("  … more")
