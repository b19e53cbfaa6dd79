"""The deployment of commands that read its database instead of calling its API."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from service.cli.output import CommandError
from service.cli.run import read_config, read_settings
from service.settings.config import Config

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The folder of an `up` that runs, where PALIMPSEST_DATABASE_URL is not set."
        " Default: your data folder.",
    ),
]

TenantName = Annotated[
    str | None,
    typer.Option("--tenant", help="The tenant, by its name or its id.", metavar="TENANT"),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """A deployment as a command finds it."""

    config: Config
    #: Names of the secret settings of a running `up`, whose values this process does not have.
    hidden: frozenset[str]
    #: Where the settings come from, in words.
    source: str


def find_deployment(data_dir: Path | None) -> Installation:
    """Returns the deployment of this process's variables; without a database in them, or with
    a `data_dir` named, that of an `up` that runs."""
    from service.local import running

    config, settings = read_settings(data_dir=data_dir)
    ours = "those of this command's variables"
    if settings.file is not None:
        ours += f" and of {settings.file.path}"
    if config.database_url is not None and data_dir is None:
        return Installation(config=config, hidden=frozenset(), source=ours)
    found = running.find(config.data_dir)
    hidden: set[str] = set()
    source = ours
    if found is not None:
        config = read_config(**{**found.settings, "data_dir": config.data_dir})
        hidden = {name for name in found.hidden if getattr(config, name, None) is None}
        source = f"those of the `up` that runs in {config.data_dir} (process {found.pid})"
    if config.database_url is None:
        url = None if "database_url" in hidden else running.database_url(config.data_dir)
        secret = None if url is None else SecretStr(url)
        config = config.model_copy(update={"database_url": secret})
    return Installation(config=config, hidden=frozenset(hidden), source=source)


def database_url_of(config: Config) -> str:
    """Returns the URL of its database. Raises CommandError when there is none."""
    if config.database_url is None:
        raise CommandError(
            f"PALIMPSEST_DATABASE_URL is not set, and no `palimpsest up` runs in {config.data_dir}"
        )
    return config.database_url.get_secret_value()
