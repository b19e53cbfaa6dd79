"""`palimpsest doctor` and `health`: whether a deployment, and the processes here, can work."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import palimpsest
from service.app.health import report
from service.cli.app import SettingsPath
from service.cli.command import Json
from service.cli.deployment import DataDir, Installation, TenantName, find_deployment
from service.cli.output import CommandError, escaped, out, show, show_json
from service.cli.run import read_config, read_settings
from service.domain.operations.doctor import Finding, Severity, bad, judge_disk, ok, warn
from service.settings import certificates
from service.settings.config import Config

if TYPE_CHECKING:
    from grpc import aio

#: How long the API may take to answer, in seconds.
ANSWER_SECONDS = 5.0
_STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.BAD: "red"}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(doctor)
    app.command()(health)


def doctor(
    as_json: Json = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            envvar="PALIMPSEST_ADDRESS",
            help="HOST:PORT of the API to check; default: that of PALIMPSEST_LISTEN.",
            metavar="ADDR",
        ),
    ] = None,
    http_url: Annotated[
        str | None,
        typer.Option(
            "--http-url",
            envvar="PALIMPSEST_HTTP_URL",
            help="URL of the API over HTTP to check; default: that of PALIMPSEST_HTTP_LISTEN.",
            metavar="URL",
        ),
    ] = None,
    tenant: TenantName = None,
    data_dir: DataDir = None,
    settings_path: SettingsPath = None,
) -> None:
    """Check whether a deployment works. Findings are ok, warn (watch it) or bad (broken).

    Reads the settings of `serve` and `work`, or those of an `up` that runs here. Changes
    nothing, calls no model, and needs no more rights than they do. Checks all tenants unless
    --tenant names one. Exit code 1 when anything is bad.
    """
    from service.cli.doctor_http import check_http

    found = find_deployment(data_dir)
    if (said := read_settings()[1].warning()) is not None:
        _show(said, as_json=as_json)
    is_bad = asyncio.run(_look(found, address or found.config.listen, tenant, as_json=as_json))
    over_http = asyncio.run(check_http(http_url or None, found.config))
    for one in (*over_http, *_disks(data_dir)):
        _show(one, as_json=as_json)
        is_bad = is_bad or one.level is Severity.BAD
    if is_bad:
        raise typer.Exit(1)


async def _look(found: Installation, address: str, tenant: str | None, *, as_json: bool) -> bool:
    import migrations
    from service.usecases.operations.doctor import Doctor, Migrations

    known = Migrations(newest=migrations.newest(), known=migrations.known())
    is_bad = False
    _show(ok("settings", found.source), as_json=as_json)
    examination = Doctor(found.config, known, tenant=tenant, hidden=found.hidden)
    async for one in examination.findings():
        _show(one, as_json=as_json)
        is_bad = is_bad or one.level is Severity.BAD
    api = await _api(address, found.config)
    _show(api, as_json=as_json)
    return is_bad or api.level is Severity.BAD


def _show(one: Finding, *, as_json: bool) -> None:
    if as_json:
        show_json(one)
        return
    said = escaped(f"{one.said}; {one.advice}" if one.advice else one.said)
    mark = f"[{_STYLES[one.level]}]{one.level.value:4}[/]"
    out.print(f"{mark}  {one.name:12} {' '.join(said.split())}")


def _disks(data_dir: Path | None) -> list[Finding]:
    """Returns what is wrong with the disks of an embedded PostgreSQL, not of another one."""
    from service.local import disk

    config = read_config(data_dir=data_dir)
    if config.database_url is not None:
        return []
    rooms = disk.look(config.data_dir / "postgres" / "data")
    return [judge_disk(str(one.place), one.free_bytes, is_full=one.is_full) for one in rooms]


def _channel(address: str, config: Config) -> "aio.Channel":
    """Returns a channel to the API; with TLS it trusts the certificate that is configured."""
    import grpc

    if "://" in address:
        # As clients name it, who trust what their own settings say.
        try:
            return palimpsest.connect(address).channel
        except ValueError as error:
            raise CommandError(str(error)) from error
    try:
        served = certificates.read(config)
    except certificates.UnusableCertificate:
        served = None
    if served is None:
        return grpc.aio.insecure_channel(address)
    # The address may be one that the certificate does not name, such as 0.0.0.0.
    override = [("grpc.ssl_target_name_override", one) for one in served.hosts[:1]]
    credentials = grpc.ssl_channel_credentials(root_certificates=served.chain)
    return grpc.aio.secure_channel(address, credentials, options=override)


async def _api(address: str, config: Config) -> Finding:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    if config.tls_client_ca_file is not None and config.mutual_tls_listen is None:
        return ok("api", f"{address} accepts clients with a certificate only, and was not asked")
    async with _channel(address, config) as channel:
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


def health(
    kind: Annotated[
        Literal["serve", "work", "executor"] | None,
        typer.Option(help="Ask processes of this kind only."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask only whether they answer, not what they can do.")
    ] = False,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Ask the processes of this machine and user whether they are ready.

    Needs no port and no database: each process answers at a socket in PALIMPSEST_RUN_DIR.
    Exit code 1 when one is not ready, does not answer, or none runs. With --live a process
    that has lost its database is well: to restart it would not help. `python -m
    service.app.health` takes the same options and starts in a tenth of the time.
    """
    well, line = report(read_config().run_dir, kind, live=live, as_json=as_json)
    show(line)
    if not well:
        raise typer.Exit(1)
