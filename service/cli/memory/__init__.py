"""`palimpsest memory`: create, read, look back, change by hand."""

import typer

from service.cli.app import new_group
from service.cli.memory import create, edit, history, read

group = new_group("Memories: create, read, look back, change by hand.")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for module in (create, read, history, edit):
        module.register(group)
    app.add_typer(group, name="memory")
