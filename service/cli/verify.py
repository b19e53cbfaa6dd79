"""`verify`: recomputes what follows from a session's log, and says what differs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.deployment import DataDir, database_url_of, find_config
from service.cli.output import CommandError, say, show, show_json
from service.cli.talk import Json

if TYPE_CHECKING:
    from service.usecases.verify import Found, Looked, Verifier


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(verify)


def verify(
    session: Annotated[str | None, typer.Argument(help="The session's name.")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", help="Only this memory of it.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Recompute a session from its log and amendments, and compare with what is stored.

    The log and its digests; every revision of every memory; trees against the text under
    them; answers' citations; the search index. Reads the database (PALIMPSEST_DATABASE_URL)
    beside the service, and changes nothing. Exit code 1 when anything differs.
    """
    if (session is None) == (not every) or (every and memory is not None):
        raise CommandError("name one SESSION (and a --memory of it), or give --all")
    config = find_config(data_dir)
    url = database_url_of(config)
    if asyncio.run(_run(url, session, memory, as_json=as_json)):
        raise typer.Exit(1)


async def _run(url: str, session: str | None, memory: str | None, *, as_json: bool) -> int:
    """Verifies one session, or all; how many differences there are."""
    from service.usecases.verify import Verifier
    from storage.database import Database
    from storage.errors import StorageError

    database = Database.connect(url, pool_size=2, name="palimpsest-verify")
    verifier = Verifier(database)
    sessions = differences = 0
    try:
        async for name in _names(verifier, session):
            sessions += 1
            differences += await _verify(verifier, name, memory, as_json=as_json)
    except StorageError as error:
        raise CommandError(f"cannot read the database: {error}") from error
    finally:
        await database.close()
    if not as_json:
        many = "1 session" if sessions == 1 else f"{sessions} sessions"
        found = "1 difference" if differences == 1 else f"{differences} differences"
        show(f"{many} verified: {found if differences else 'nothing differs'}")
    return differences


async def _names(verifier: "Verifier", session: str | None) -> AsyncIterator[str]:
    from service.domain.tenancy import DEFAULT_TENANT

    if session is not None:
        yield session
        return
    async for name in verifier.session_names(DEFAULT_TENANT):
        yield name


async def _verify(verifier: "Verifier", name: str, memory: str | None, *, as_json: bool) -> int:
    from service.domain.tenancy import DEFAULT_TENANT
    from service.usecases.verify import Found

    differences = 0
    async with aclosing(verifier.verify(DEFAULT_TENANT, name, memory)) as told:
        async for one in told:
            if isinstance(one, Found):
                differences += 1
                _tell(name, one, as_json=as_json)
            else:
                _progress(name, one)
    return differences


def _tell(session: str, found: "Found", *, as_json: bool) -> None:
    one = found.difference
    if as_json:
        show_json({"session": session, "part": found.part, **asdict(one)})
    else:
        show(f"{session}  {found.part}, {one.place}: {one.said} ({one.name})")


def _progress(session: str, looked: "Looked") -> None:
    say(f"{session}: {looked.part} {looked.count}{'' if looked.is_done else ' …'}")
