"""`palimpsest forget`: removes chunks' content, and everything derived from it."""

from typing import Annotated

import typer

from palimpsest import Forgotten, Session
from service.cli.command import Json, command, new_request_id
from service.cli.files import read_text
from service.cli.output import CommandError, counted, plain_json, say, show, show_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "forget", forget)


async def forget(
    session: Session,
    positions: Annotated[
        list[str] | None,
        typer.Option("--position", metavar="N[-M]", help="A chunk, or a range; may be repeated."),
    ] = None,
    thread: Annotated[str, typer.Option(help="All chunks of a thread.")] = "",
    source: Annotated[str, typer.Option(help="All chunks of a source.")] = "",
    text: Annotated[
        str, typer.Option(help="All chunks that contain this text; - reads standard input.")
    ] = "",
    case_sensitive: Annotated[
        bool, typer.Option("--case-sensitive", help="The case of the text counts.")
    ] = False,
    keep_out: Annotated[
        bool | None,
        typer.Option(
            "--keep-out/--no-keep-out",
            help="Store the same as a tombstone when it is appended anew; default: with --text.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why; it is kept, and must not repeat what is forgotten.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which chunks it would remove.")
    ] = False,
    include_imports: Annotated[
        bool,
        typer.Option(
            "--include-imports", help="First also in sessions that were imported from this one."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the content of chunks, and everything derived from it, for good.

    Positions stay. Memories go back to before they read the chunks, and read the log on from
    there, which may cost model calls. Answers that may rest on the chunks are deleted.
    """
    if sum(map(bool, (positions, thread, source, text))) != 1:
        raise CommandError("give one of --position, --thread, --source and --text")
    found = await session.forget(
        positions=[_range(one) for one in positions or ()],
        thread=thread,
        source=source,
        text=read_text("-").strip() if text == "-" else text,
        case_sensitive=case_sensitive,
        keep_out=keep_out,
        reason=reason,
        dry_run=dry_run,
        include_imports=include_imports,
        request_id="" if dry_run else new_request_id(),
    )
    if as_json:
        show_json(plain_json(found))
        return
    _show(found, keeps_out=bool(text) if keep_out is None else keep_out, dry_run=dry_run)


def _show(found: Forgotten, *, keeps_out: bool, dry_run: bool) -> None:
    would_be = "would be " if dry_run else ""
    for ends in found.positions:
        show(f"{ends.first}" if ends.first == ends.last else f"{ends.first}-{ends.last}")
    say(f"{would_be}redacted: {counted(found.chunks, 'chunk')}")
    if keeps_out:
        say(f"{would_be}kept out: {counted(found.kept_out, 'more text')}")
    if keeps_out and not (found.kept_out or found.chunks):
        say("redacted chunks have nothing left to keep out: name what they said with --text")
    for one in found.imports:
        say(f"{would_be}redacted in its import {one.session!r}: {counted(one.chunks, 'chunk')}")
        if one.undone_edit_count:
            say(f"  {would_be}undone there: {counted(one.undone_edit_count, 'edit')} by hand")
    _show_undone(found, would_be)
    if found.operation is not None and found.operation.state != "done":
        say(f"palimpsest operation wait {found.operation.id} waits for what was derived")


def _show_undone(found: Forgotten, would_be: str) -> None:
    if found.undone_edit_count:
        said = counted(found.undone_edit_count, "edit")
        say(f"{would_be}undone: {said} by hand; make again what has nothing of the chunks")
    for one in found.undone_edits:
        paths = f": {', '.join(one.paths)}" if one.paths else ""
        say(f"  {one.kind} of {one.memory!r} at revision {one.revision}{paths}")
    if (earlier := found.undone_edit_count - len(found.undone_edits)) > 0:
        say(f"  and {counted(earlier, 'earlier one')}: see palimpsest access audit list")


def _range(given: str) -> tuple[int, int]:
    """Returns the positions of `7` or `7-9`. Raises CommandError."""
    first, dash, last = given.partition("-")
    ends = (first, last if dash else first)
    if not all(one.isascii() and one.isdecimal() and len(one) <= 18 for one in ends):
        raise CommandError(f"--position: {given[:40]!r} is no position, and no range such as 7-9")
    if not int(ends[0]):
        raise CommandError("--position: the first chunk of a session has position 1")
    return int(ends[0]), int(ends[1])
