"""Commands that look at a deployment from beside: at its database, not through the API."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from service.cli.output import CommandError
from service.cli.run import read_config
from service.config import Config

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Of an `up` that runs, where PALIMPSEST_DATABASE_URL is not set. Default: your"
        " data folder.",
    ),
]

TenantName = Annotated[
    str | None,
    typer.Option("--tenant", help="The tenant, by its name or its id.", metavar="TENANT"),
]


def find_config(data_dir: Path | None) -> Config:
    """The configuration of this process; without a database, with that of an `up` that runs."""
    from service.embedded.running import database_url

    config = read_config(data_dir=data_dir)
    if config.database_url is not None:
        return config
    found = database_url(config.data_dir)
    return config if found is None else config.model_copy(update={"database_url": SecretStr(found)})


def database_url_of(config: Config) -> str:
    """The URL of its database. Raises CommandError when there is none."""
    if config.database_url is None:
        raise CommandError(
            f"PALIMPSEST_DATABASE_URL is not set, and no `palimpsest up` runs in {config.data_dir}"
        )
    return config.database_url.get_secret_value()
