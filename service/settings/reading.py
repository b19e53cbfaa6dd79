"""Settings: where the value of each comes from, and everything that is wrong with them.

The first place that has one counts: the command line, the variable, the file that the variable
with `_FILE` names, the TOML file, the default.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from service.domain.operations.doctor import Finding, bad, warn
from service.settings import certificates, issuers, listening
from service.settings.certificates import UnusableCertificate
from service.settings.config import Config, Limits
from service.settings.environment import FAULTS, PREFIX, nearest, unknown_variables
from service.settings.files import CONFIG, FILE, SettingsFile, UnusableFile, read_table, read_value

#: The table of the limits, and the beginning of their variables.
LIMITS = "limits"
_LIMIT = "LIMIT_"
#: What is said of a file: unknown names, and characters of each.
MAX_UNKNOWN = 100
MAX_NAME = 80


def fields() -> dict[str, FieldInfo]:
    """Returns every setting by its name in the TOML file: `listen`, `limits.max_calls`."""
    ours = {name: one for name, one in Config.model_fields.items() if name != LIMITS}
    return ours | {f"{LIMITS}.{name}": one for name, one in Limits.model_fields.items()}


def variable_of(name: str) -> str:
    """Returns the variable of a setting."""
    prefix, _, limit = name.rpartition(f"{LIMITS}.")
    return PREFIX + (prefix + (_LIMIT if limit != name else "") + limit).upper()


#: Options of commands that are not named as their settings.
_OPTIONS = {"model_base_url": "--base-url"}


def _option_of(name: str) -> str:
    """Returns the option of a setting; limits have none."""
    if name.startswith(f"{LIMITS}."):
        return variable_of(name)
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """The settings of a process, or what is wrong with them."""

    #: None where there are problems.
    config: Config | None
    #: Where those come from that are given, by name; the others have their defaults.
    places: Mapping[str, str]
    problems: Sequence[str]
    file: SettingsFile | None

    def warning(self) -> Finding | None:
        """Returns what to say of a file that holds secrets and that others may read."""
        if self.file is None or not self.file.is_open:
            return None
        secrets = [name for name in _secrets(self.config) if _is_in(self.file.table, name)]
        if not secrets:
            return None
        said = f"{self.file.path} has secrets ({', '.join(secrets)}) and can be read by others"
        return warn("settings", said, f"chmod 600 {self.file.path}")


@dataclass(slots=True)
class _Reading:
    variables: Mapping[str, tuple[str, str]]
    table: Mapping[str, Any]
    path: str
    problems: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def look(self, name: str, kind: FieldInfo) -> None:
        """Finds the value of a setting, or what is wrong with it."""
        variable = variable_of(name)
        file = self.variables.get(variable + FILE)
        try:
            place, value = self.variables.get(variable, ("", ""))
            if place and (value or not _may_be_unset(kind)):
                if file is not None:
                    self.problems.append(f"{place} and {file[0]} are both set: set one of them")
                self._take(name, value, place)
            elif file is not None:
                self._take(name, read_value(file[1], file[0]), f"{file[0]} ({file[1]})")
            elif _is_in(self.table, name):
                place = f"{self.path}: {name}"
                self._take(name, _of_toml(_in(self.table, name), kind, place), place)
        except UnusableFile as error:
            self.problems.append(str(error))

    def _take(self, name: str, value: Any, place: str) -> None:
        self.values[name] = value
        self.places[name] = place


def read(
    environment: Mapping[str, str], changes: Mapping[str, Any] | None = None
) -> ProcessSettings:
    """Returns the settings of a process, with all that is wrong. `changes` are the command
    line's, by the names of Config's fields."""
    unknown = unknown_variables(environment)
    problems = [f"{name} is no setting; the nearest is {near}" for name, near in unknown]
    variables: dict[str, tuple[str, str]] = {}
    # In any case.
    for name, value in sorted(environment.items()):
        other = variables.setdefault(name.upper(), (name, value))[0]
        if other != name and name.upper().startswith(PREFIX):
            problems.append(f"{other} and {name} are both set: set one of them")
    file, path = None, variables.get(CONFIG, ("", ""))[1]
    if path:
        try:
            file = read_table(path)
        except UnusableFile as error:
            problems.append(str(error))
        else:
            problems += islice(_unknown_keys(file), MAX_UNKNOWN)
    table = {} if file is None else file.table
    reading = _Reading(variables, table, "" if file is None else file.path, problems)
    for name, kind in fields().items():
        reading.look(name, kind)
    for name, value in _flat(changes or {}):
        reading.values[name] = value
        reading.places[name] = _option_of(name)
    config = _validated(reading)
    # Whatever is wrong, a default must not stand for it.
    config = None if problems else config
    return ProcessSettings(config=config, places=reading.places, problems=problems, file=file)


def _validated(reading: _Reading) -> Config | None:
    limits = {
        name.removeprefix(f"{LIMITS}."): value
        for name, value in reading.values.items()
        if name.startswith(f"{LIMITS}.")
    }
    values = {name: value for name, value in reading.values.items() if "." not in name}
    try:
        return Config.model_validate({**values, LIMITS: limits})
    except ValidationError as error:
        for one in error.errors(include_input=False, include_url=False):
            head, *rest = (str(part) for part in one["loc"])
            name = f"{head}.{rest[0]}" if head == LIMITS and rest else head
            reading.problems.append(f"{reading.places.get(name, name)}: {one['msg']}")
        return None


def _flat(changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in changes.items():
        if name == LIMITS:
            yield from ((f"{LIMITS}.{limit}", inner) for limit, inner in value.items())
        else:
            yield name, value


def _may_be_unset(kind: FieldInfo) -> bool:
    """Returns whether an empty variable of a setting is as none: the default is no value, or a
    folder of the user."""
    return isinstance(kind.get_default(call_default_factory=True), Path | None)


def _in(table: Mapping[str, Any], name: str) -> Any:
    head, _, limit = name.partition(".")
    return table[head][limit] if limit else table[head]


def _is_in(table: Mapping[str, Any], name: str) -> bool:
    head, _, limit = name.partition(".")
    inner = table.get(head)
    return head in table if not limit else isinstance(inner, dict) and limit in inner


def _unknown_keys(file: SettingsFile) -> Iterator[str]:
    """Yields what is wrong with the names in a file, each with the nearest setting."""
    known = frozenset(fields())
    for key, value in file.table.items():
        if key == LIMITS and isinstance(value, dict):
            names = [f"{LIMITS}.{limit}" for limit in value]
        elif key == LIMITS:
            yield f"{file.path}: {LIMITS}: is no table: write [{LIMITS}], and the limits below it"
            continue
        else:
            names = [key]
        for name in names:
            if name not in known:
                # Some write the variable's name.
                near = nearest(name.lower().removeprefix(PREFIX.lower()), {LIMITS, *known})
                shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
                yield f"{file.path}: {shown} is no setting; the nearest is {near}"


def _of_toml(value: Any, kind: FieldInfo, place: str) -> Any:
    """Returns a value of a TOML file that JSON has as well. Raises UnusableFile."""
    if isinstance(value, bool) and kind.annotation is not bool:
        raise UnusableFile(f"{place}: is {str(value).lower()}, and no setting that is on or off")
    try:
        json.dumps(value, allow_nan=False)
    except TypeError:
        raise UnusableFile(f"{place}: has a date or a time: write it in quotes") from None
    except (ValueError, RecursionError):
        raise UnusableFile(f"{place}: has a number that is not finite, or is too long") from None
    return value


def _secrets(config: Config | None) -> Iterator[str]:
    """Yields the names of settings that hold a secret."""
    if config is None:
        return
    yield from (name for name, value in config if isinstance(value, SecretStr))
    if any(isinstance(value, SecretStr) for one in config.deployments for _, value in one):
        yield "deployments"


#: Why there are no signals behind a pooler, but for the guide that says more.
UNHEARD = (
    "PALIMPSEST_SIGNALS_DATABASE_URL is not set: with PALIMPSEST_DATABASE_POOLER it has to"
    " name the server itself, since LISTEN passes no pooler"
)


def refusals(config: Config) -> Iterator[str]:
    """Returns why `serve` and `work` do not start with settings that are each for itself right."""
    if (said := listening.refusal(config)) is not None:
        yield said
    if (said := issuers.refusal(config)) is not None:
        yield said
    try:
        certificates.read(config)
    except UnusableCertificate as error:
        yield str(error)
    # A worker's own executor has the next port.
    if config.caller_socket is None and (said := listening.metrics_refusal(config)) is not None:
        yield said
    if config.is_pooled and config.signals_database_url is None:
        yield UNHEARD


def findings(config: Config) -> list[Finding]:
    """Returns what looks wrong about settings that processes do start with."""
    found = []
    if FAULTS in os.environ:
        said = f"{FAULTS} is set: processes fail on purpose"
        found.append(bad("settings", said, "unset it outside of tests"))
    if config.dead_after_seconds < 2 * config.heartbeat_seconds:
        said = (
            f"a worker is taken for dead after {config.dead_after_seconds:g} s, and says only"
            f" every {config.heartbeat_seconds:g} s that it lives"
        )
        advice = "make PALIMPSEST_DEAD_AFTER_SECONDS three times …_HEARTBEAT_SECONDS"
        found.append(bad("settings", said, advice))
    if config.stop_seconds < config.call_lease_seconds:
        said = f"a stop lets a call under way go on for {config.stop_seconds:g} s only"
        advice = "calls that take longer go on in the executor; raise PALIMPSEST_STOP_SECONDS"
        found.append(warn("settings", said, advice))
    return found
