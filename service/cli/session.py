"""`palimpsest session`: sessions, and how far their search index is."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from palimpsest import Client, Retention, SearchIndex, SessionInfo
from service.cli.command import (
    LAST,
    Json,
    Labels,
    MissingOk,
    NamedSession,
    add_group,
    new_request_id,
)
from service.cli.output import (
    CommandError,
    counted,
    cut,
    plain_json,
    say,
    show,
    show_json,
    show_list,
)

Pairs = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Values of your own; may be repeated."),
]

Retained = Annotated[
    list[str] | None,
    typer.Option(
        "--retain",
        metavar="WHAT=DAYS",
        help="How many days to keep `idle` (the session, unused), `session`, `chunks`, `history`"
        " (of older revisions of a memory the last of each day stays), `calls`, `answers` or"
        " `trajectories`; or `forever`. What is not named is kept as the tenant's policy says; may"
        " be repeated.",
    ),
]
#: What --retain names, by the fields of a policy.
_RETAINED = {
    "idle": "idle_session_days",
    "session": "session_days",
    "chunks": "chunk_days",
    "history": "history_days",
    "calls": "call_days",
    "answers": "answer_days",
    "trajectories": "trajectory_days",
}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Sessions: create, show, list, update, delete, and their search index."
    add_group(app, "session", summary, create, list_, show_, update, delete, index)


async def create(
    client: Client,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    language: Annotated[
        str,
        typer.Option(
            help="What its text is searched in: english, german, simple (words as they are) …;"
            " default: the service's."
        ),
    ] = "",
    metadata: Pairs = None,
    default_memory: Annotated[
        bool | None,
        typer.Option(
            "--default-memory/--no-default-memory",
            help="Whether its first append makes the memory `default` if there is none by then;"
            " default: as the service's setting says.",
        ),
    ] = None,
    retain: Retained = None,
    as_json: Json = False,
) -> None:
    """Create a session."""
    created = await client.create_session(
        session,
        language=language,
        metadata=pairs(metadata or ()),
        default_memory=default_memory,
        retention=retention(retain) if retain else None,
        request_id=new_request_id(),
    )
    show_json(_json(await created.info())) if as_json else show(session)


async def list_(client: Client, as_json: Json = False) -> None:
    """List all sessions."""
    await show_list(
        client.sessions(),
        lambda one: [
            (
                one.id,
                f"{one.head:,}",
                f"{one.content_bytes:,}",
                f"{one.created_at:%Y-%m-%d %H:%M}",
            )
        ],
        ("session", ">chunks", ">bytes", ">created"),
        as_json=as_json,
        to_json=_json,
    )


def _json(info: SessionInfo) -> dict[str, Any]:
    found: dict[str, Any] = plain_json(info, id="session")
    return found


async def show_(
    session: NamedSession,
    labels: Labels,
    chunks: Annotated[int, typer.Option(min=0, help="Show so many chunks.")] = 5,
    from_position: Annotated[
        int, typer.Option("--from", min=1, max=LAST, help="The first of them.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Show a session and some of its chunks."""
    info = await session.info()
    if as_json:
        show_json(_json(info))
    else:
        show(f"{info.id}: {counted(info.head, 'chunk')}, {info.content_bytes:,} bytes")
        for key, value in sorted(info.metadata.items()):
            show(f"  {key}={value}")
        show_retention(info.retention)
    wanted = labels.wanted()
    # With a filter the position of the last one is not known.
    last = None if any(wanted.values()) else from_position + chunks - 1
    shown = 0
    async for chunk in session.chunks(from_position=from_position, to_position=last, **wanted):
        if shown == chunks:
            break
        shown += 1
        text = chunk.text or " / ".join(part for _, part in chunk.step_parts)
        removed = chunk.redaction.cause if chunk.redaction else ""
        if as_json:
            own = {name: getattr(chunk, name) for name in ("thread", "source", "occurred_at")}
            given = {name: value for name, value in own.items() if value}
            given |= {"removed": removed} if removed else {}
            show_json({"position": chunk.position, "kind": chunk.kind, "text": text, **given})
        else:
            show(f"  [{chunk.position}] {f'({removed})' if removed else cut(text, 100)}")


async def update(
    session: NamedSession,
    metadata: Pairs = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all metadata.")] = False,
    retain: Retained = None,
    retain_default: Annotated[
        bool, typer.Option("--retain-default", help="Keep all as the tenant's policy says.")
    ] = False,
    etag: Annotated[
        str, typer.Option(help="Only while it is as `session show --json` has it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Replace the metadata of a session, or how long its data is kept, as a whole."""
    if (clear and metadata) or (retain_default and retain):
        raise CommandError("--clear and --retain-default go without new values")
    if not (metadata or clear or retain or retain_default):
        raise CommandError("give --metadata, --clear, --retain or --retain-default")
    info = await session.update(
        metadata=pairs(metadata or ()) if metadata or clear else None,
        retention=retention(retain or ()) if retain or retain_default else None,
        etag=etag,
        request_id=new_request_id(),
    )
    show_json(_json(info)) if as_json else show(info.id)


def show_retention(policy: Retention) -> None:
    """Prints what a policy says."""
    for what, field in _RETAINED.items():
        days = getattr(policy, field)
        if days is not None:
            show(f"  retain {what}: {f'{days} days' if days else 'for ever'}")


def retention(given: Sequence[str]) -> Retention:
    """Returns the policy of --retain. Raises CommandError."""
    found: dict[str, int] = {}
    for one in given:
        what, _, days = one.partition("=")
        if what not in _RETAINED:
            raise CommandError(f"--retain: {cut(what, 60)!r} is none of {', '.join(_RETAINED)}")
        if days != "forever" and not (days.isascii() and days.isdecimal() and len(days) <= 5):
            raise CommandError(f"--retain: {what}={cut(days, 20)} is neither days nor `forever`")
        number = 0 if days == "forever" else int(days)
        if found.setdefault(_RETAINED[what], number) != number:
            raise CommandError(f"--retain: {what} has two values")
    return Retention(**found)


async def delete(
    session: NamedSession,
    missing_ok: MissingOk = False,
    include_imports: Annotated[
        bool,
        typer.Option(
            "--include-imports", help="Also what was imported in the tenant from its exports."
        ),
    ] = False,
) -> None:
    """Delete a session with its log, memories and answers, for good."""
    await session.delete(
        missing_ok=missing_ok, include_imports=include_imports, request_id=new_request_id()
    )
    say(f"session {session.id} is deleted")


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Returns the keys and values of --metadata. Raises CommandError."""
    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise CommandError(f"--metadata: {cut(one, 60)!r} has no =")
        if found.setdefault(key, value) != value:
            raise CommandError(f"--metadata: {cut(key, 60)!r} has two values")
    return found


async def index(session: NamedSession, as_json: Json = False) -> None:
    """Show how many chunks of a session can be found by words, and by vectors."""
    found = await session.search_index()
    if as_json:
        show_json(found)
        return
    show(f"{found.head:,} chunks, language {found.language}")
    show(f"words:   {found.indexed_position:,} of {found.head:,}")
    model = f" ({found.embedding_model})" if found.embedding_model else ""
    show(f"vectors: {found.embedded_position:,} of {found.head:,}{model}")
    for line in index_problems(found):
        show(line)


def index_problems(index: SearchIndex) -> list[str]:
    """Returns what a search cannot do for now, and why."""
    lines: list[str] = []
    if index.vectors_unavailable:
        lines.append(f"no search by vectors: {index.vectors_unavailable}")
    if index.failure:
        lines.append(f"failed: {index.failure}")
    return lines
