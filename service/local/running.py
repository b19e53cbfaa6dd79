"""Finding an `up` that runs: its servers and its settings, for commands beside it.

`up` writes its settings, without any secret, to a file of mode 0600 in its data folder. The
passwords of its embedded servers are in files of their own there.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from service.local.folder import OwnFolder
from service.local.postgres import NAME, url_of
from service.local.processes import ServerUser
from service.local.valkey import url_of as url_of_redis
from service.settings.config import Config

#: Where the port stands in postmaster.pid: see PostgreSQL's miscadmin.h.
_PORT_LINE = 3
_FOLDER = "run"
_FILE = "settings.json"
#: Bytes of the file that are read.
_MAX_BYTES = 1024 * 1024
#: Settings that may hold a secret in one of their fields.
_UNTOLD = frozenset({"model_settings", "deployments", "data_dir"})
_PREFIX = "PALIMPSEST_"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningService:
    """An `up` that runs."""

    pid: int
    #: As `Config` takes them; without secrets.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Names of settings that `up` has and that hold a secret, and "deployment NAME" for those
    #: with a key.
    hidden: frozenset[str] = frozenset()


@contextmanager
def told(
    data_dir: Path, config: Config, overrides: Mapping[str, str], *, redis_place: Path | int | None
) -> Iterator[None]:
    """Keeps a file in the data folder that says what runs there, with which settings.

    `overrides` are variables that our processes get besides `config`; `redis_place` is a socket,
    or a port of 127.0.0.1.
    """
    settings = _settings(config)
    settings.update(
        {name.removeprefix(_PREFIX).lower(): value for name, value in overrides.items()}
    )
    said = {
        "pid": os.getpid(),
        "settings": settings,
        "hidden": sorted(_hidden(config)),
        "redis_place": redis_place,
    }
    folder = OwnFolder.make(data_dir / _FOLDER, ServerUser.ourselves())
    folder.write(_FILE, json.dumps(said, indent=1, default=_plain) + "\n")
    try:
        yield
    finally:
        folder.remove(_FILE)


def find(data_dir: Path) -> RunningService | None:
    """Returns the `up` that runs with a data folder; None without one, or if its files are not
    for this user."""
    folder = data_dir.absolute()
    try:
        with (folder / _FOLDER / _FILE).open("rb") as file:
            said = json.loads(file.read(_MAX_BYTES))
        os.kill(said["pid"], 0)
    except PermissionError:
        # It is another user's, and so are its passwords.
        return None
    except (OSError, ValueError):
        # Nothing runs there, or it went this moment.
        return None
    # A server of another release may have settings that this one does not know.
    known = {name: one for name, one in said["settings"].items() if name in Config.model_fields}
    if (place := said.get("redis_place")) is not None:
        password = _read(folder / "valkey" / "valkey.password").strip()
        known["redis_url"] = url_of_redis(
            password, Path(place) if isinstance(place, str) else place
        )
    return RunningService(pid=said["pid"], settings=known, hidden=frozenset(said["hidden"]))


def database_url(data_dir: Path) -> str | None:
    """Returns the URL of the embedded database below a data folder, for our login role.

    None when none runs there, or its files are not for this user.
    """
    return _url(data_dir, NAME, "login.password")


def superuser_url(data_dir: Path) -> str | None:
    """Returns the same for the superuser, whom row-level security does not bind."""
    return _url(data_dir, "postgres", "superuser.password")


def _url(data_dir: Path, user: str, password_file: str) -> str | None:
    folder = data_dir.absolute() / "postgres"
    lines = _read(folder / "data" / "postmaster.pid").splitlines()
    password = _read(folder / password_file).strip()
    if not password or len(lines) <= _PORT_LINE or not lines[_PORT_LINE].strip().isdecimal():
        return None
    return url_of(user, password, lines[_PORT_LINE].strip(), NAME)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _settings(config: Config) -> dict[str, Any]:
    found = {
        name: value
        for name in Config.model_fields
        if name not in _UNTOLD and not _is_secret(value := getattr(config, name))
    }
    found["deployments"] = [one.without_secrets() for one in config.deployments]
    return found


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _hidden(config: Config) -> Iterator[str]:
    yield from (name for name in Config.model_fields if _is_secret(getattr(config, name)))
    yield from (f"deployment {one.name}" for one in config.deployments if one.key() is not None)


def _is_secret(value: object) -> bool:
    return isinstance(value, SecretStr)
