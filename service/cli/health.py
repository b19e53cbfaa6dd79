"""`palimpsest health`: whether the processes of this machine can do their work."""

from typing import Annotated, Literal

import typer

from service.cli.app import SettingsPath
from service.cli.output import show
from service.cli.run import read_config
from service.cli.talk import Json
from service.health import report


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(health)


def health(
    kind: Annotated[
        Literal["serve", "work", "caller"] | None,
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
    service.health` takes the same options and starts in a tenth of the time.
    """
    well, line = report(read_config().run_dir, kind, live=live, as_json=as_json)
    show(line)
    if not well:
        raise typer.Exit(1)
