"""All commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from palimpsest import PalimpsestError
from service.cli import (
    access,
    answer,
    ask,
    budget,
    config,
    cost,
    demo,
    doctor,
    erasure,
    extensions,
    forget,
    hook,
    ingest,
    mcp,
    memory,
    model,
    operation,
    proxy,
    remember,
    run,
    schema,
    search,
    session,
    state,
    trajectory,
    transfer,
    tree,
    verify,
)
from service.cli.app import new_app, run_app
from service.cli.output import show

app = new_app()
run.register(app)
for module in (
    ingest,
    remember,
    ask,
    search,
    forget,
    session,
    memory,
    tree,
    state,
    answer,
    trajectory,
    schema,
    transfer,
    mcp,
):
    module.register(app)
for module in (
    operation,
    cost,
    budget,
    access,
    model,
    config,
    doctor,
    verify,
    erasure,
    hook,
    proxy,
    demo,
):
    module.register(app)
extensions.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"palimpsest {version('palimpsest-server')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A memory service for programs that use language models."""


def main() -> None:
    """Runs the command that was asked for, whichever it is."""
    run_app(app, PalimpsestError)
