"""`palimpsest verify`: recomputes what follows from a session's log, and says what differs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from service.cli.app import SettingsPath
from service.cli.command import Json
from service.cli.deployment import DataDir, TenantName, database_url_of, find_deployment
from service.cli.output import CommandError, plain_json, say, show, show_json
from service.domain.values.errors import PalimpsestError
from service.domain.values.tenancy import DEFAULT_TENANT

if TYPE_CHECKING:
    from service.usecases.operations.verify import LocatedDifference, Looked, Verifier
    from storage.engine.database import Database
    from storage.operations.tenants import Tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyScope:
    """What is to be verified."""

    #: None: all of the tenant, or of all tenants.
    session: str | None
    #: None: all of the session.
    memory: str | None
    #: By name or id; None: of a session the default one, else all.
    tenant: str | None
    as_json: bool
    #: Whether sums, and entries of memories, that differ are corrected.
    repair: bool


class Place(NamedTuple):
    """A session of a tenant, or what is the tenant's alone."""

    tenant: "Tenant"
    session: str | None

    def __str__(self) -> str:
        if self.session is None:
            return f"tenant {self.tenant.name}"
        is_default = self.tenant.tenant_id == DEFAULT_TENANT
        return self.session if is_default else f"{self.tenant.name}/{self.session}"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(verify)


def verify(
    session: Annotated[str | None, typer.Argument(help="The session's name.")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", help="Only this memory of it.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All sessions: of every tenant, or of --tenant.")
    ] = False,
    tenant: TenantName = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Correct the sums that budgets are checked against, and what searches find in"
            " memories.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Recompute a session from its log and amendments, and compare with what is stored.

    The log and its digests; every revision of every memory; trees against the text under
    them; answers' citations; the search index of chunks and of memories; what was spent, and
    the sums that budgets are checked against. Reads the database (PALIMPSEST_DATABASE_URL) beside
    the service, and changes nothing, but with --repair these sums and the index of memories. A
    SESSION is the default tenant's, unless --tenant names another. Exit code 1 when anything
    differs that was not repaired.
    """
    if (session is None) == (not every) or (every and memory is not None):
        raise CommandError("name one SESSION (and a --memory of it), or give --all")
    if repair and memory is not None:
        raise CommandError("--repair is for sessions or --all: leave --memory out")
    config = find_deployment(data_dir).config
    url = database_url_of(config)
    wanted = VerifyScope(
        session=session, memory=memory, tenant=tenant, as_json=as_json, repair=repair
    )
    if asyncio.run(_run(url, wanted, pooled=config.is_pooled)):
        raise typer.Exit(1)


async def _run(url: str, wanted: VerifyScope, *, pooled: bool) -> int:
    """Verifies one session, or all; how many differences there are."""
    from service.app.kinds import use_cases
    from service.usecases.operations.tenants import NoTenant
    from service.usecases.operations.verify import Verifier
    from storage.engine.database import Database
    from storage.engine.errors import StorageError

    database = Database.connect(url, pool_size=2, name="palimpsest-verify", pooled=pooled)
    verifier = Verifier(database, use_cases())
    sessions = differences = 0
    try:
        async for place in _places(database, verifier, wanted):
            sessions += place.session is not None
            differences += await _verify(verifier, place, wanted)
    except (NoTenant, PalimpsestError) as error:
        # No such session, or memory of it.
        raise CommandError(str(error)) from error
    except StorageError as error:
        raise CommandError(f"cannot read the database: {error}") from error
    finally:
        await database.close()
    if not wanted.as_json:
        many = "1 session" if sessions == 1 else f"{sessions} sessions"
        found = "1 difference" if differences == 1 else f"{differences} differences"
        show(f"{many} verified: {found if differences else 'nothing differs'}")
    return differences


async def _places(
    database: "Database", verifier: "Verifier", wanted: VerifyScope
) -> AsyncIterator[Place]:
    """Yields what is to be verified."""
    if wanted.session is not None:
        yield Place(await _named(database, wanted.tenant), wanted.session)
        return
    async for tenant in _tenants(database, wanted.tenant):
        async for name in verifier.session_names(tenant.tenant_id):
            yield Place(tenant, name)
        yield Place(tenant, None)


async def _tenants(database: "Database", wanted: str | None) -> AsyncIterator["Tenant"]:
    from service.usecases.operations.tenants import all_tenants

    if wanted is not None:
        yield await _named(database, wanted)
        return
    async for one in all_tenants(database):
        yield one


async def _named(database: "Database", wanted: str | None) -> "Tenant":
    from service.usecases.operations.tenants import the_tenant
    from storage.operations.tenants import Tenant

    if wanted is None:
        return Tenant(tenant_id=DEFAULT_TENANT, name="default")
    return await the_tenant(database, wanted)


async def _verify(verifier: "Verifier", place: Place, wanted: VerifyScope) -> int:
    from service.usecases.operations.verify import ENTRIES, SUM, LocatedDifference

    differences = 0
    repairable = {SUM: 0, ENTRIES: 0}
    tenant_id = place.tenant.tenant_id
    if place.session is None:
        checked = verifier.verify_tenant(tenant_id)
    else:
        checked = verifier.verify(tenant_id, place.session, wanted.memory)
    async with aclosing(checked) as results:
        async for one in results:
            if isinstance(one, LocatedDifference):
                differences += 1
                if one.difference.name in repairable:
                    repairable[one.difference.name] += 1
                _show(place, one, as_json=wanted.as_json)
            else:
                _progress(place, one)
    sums, entries = repairable[SUM], repairable[ENTRIES]
    if sums and wanted.repair:
        await verifier.repair(tenant_id, place.session)
        say(f"{place}: {sums} sums set right")
        differences -= sums
    if entries and wanted.repair and place.session is not None:
        await verifier.repair_entries(tenant_id, place.session)
        say(f"{place}: {entries} entries set right")
        differences -= entries
    return differences


def _show(place: Place, found: "LocatedDifference", *, as_json: bool) -> None:
    one = found.difference
    if as_json:
        named = {"tenant": place.tenant.name, "session": place.session or ""}
        show_json({**named, "part": found.part, **plain_json(one)})
    else:
        show(f"{place}  {found.part}, {one.place}: {one.said} ({one.name})")


def _progress(place: Place, looked: "Looked") -> None:
    say(f"{place}: {looked.part} {looked.count}{'' if looked.is_done else ' …'}")
