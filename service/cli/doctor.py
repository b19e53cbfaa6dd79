"""`doctor`: looks at everything that a deployment needs, and says what to do."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from service.cli.app import SettingsPath
from service.cli.deployment import DataDir, Deployment, TenantName, find_deployment
from service.cli.output import escaped, out, show_json
from service.cli.run import read_config, read_settings
from service.cli.talk import Json
from service.domain.checkup import Finding, Level, bad, judge_disk, ok, warn

#: How long the API may take to answer, in seconds.
ANSWER_SECONDS = 5.0
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(
    as_json: Json = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            envvar="PALIMPSEST_ADDRESS",
            help="HOST:PORT of an API to look at; default: where PALIMPSEST_LISTEN says.",
            metavar="ADDR",
        ),
    ] = None,
    tenant: TenantName = None,
    data_dir: DataDir = None,
    settings_path: SettingsPath = None,
) -> None:
    """Look at a deployment: what is ok, what to watch (warn), what does not work (bad).

    Reads the same settings as `serve` and `work`, or those of an `up` that runs here, changes
    nothing, calls no model, and needs no more rights than they do. Of all tenants, unless
    --tenant names one.
    Exit code 1 when anything is bad.
    """
    found = find_deployment(data_dir)
    if (said := read_settings()[1].warning()) is not None:
        _tell(said, as_json=as_json)
    is_bad = asyncio.run(_look(found, address or found.config.listen, tenant, as_json=as_json))
    for one in _disks(data_dir):
        _tell(one, as_json=as_json)
        is_bad = is_bad or one.level is Level.BAD
    if is_bad:
        raise typer.Exit(1)


async def _look(found: Deployment, address: str, tenant: str | None, *, as_json: bool) -> bool:
    import migrations
    from service.usecases.checkup import Checkup, Migrations

    known = Migrations(newest=migrations.newest(), known=migrations.known())
    is_bad = False
    _tell(ok("settings", found.source), as_json=as_json)
    checkup = Checkup(found.config, known, tenant=tenant, hidden=found.hidden)
    async for one in checkup.findings():
        _tell(one, as_json=as_json)
        is_bad = is_bad or one.level is Level.BAD
    api = await _api(address)
    _tell(api, as_json=as_json)
    return is_bad or api.level is Level.BAD


def _tell(one: Finding, *, as_json: bool) -> None:
    if as_json:
        show_json({**asdict(one), "level": one.level.value})
        return
    said = escaped(f"{one.said}; {one.advice}" if one.advice else one.said)
    mark = f"[{_STYLES[one.level]}]{one.level.value:4}[/]"
    out.print(f"{mark}  {one.name:12} {' '.join(said.split())}")


def _disks(data_dir: Path | None) -> list[Finding]:
    """The disks of an embedded PostgreSQL; of another one they cannot be seen."""
    from service.embedded import disk

    config = read_config(data_dir=data_dir)
    if config.database_url is not None:
        return []
    rooms = disk.look(config.data_dir / "postgres" / "data")
    return [judge_disk(str(one.place), one.free_bytes, is_full=one.is_full) for one in rooms]


async def _api(address: str) -> Finding:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(address) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return ok("api", f"nothing listens at {address}, which is no error by itself")
            said = f"{address} answers {error.code().name}: {error.details()}"
            return warn("api", said, "look whether it is Palimpsest that listens there")
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        said = f"{address} serves no calls: it is stopping, or it cannot reach its database"
        return bad(
            "api", said, "`palimpsest health` on its machine says which, and so does its log"
        )
    return ok("api", f"{address} serves")
