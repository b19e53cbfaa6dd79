"""`palimpsest export` and `palimpsest import`: sessions as files, and files of other services."""

import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer

from palimpsest import Client, Session, TransferProgress
from service.cli.command import Json, NamedSession, command, new_request_id
from service.cli.files import read_text
from service.cli.importers import FORMATS, ForeignFormat, Read
from service.cli.importers.records import ImportedRecord, UnreadableRecord, batches, plain_id
from service.cli.output import CommandError, counted, cut, err, say, show, show_json

#: Bytes of a file of another service, which is read as a whole.
MAX_FILE_BYTES = 1024**3
#: The session of records that name no user.
IMPORTED = "imported"
_STANDARD_INPUT = "standard input"
#: Records that cannot be read and are named; more are counted.
NAMED = 20
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "export", export)
    command(app, "import", import_)


async def export(
    session: NamedSession,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="A file; default: standard output."),
    ] = "",
) -> None:
    """Write all of a session to a file: log, memories, answers, budgets and usage.

    With --output an export that was interrupted continues when it is run again with the same
    file. The file has all texts as they are; only its owner may read it.
    """
    if output:
        written = 0

        def show_written(progress: TransferProgress) -> None:
            nonlocal written
            written = progress.lines
            _show_progress(progress)

        try:
            await session.export(output, progress=show_written)
        except OSError as error:
            raise CommandError(f"cannot write {output}: {error.strerror}") from error
        except ValueError as error:
            raise CommandError(str(error)) from error
        if written:
            say(f"session {session.id!r} is exported to {output}")
        else:
            say(f"{output} has a complete export already: name another file for a newer one")
        return
    if sys.stdout.isatty():
        raise CommandError("redirect the export to a file, or give --output")
    async for block in session.export_blocks():
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    say(f"session {session.id!r} is exported")


def _show_progress(progress: TransferProgress) -> None:
    if err.is_terminal:
        err.print(f"{progress.lines:,} lines, {progress.bytes:,} bytes", end="\r")


async def import_(
    client: Client,
    file: Annotated[str, typer.Argument(help="The file; - is standard input.")],
    session: Annotated[
        str,
        typer.Option(
            "--session",
            "-s",
            help="The session's new id. With --from it may have {user} and other names.",
        ),
    ] = "",
    from_: Annotated[
        ForeignFormat | None,
        typer.Option("--from", help="The file is of another service, and in its format."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="With --from: fail before anything is stored, if a record cannot be read whole.",
        ),
    ] = False,
    restore_deleted: Annotated[
        bool,
        typer.Option(
            "--restore-deleted", help="Also of a session that was deleted here after its export."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read a session from a file of `palimpsest export`, or what another service exported.

    An export becomes a new session, with the id that it had or another. After an interruption
    run it again: it continues. Standard input is first copied to a temporary file.

    With --from the file's content is appended to sessions, which are created where they are
    missing, each record once however often it is imported. mem0: what get_all returns. letta:
    an agent file (.af). langgraph: items of a store. chat: messages as of OpenAI, and what
    ChatGPT and Claude export.
    """
    if from_ is not None:
        await _import_foreign(client, file, from_, session or "{user}", strict, as_json)
        return
    if strict:
        raise CommandError("--strict is for --from")
    shown = _STANDARD_INPUT if file == "-" else file
    try:
        with _seekable(file) as path:
            made = await client.import_session(
                path, session, restore_deleted=restore_deleted, progress=_show_progress
            )
    except OSError as error:
        raise CommandError(f"cannot read {shown}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{shown}: {error}; other formats need --from") from error
    info = await made.info()
    if as_json:
        show_json({"session": made.id, "head": info.head})
    else:
        show(f"session {made.id!r}: {counted(info.head, 'chunk')}")


@contextmanager
def _seekable(file: str) -> Iterator[str]:
    """Yields a path that can be read from any place: of standard input, that of a copy."""
    if file != "-":
        yield file
        return
    if sys.stdin.isatty():
        raise CommandError("redirect an export to standard input, or name its file")
    with tempfile.NamedTemporaryFile(prefix="palimpsest-import-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield copy.name


async def _import_foreign(
    client: Client, file: str, name: ForeignFormat, template: str, strict: bool, as_json: bool
) -> None:
    read = FORMATS[name]
    records, unreadable = _sorted(read_all(read, read_text(file, MAX_FILE_BYTES)))
    partial = [one for one in records if one.problem]
    _say_each("not read", [(one.place, one.reason) for one in unreadable])
    _say_each("read in part", [(one.place, one.problem) for one in partial])
    shown = _STANDARD_INPUT if file == "-" else file
    if unreadable and (strict or not records):
        raise CommandError(f"{shown}: {counted(len(unreadable), 'record')} cannot be read")
    if partial and strict:
        raise CommandError(f"{shown}: {counted(len(partial), 'record')} can be read only in part")
    found = await _append_all(client, template, records)
    if as_json:
        show_json({"sessions": found, "unreadable": len(unreadable), "partial": len(partial)})
        return
    for session, chunks in sorted(found.items()):
        show(f"session {session!r}: {counted(chunks, 'chunk')}")


def _say_each(what: str, found: Sequence[tuple[str, str]]) -> None:
    for place, reason in found[:NAMED]:
        say(f"{what}: {place or 'the file'}: {reason}")
    if len(found) > NAMED:
        say(f"{what}: {len(found) - NAMED:,} more")


def read_all(read: Read, text: str) -> Iterator[ImportedRecord | UnreadableRecord]:
    """Yields the records of a file: of its JSON, or of each of its lines."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = text.splitlines()
        if len(lines) < 2 or not lines[0].rstrip().endswith(("}", "]")):
            raise CommandError(f"the file is no JSON: {cut(str(error), 100)}") from error
    else:
        yield from read(value)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            yield UnreadableRecord(place=f"line {number}", reason="it is no JSON")
            continue
        for one in read(value):
            place = f"line {number}" + (f", {one.place}" if one.place else "")
            yield replace(one, place=place)


def _sorted(
    found: Iterator[ImportedRecord | UnreadableRecord],
) -> tuple[list[ImportedRecord], list[UnreadableRecord]]:
    records: list[ImportedRecord] = []
    unreadable: list[UnreadableRecord] = []
    for one in found:
        if isinstance(one, UnreadableRecord):
            unreadable.append(one)
        else:
            records.append(one)
    return records, unreadable


def session_id(template: str, names: Mapping[str, str]) -> str:
    """Returns the session of a record. Raises CommandError for a name that no record has."""

    def named(found: re.Match[str]) -> str:
        name = found[1]
        if name not in ("user", "agent", "app", "run", "namespace") and name not in names:
            raise CommandError(f"--session: no record has {{{cut(name, 40)}}}")
        return names.get(name) or IMPORTED

    return plain_id(_PLACEHOLDER.sub(named, template)) or IMPORTED


async def _append_all(
    client: Client, template: str, records: list[ImportedRecord]
) -> dict[str, int]:
    """Appends each record once; returns how many chunks each session has of them."""
    sessions: dict[str, Session] = {}
    found: Counter[str] = Counter()
    for record in records:
        id = session_id(template, record.names)
        if id not in sessions:
            sessions[id] = await client.create_session(
                id, exist_ok=True, request_id=new_request_id()
            )
        request_id = record.request_id(id)
        for number, batch in enumerate(batches(record.chunks())):
            await sessions[id].append(batch, request_id=f"{request_id}-{number}")
            found[id] += len(batch)
    return dict(found)
