"""The app that holds commands, and how they end."""

import os
import sys
from typing import Annotated

import typer

from service.cli.output import CommandError, cut, fail
from service.settings.files import CONFIG

#: Characters of an argument in an error.
MAX_SHOWN_CHARACTERS = 60


def _name_file(path: str | None) -> str | None:
    # The processes that a command starts read it as well.
    if path is not None:
        for name in [name for name in os.environ if name.upper() == CONFIG]:
            del os.environ[name]
        os.environ[CONFIG] = os.path.abspath(path)
    return path


#: Commands that read the settings of the service take it; nothing is left to do with its value.
SettingsPath = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PATH", help=f"A TOML file of settings ({CONFIG}).", callback=_name_file
    ),
]


def new_app() -> typer.Typer:
    """Returns the command line without a command yet."""
    return typer.Typer(
        name="palimpsest",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def new_group(summary: str) -> typer.Typer:
    """Returns a noun of the command line, with no verb yet."""
    return typer.Typer(no_args_is_help=True, help=summary)


def run_app(app: typer.Typer, *refusals: type[Exception]) -> None:
    """Runs the command that was asked for; `refusals` are clear lines, as CommandError is."""
    lines: tuple[type[Exception], ...] = (CommandError, *refusals)
    try:
        app()
    except lines as error:
        fail(str(error))
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        # An argument of other bytes; only names of files may have them.
        fail(f"{cut(error.object, MAX_SHOWN_CHARACTERS)} is not UTF-8: {error.reason}")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The process that read our output has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
