"""All commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from palimpsest.errors import PalimpsestError
from service.cli import (
    answers,
    asking,
    budgets,
    costs,
    demo,
    doctor,
    evaluate,
    health,
    memories,
    models,
    restored,
    run,
    schemas,
    search,
    sessions,
    settings,
    states,
    talk,
    trajectories,
    trees,
    verify,
)
from service.cli.app import new_app, run_app
from service.cli.output import show

app = new_app()
run.register(app)
talk.register(app)
asking.register(app)
answers.register(app)
sessions.register(app)
search.register(app)
memories.register(app)
models.register(app)
settings.register(app)
trees.register(app)
states.register(app)
trajectories.register(app)
schemas.register(app)
budgets.register(app)
costs.register(app)
doctor.register(app)
health.register(app)
verify.register(app)
restored.register(app)
demo.register(app)
evaluate.register(app)


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
