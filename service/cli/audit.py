"""`palimpsest access audit`: what was done, as a list, as a file, and whether it is unchanged."""

import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest import NO_DIGEST, AuditEvent, Client
from service.cli.app import new_group
from service.cli.command import Json, Limit, command
from service.cli.output import CommandError, cut, first, show, show_json, show_list

OfTenant = Annotated[
    str, typer.Option("--tenant", help="The tenant, for administrators of the system tenant.")
]
#: Characters of a line of an exported log: ids and settings are short.
MAX_LINE_CHARACTERS = 100_000


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("The audit log: what was administered, edited by hand and deleted.")
    add_named(group, list=list_events, export=export, verify=verify)
    app.add_typer(group, name="audit")


def add_named(group: typer.Typer, **works: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Adds commands by their names."""
    for name, work in works.items():
        command(group, name, work)


async def list_events(
    client: Client,
    tenant: OfTenant = "",
    action: Annotated[
        str, typer.Option(help="Only this action, or those that begin so, such as key.")
    ] = "",
    session: Annotated[str, typer.Option("--session", "-s", help="Only about this session.")] = "",
    principal: Annotated[str, typer.Option(help="Only by this principal.")] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List what was done, newest first."""
    events = client.access.audit_events(
        tenant=tenant, action=action, session=session, principal=principal, newest_first=True
    )
    await show_list(
        first(events, limit),
        lambda one: [
            (
                f"{one.sequence}",
                f"{one.occurred_at:%Y-%m-%d %H:%M:%S}",
                one.principal,
                one.action,
                _about(one),
                " ".join(f"{name}={value}" for name, value in one.details.items()),
            )
        ],
        (">event", "time (UTC)", "by", "action", "about", "details"),
        as_json=as_json,
    )


async def export(client: Client, tenant: OfTenant = "") -> None:
    """Print the whole log from its first event, one JSON object a line.

    `palimpsest access audit verify FILE` checks it, without the service.
    """
    async for one in client.access.audit_events(tenant=tenant):
        show_json(one)


async def verify(
    client: Client,
    file: Annotated[
        Path | None, typer.Argument(help="An exported log; default: that of the service.")
    ] = None,
    tenant: OfTenant = "",
    expect: Annotated[
        str, typer.Option(help="N:DIGEST that was printed before: event N still has it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Check that no event was changed, removed or added, by the chain of digests.

    Prints the end of the log as N:DIGEST. Keep it elsewhere, and give it with --expect the next
    time: a log that was written anew from its beginning then shows. Exit code 1 for a log that is
    not unchanged.
    """
    if expect and not re.fullmatch(r"\d{1,18}:[0-9a-f]{64}", expect):
        raise CommandError(f"--expect: {cut(expect, 100)!r} is no N:DIGEST that verify prints")
    events = _read(file) if file else client.access.audit_events(tenant=tenant)
    sequence, digest, found = 0, NO_DIGEST, expect == ""
    async with aclosing(events) as all_events:  # type: ignore[type-var]  # both are generators
        async for one in all_events:
            if not one.follows(sequence, digest):
                raise CommandError(
                    f"event {sequence + 1} was changed, or is missing: the log does not follow"
                    f" from event {sequence} on"
                )
            sequence, digest = one.sequence, one.digest
            found = found or expect == f"{sequence}:{digest.hex()}"
    if file is None:
        head = await client.access.audit_head(tenant=tenant)
        if head.sequence < sequence or (head.sequence == sequence and head.digest != digest):
            raise CommandError(f"the log ends at {head.sequence}, and had event {sequence}")
    if not found:
        raise CommandError(f"the log is another one: it has no event {cut(expect, 100)}")
    if as_json:
        show_json({"events": sequence, "digest": digest.hex()})
    else:
        show(f"{sequence} events, unchanged; the end is {sequence}:{digest.hex()}")


async def _read(file: Path) -> AsyncIterator[AuditEvent]:
    """Yields the events of an exported log. Raises CommandError."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield _event(line, f"{file}, line {number}")
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not UTF-8") from error


def _event(line: str, where: str) -> AuditEvent:
    try:
        given = json.loads(line[:MAX_LINE_CHARACTERS])
        given["occurred_at"] = datetime.fromisoformat(given["occurred_at"]).astimezone(UTC)
        given["digest"] = bytes.fromhex(given["digest"])
        return AuditEvent(**given)
    except (ValueError, TypeError, KeyError) as error:
        raise CommandError(f"{where}: is no event of an exported audit log") from error


def _about(one: AuditEvent) -> str:
    return " / ".join(part for part in (one.session, one.memory, one.target) if part)
