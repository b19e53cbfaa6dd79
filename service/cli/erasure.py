"""`palimpsest erasure`: what was erased, its receipts, and their proof."""

import getpass
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest import Client
from service.cli.access import OfTenant
from service.cli.app import SettingsPath, new_group
from service.cli.audit import add_named
from service.cli.command import Json, new_request_id
from service.cli.deployment import DataDir
from service.cli.output import CommandError, plain_json, say, show, show_json, show_list
from service.cli.run import read_config

if TYPE_CHECKING:
    from service.domain.log.receipts import Receipt
    from service.settings.config import Config
    from service.usecases.operations.erasure_scan import ScannedPlace
    from service.usecases.operations.erasure_verify import ScanTargets

SessionId = Annotated[str, typer.Option("--session", "-s", help="The session.")]
#: Findings of one place that are shown.
MAX_SHOWN = 20
#: What to do about what is left, by a part of its name.
HINTS = (
    ("postgres/data/", "PostgreSQL's files have it until they are used again: --rewrite ends that"),
    ("key: the target's id", "keys of Redis have an id, and no text: they expire by themselves"),
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("Erasures: what was deleted for good, its receipts, and their proof.")
    add_named(
        group,
        list=list_erasures,
        receipt=give_receipt,
        **{"kept-out": list_kept_out},
        allow=allow_text,
    )
    group.command()(verify)
    app.add_typer(group, name="erasure")


async def list_erasures(client: Client, tenant: OfTenant = "", as_json: Json = False) -> None:
    """List what was deleted for good, from the oldest."""
    await show_list(
        client.access.erasures(tenant=tenant),
        lambda one: [
            (
                one.id,
                one.kind,
                f"{one.requested_at:%Y-%m-%d %H:%M:%S}",
                one.principal,
                "done" if one.completed_at else "removing",
                f"{sum(one.removed.values()):,}",
            )
        ],
        ("erasure", "kind", "time (UTC)", "by", "state", ">rows"),
        as_json=as_json,
    )


async def give_receipt(
    client: Client,
    erasure: Annotated[str, typer.Argument(help="The erasure's id: `erasure list` has it.")],
    tenant: OfTenant = "",
) -> None:
    """Print the receipt of an erasure, for `palimpsest erasure verify`."""
    receipt = await client.access.erasure_receipt(erasure, tenant=tenant)
    # As it was signed: no line of it is wrapped or styled.
    print(receipt.json, end="")
    for session in receipt.imported_sessions:
        say(f"session {session!r} was imported from an export of what was erased: delete it, too")


async def list_kept_out(client: Client, session: SessionId, as_json: Json = False) -> None:
    """List the texts that a session keeps out since they were redacted, by their digests."""
    await show_list(
        client.access.kept_out_texts(session),
        lambda one: [
            (
                one.id,
                str(one.words) if one.words else "whole chunk",
                f"{one.created_at:%Y-%m-%d %H:%M:%S}",
                one.principal,
                one.reason,
                one.erasure,
                f"{one.refused_chunks:,}",
            )
        ],
        ("id", "words", "time (UTC)", "by", "reason", "erasure", ">refused"),
        as_json=as_json,
    )


async def allow_text(
    client: Client,
    id: Annotated[str, typer.Argument(help="The text's id: `erasure kept-out` has it.")],
    session: SessionId,
    as_json: Json = False,
) -> None:
    """Let a text in again that a session keeps out; what was redacted stays away."""
    allowed = await client.access.allow_text(session, id, request_id=new_request_id())
    if as_json:
        show_json(plain_json(allowed))
    else:
        show(f"session {session} stores the text {allowed.id} again when it is appended")


def verify(
    receipt: Annotated[Path, typer.Argument(help="A receipt; - reads it from standard input.")],
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", help="A file with the text that must be gone; - asks for it, unseen."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the signature only: nothing is scanned.")
    ] = False,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            envvar="PALIMPSEST_SUPERUSER_DATABASE_URL",
            help="URL of a superuser, or a role with BYPASSRLS; default: that of an `up` here.",
        ),
    ] = None,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="Scan this plain dump, not the database.")
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", help="Scan all files below it as well; may be repeated."),
    ] = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="First rewrite all tables, each locked meanwhile, and leave the write-ahead log"
            " behind.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Prove a receipt again: check its signature, and scan what is stored.

    Scans a dump of the database for rows of what was erased and for texts with the digests of the
    receipt; with --text that dump, Redis, and the files of an `up` here, for the text in its
    encodings: UTF-8, UTF-16, JSON, hex, base64, URL, as pg_dump and PostgreSQL's compression write
    it. Exit code 1 when anything is left, or the receipt is not valid.
    """
    from service.domain.log.receipts import NotAReceipt
    from service.usecases.operations.erasure_verify import verify as results_of
    from service.usecases.operations.signing import check_signature
    from storage.operations.raw_scan import CannotScan

    try:
        parsed = _read(receipt)
        check_signature(parsed)
        if not as_json:
            show(f"pass  signature: {parsed.kind} erased, by key {parsed.public_key.hex()[:16]}")
        if offline:
            return
        targets = _targets(read_config(data_dir=data_dir), database, dump, folder or [], rewrite)
        failed = _show_all(results_of(parsed, _text(text), targets), as_json=as_json)
    except NotAReceipt as error:
        raise CommandError(f"the receipt {error}") from error
    except (ValueError, CannotScan) as error:
        raise CommandError(str(error)) from error
    if failed:
        raise typer.Exit(1)


def _show_all(places: Iterator["ScannedPlace"], *, as_json: bool) -> bool:
    """Shows the results; returns whether anything is left."""
    failed = False
    hints = set()
    for place in places:
        failed = failed or bool(place.left)
        hints |= {hint for name, hint in HINTS if any(name in left for left in place.left)}
        state = "skip" if place.skipped else "FAIL" if place.left else "pass"
        if as_json:
            show_json({"place": place.name, "result": state.lower(), **_figures(place)})
            continue
        show(f"{state}  {place.name}: {place.skipped or f'{place.bytes:,} bytes'}")
        for name, count in list(place.left.items())[:MAX_SHOWN]:
            show(f"      left: {name} ({count:,})")
        for name, count in list(place.notes.items())[:MAX_SHOWN]:
            show(f"      note: {name} ({count:,})")
    for hint in sorted(hints):
        say(hint)
    return failed


def _figures(place: "ScannedPlace") -> dict[str, Any]:
    return {
        "bytes": place.bytes,
        "left": dict(place.left),
        "notes": dict(place.notes),
        "skipped": place.skipped,
    }


def _read(path: Path) -> "Receipt":
    from service.domain.log.receipts import MAX_BYTES, from_json

    if str(path) == "-":
        return from_json(sys.stdin.read(MAX_BYTES + 1))
    try:
        with path.open("rb") as file:
            return from_json(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def _text(path: Path | None) -> str | None:
    """Returns the text that must be gone. Raises CommandError."""
    from service.domain.operations.encodings import MAX_BYTES

    if path is None:
        return None
    if str(path) == "-":
        return getpass.getpass("the text that must be gone: ")
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode().removesuffix("\n")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8") from error


def _targets(
    config: "Config", database: str | None, dump: Path | None, folders: list[Path], rewrite: bool
) -> "ScanTargets":
    from service.local import running
    from service.usecases.operations.erasure_verify import ScanTargets

    found = running.find(config.data_dir)
    redis = config.redis_url.get_secret_value() if config.redis_url is not None else None
    here = None
    if found is not None:
        here = config.data_dir.absolute()
        database = database or running.superuser_url(here)
        redis = redis or found.settings.get("redis_url")
    if (recorded := os.environ.get("PALIMPSEST_RECORD")) and Path(recorded).is_dir():
        folders.append(Path(recorded))
    if rewrite and database is None:
        raise CommandError("--rewrite needs the URL of a superuser: give --database")
    if database is None and dump is None:
        say("no superuser's URL: give --database or --dump to scan the database")
    return ScanTargets(
        database_url=database,
        pg_dump=_pg_dump(),
        dump=dump,
        redis_url=redis,
        data_dir=here,
        folders=tuple(folders),
        rewrite=rewrite,
    )


def _pg_dump() -> str:
    """Returns the program: the embedded server's, which suits it, else that of the system."""
    from service.local.binaries import find_postgres
    from service.local.processes import ServerError

    try:
        return str(find_postgres() / "pg_dump")
    except ServerError:
        return shutil.which("pg_dump") or "pg_dump"
