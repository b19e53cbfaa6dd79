"""`palimpsest access source`: how much sources are trusted, and what a quarantine undoes."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, cast

import typer

from palimpsest import Client, QuarantinedMemory, QuarantineResult, SourceRule
from service.cli import audit
from service.cli.app import new_group
from service.cli.command import Json, new_request_id
from service.cli.output import CommandError, counted, plain_json, show, show_json, show_list

SourceName = Annotated[
    str, typer.Argument(help='The source, or the beginning of several: "web:*".', metavar="SOURCE")
]
SessionId = Annotated[str, typer.Option("--session", "-s", help="The session.")]
#: What `set` takes; "unset" removes the rule.
LEVELS = ("trusted", "unverified", "blocked", "unset")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("Sources: how much they are trusted; quarantine and release.")
    audit.add_named(
        group,
        set=set_trust,
        list=list_rules,
        quarantine=quarantine,
        release=release,
        pending=list_pending,
    )
    app.add_typer(group, name="source")


async def set_trust(
    client: Client,
    source: SourceName,
    trust: Annotated[str, typer.Argument(help=f"One of {', '.join(LEVELS)}.", metavar="LEVEL")],
    session: Annotated[
        str, typer.Option("--session", "-s", help="Only in this session; default: in all.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Set how much a source is trusted."""
    if trust not in LEVELS:
        raise CommandError(f"{trust!r} is no level: give one of {', '.join(LEVELS)}")
    level = None if trust == "unset" else cast('Literal["trusted", "unverified", "blocked"]', trust)
    rule = await client.access.set_source_trust(
        source, level, session=session, request_id=new_request_id()
    )
    if as_json:
        show_json(plain_json(rule))
    else:
        where = f"in session {session}" if session else "in all sessions"
        show(f"{source} is {trust} {where}")


async def list_rules(
    client: Client,
    session: Annotated[
        str, typer.Option("--session", "-s", help="Also the rules of this session.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List how much sources are trusted; the rest is trusted."""

    async def rules() -> AsyncIterator[SourceRule]:
        for one in await client.access.sources(session):
            yield one

    await show_list(
        rules(),
        lambda one: [(one.source, _level(one), one.session or "all sessions")],
        ("source", "trust", "where"),
        as_json=as_json,
    )


async def quarantine(
    client: Client, source: SourceName, session: SessionId, as_json: Json = False
) -> None:
    """Block a source of a session, and undo what its memories derived from it."""
    done = await client.access.quarantine_source(session, source, request_id=new_request_id())
    _show_result(done, as_json)


async def release(
    client: Client, source: SourceName, session: SessionId, as_json: Json = False
) -> None:
    """Restore what a quarantine undid."""
    done = await client.access.release_source(session, source, request_id=new_request_id())
    _show_result(done, as_json)


async def list_pending(client: Client, session: SessionId, as_json: Json = False) -> None:
    """List memories to which a quarantine or a release is not applied yet: workers do it."""

    async def names() -> AsyncIterator[str]:
        for one in await client.access.pending_memories(session):
            yield one

    await show_list(names(), lambda one: [(one,)], ("memory",), as_json=as_json)


def _level(rule: SourceRule) -> str:
    return "quarantined" if rule.quarantined else rule.trust


def _show_result(done: QuarantineResult, as_json: bool) -> None:
    if as_json:
        show_json(plain_json(done))
        return
    show(f"{done.source} is {done.trust} in session {done.session}")
    for line in (one for memory in done.memories for one in _lines(memory)):
        show(line)


def _lines(memory: QuarantinedMemory) -> Sequence[str]:
    lines: list[str] = []
    if memory.pending:
        lines.append(f"memory {memory.memory}: pending, a worker applies it")
    if memory.revision:
        lines.append(
            f"memory {memory.memory}: revision {memory.revision},"
            f" {memory.undone_revisions:,} undone, {counted(memory.reread_chunks, 'chunk')} to read"
            " again"
        )
    if memory.dropped_edits:
        lines.append(f"memory {memory.memory}: {memory.dropped_edits} edits have no place now")
    return lines
