"""Commands that other distributions add by an entry point of the group `palimpsest.commands`."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

import typer

from service.cli.output import CommandError

#: An entry point of this group names a function that takes the command line and adds to it.
GROUP = "palimpsest.commands"
#: Commands of ours that are installed by themselves, and the extra that installs each.
EXTRAS = {"eval": "eval"}


def register(app: typer.Typer) -> None:
    """Adds every command that is installed; one of ours that is not says how to install it."""
    found = {one.name: one for one in entry_points(group=GROUP)}
    for name in sorted(found):
        cast(Callable[[typer.Typer], None], found[name].load())(app)
    for name in sorted(EXTRAS.keys() - found.keys()):
        _add_missing(app, name)


def _add_missing(app: typer.Typer, name: str) -> None:
    @app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def missing() -> None:
        raise CommandError(
            f"`palimpsest {name}` is not installed: pip install 'palimpsest-server[{EXTRAS[name]}]'"
        )
