"""`palimpsest config`: which settings are in force, and a file with all of them."""

import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from service.cli.app import SettingsPath, new_group
from service.cli.command import Json
from service.cli.output import escaped, new_table, plain, show, show_json, show_table
from service.domain.operations.doctor import Finding, warn
from service.settings import reading
from service.settings.config import Config, Limits
from service.settings.reading import LIMITS, ProcessSettings
from service.telemetry.logs import hide_secrets

_HIDDEN = "***"
_DEFAULT = "default"
#: The comment above a setting in the source, and its name.
_MEANING = re.compile(r"((?:    #: .*\n)+)    (\w+):")
#: A query that has a password.
_QUERY_PASSWORD = re.compile(r"\?[^?]*password=", re.IGNORECASE)
#: Characters of a line of the example.
_WIDTH = 96


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("Settings: what is in force, and from where.")
    group.command("check")(check)
    group.command("example")(example)
    app.add_typer(group, name="config")


def check(
    every: Annotated[
        bool, typer.Option("--all", help="Show those that have their defaults as well.")
    ] = False,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Show which settings are in force and where each comes from; secrets are hidden.

    Reads what `serve` and `work` read, and needs no database. Exit code 1 when they would
    refuse these settings: then everything that is wrong is said, one line each.
    """
    found = reading.read(os.environ)
    problems = [*found.problems, *(_refusals(found.config) if found.config else ())]
    warnings = [f"{one.said}; {one.advice}" for one in _warnings(found)]
    rows = list(_rows(found, every=every)) if found.config is not None else []
    if as_json:
        show_json(
            {"valid": not problems, "problems": problems, "warnings": warnings, "settings": rows}
        )
    else:
        if found.config is not None:
            _show(rows, every=every)
        for kind, lines in (("warning", warnings), ("error", problems)):
            for line in lines:
                print(f"{kind}: {plain(' '.join(line.split()))}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)


def _refusals(config: Config) -> Iterator[str]:
    from service.llm.embeddings.embedding import LOCAL, CannotEmbed

    yield from reading.refusals(config)
    if config.embedding_model.startswith(LOCAL):
        from service.llm.embeddings.local_embedder import LocalEmbedder

        try:
            LocalEmbedder(config)
        except CannotEmbed as error:
            yield str(error)


def _warnings(found: ProcessSettings) -> Iterator[Finding]:
    if (said := found.warning()) is not None:
        yield said
    if found.config is None:
        return
    if found.config.database_url is None:
        advice = "`serve`, `work` and `migrate` need PALIMPSEST_DATABASE_URL"
        yield warn("settings", "no database is named: `up` and `demo` bring their own", advice)
    yield from reading.findings(found.config)


def _rows(found: ProcessSettings, *, every: bool) -> Iterator[dict[str, Any]]:
    assert found.config is not None, "there are settings"
    for name in reading.fields():
        place = found.places.get(name)
        if place is None and not every:
            continue
        head, _, limit = name.partition(".")
        value = getattr(found.config.limits, limit) if limit else getattr(found.config, head)
        yield {"name": name, "value": shown(name, value), "source": place or _DEFAULT}


def shown(name: str, value: Any) -> Any:
    """Returns the value of a setting as JSON, with what is secret in it hidden."""
    if isinstance(value, SecretStr):
        return _without_password(value.get_secret_value()) if name.endswith("_url") else _HIDDEN
    known = to_jsonable_python(value, exclude_none=True)
    if name == "model_settings":
        # Which of the provider's own fields are secret is unknown.
        known = _without_extras(known)
    return hide_secrets(None, "", {"value": known})["value"]


def _without_extras(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: dict.fromkeys(inner, _HIDDEN)
        if name in ("extra", "extra_body") and isinstance(inner, dict)
        else _without_extras(inner)
        for name, inner in value.items()
    }


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    # It goes first: a password in it may hold an @, which would be taken for that of the login.
    query = _QUERY_PASSWORD.search(rest)
    head, asked = (rest[: query.start()], rest[query.start() :]) if query else (rest, "")
    # A password may hold what ought to be escaped, an @ for example.
    login, at, place = head.rpartition("@")
    if not at and ":" in head and "@" in asked:
        # Either may be the password: the end of the login, or the query.
        return f"{scheme}://{_HIDDEN}"
    name = login.partition(":")[0] if ":" in login else ""
    host, mark, _ = place.partition("?")
    hidden = f"?{_HIDDEN}" if mark or asked else ""
    shown = f"{scheme}://" + (f"{name}:{_HIDDEN}@" if at else "") + host + hidden
    return str(hide_secrets(None, "", {"value": shown})["value"])


def _show(rows: list[dict[str, Any]], *, every: bool) -> None:
    given = [row for row in rows if row["source"] != _DEFAULT]
    for title, some in (("given", given), ("defaults", [one for one in rows if one not in given])):
        if not some:
            continue
        table = new_table(title, "value", "source")
        for row in some:
            table.add_row(row["name"], escaped(_text(row["value"])), escaped(row["source"]))
        show_table(table)
    if not every:
        show(f"{len(reading.fields()) - len(given)} others have their defaults; --all shows them")


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def example() -> None:
    """Print a TOML file with every setting, what it means and its default, all commented out."""
    show("# Settings of Palimpsest: `palimpsest serve --config PATH`, or PALIMPSEST_CONFIG=PATH.")
    show("# What stands in a comment is the default. See docs/reference/settings.md.")
    in_limits = False
    for name, kind in reading.fields().items():
        if name.startswith(f"{LIMITS}.") and not in_limits:
            in_limits = True
            show(f"\n[{LIMITS}]")
        show()
        for line in textwrap.wrap(meanings()[name], _WIDTH, break_on_hyphens=False):
            show(f"# {line}")
        default = kind.get_default(call_default_factory=True)
        value = "" if default is None else json.dumps(to_jsonable_python(default))
        show(f"#{name.removeprefix(f'{LIMITS}.')} = {value}".rstrip())


@cache
def meanings() -> Mapping[str, str]:
    """Returns what each setting means, as its comment in the source says."""
    found: dict[str, str] = {}
    for kind, prefix in ((Config, ""), (Limits, f"{LIMITS}.")):
        said = {name: _sentence(text) for text, name in _MEANING.findall(inspect.getsource(kind))}
        above = ""
        for name in kind.model_fields:
            # Two settings below one comment share it.
            above = said.get(name, above)
            found[prefix + name] = above
    return found


def _sentence(comment: str) -> str:
    return " ".join(line.strip().removeprefix("#:").strip() for line in comment.splitlines())
