"""`restored`: the step behind every restore of a backup."""

from typing import Annotated

import typer

from service.cli.app import SettingsPath
from service.cli.output import CommandError, show
from service.cli.run import read_config


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(restored)


def restored(
    nothing_lost: Annotated[
        bool,
        typer.Option(
            "--nothing-lost",
            help="Everything that was committed is there: tokens from before stay good.",
        ),
    ] = False,
    settings_path: SettingsPath = None,
) -> None:
    """Say that the database came back from a backup, before anything runs on it.

    What was written behind the backup is lost, and tokens of it that clients still hold must
    not be taken for others: every session gets a new incarnation, so that all tokens from
    before are refused. It also notes where the database stands now, which `doctor` compares:
    that alone with --nothing-lost, for a standby that was promoted or a server that was
    upgraded without losing a commit. Uses PALIMPSEST_MIGRATION_DATABASE_URL, else
    PALIMPSEST_DATABASE_URL, as `migrate` does.
    """
    from storage import places
    from storage.errors import StorageError, translated
    from storage.restoring import begin_new_history

    config = read_config()
    secret = config.migration_database_url or config.database_url
    if secret is None:
        raise CommandError("PALIMPSEST_DATABASE_URL is not set")
    try:
        with translated():
            url = secret.get_secret_value()
            renewed = 0 if nothing_lost else begin_new_history(url)
            # Behind it: until then `doctor` has to say that the database is a copy.
            places.note(url, anew=True)
    except StorageError as error:
        raise CommandError(f"cannot begin another history: {error}") from error
    if nothing_lost:
        show("noted where the database stands; tokens from before stay good")
        return
    many = "1 session begins" if renewed == 1 else f"{renewed} sessions begin"
    show(f"{many} another history; tokens from before are refused")
