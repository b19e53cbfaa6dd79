"""`restored`: the step behind every restore of a backup."""

import typer

from service.cli.output import CommandError, show
from service.cli.run import read_config


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(restored)


def restored() -> None:
    """Say that the database came back from a backup, before anything runs on it.

    What was written behind the backup is lost, and tokens of it that clients still hold must
    not be taken for others: every session gets a new incarnation, so that all tokens from
    before are refused. Uses PALIMPSEST_MIGRATION_DATABASE_URL, else PALIMPSEST_DATABASE_URL,
    as `migrate` does, and one transaction.
    """
    from storage.errors import StorageError, translated
    from storage.restoring import begin_new_history

    config = read_config()
    secret = config.migration_database_url or config.database_url
    if secret is None:
        raise CommandError("PALIMPSEST_DATABASE_URL is not set")
    try:
        with translated():
            renewed = begin_new_history(secret.get_secret_value())
    except StorageError as error:
        raise CommandError(f"cannot begin another history: {error}") from error
    many = "1 session begins" if renewed == 1 else f"{renewed} sessions begin"
    show(f"{many} another history; tokens from before are refused")
