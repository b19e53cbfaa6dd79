"""`palimpsest`: the command line.

Everything that goes wrong ends in one clear line on standard error and a non-zero
exit code, never in a traceback: 1 for a refusal, 2 for wrong usage, 130 for Ctrl-C.
"""

import os
import sys
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
    restored,
    run,
    schemas,
    search,
    sessions,
    states,
    talk,
    trajectories,
    trees,
    verify,
)
from service.cli.output import CommandError, cut, fail, show

#: Of an argument, in an error.
MAX_SHOWN_CHARACTERS = 60

app = typer.Typer(
    name="palimpsest",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
run.register(app)
talk.register(app)
asking.register(app)
answers.register(app)
sessions.register(app)
search.register(app)
memories.register(app)
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
    """The entry point."""
    try:
        app()
    except (CommandError, PalimpsestError) as error:
        fail(str(error))
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        # An argument of other bytes; only names of files may have them.
        fail(f"{cut(error.object, MAX_SHOWN_CHARACTERS)} is not UTF-8: {error.reason}")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
