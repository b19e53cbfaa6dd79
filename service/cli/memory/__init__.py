"""`palimpsest memory`: create, read, search, look back, change by hand."""

import typer

from service.cli.app import new_group
from service.cli.memory import create, edit, history, read, search

group = new_group("Memories: create, read, search, look back, change by hand.")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for module in (create, read, search, history, edit):
        module.register(group)
    app.add_typer(group, name="memory")
