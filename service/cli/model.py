"""`palimpsest model`: check what a model accepts, and replay recorded exchanges."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticCustomError

from service.cli.app import SettingsPath, new_group
from service.cli.command import Json
from service.cli.output import (
    MICRO,
    CommandError,
    escaped,
    new_table,
    plain_json,
    say,
    show,
    show_json,
    show_table,
)
from service.cli.run import read_config
from service.settings.config import Config
from service.settings.models import checked_model

_STYLES = {"works": "green", "ignored": "yellow", "refused": "yellow"}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = new_group("Models: check what one accepts, replay a recorded exchange.")
    group.command("check")(check)
    group.command("replay")(replay)
    app.add_typer(group, name="model")


def check(
    name: Annotated[
        str, typer.Argument(help="The model, as PROVIDER/NAME; default: PALIMPSEST_MODEL.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the requests and their cost, and make none.")
    ] = False,
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Check what a model accepts, by a tiny request of each form to its provider.

    Compares each result with the model's profile, and shows what to set where that is wrong.
    Reads the same PALIMPSEST_… variables and keys as `work`. Shows the highest possible cost
    before the first request. Exit code 1 when the model refuses what would be sent.
    """
    config = read_config()
    name = name or config.model
    try:
        checked_model(name)
    except PydanticCustomError as error:
        raise CommandError(f"{name!r} {error.message()}") from None
    if "/" not in name:
        raise CommandError(f"{name!r} is not PROVIDER/NAME")
    if name.startswith("offline/"):
        raise CommandError(f"{name} has no provider that could be asked")
    if not asyncio.run(_check(config, name, dry_run=dry_run, as_json=as_json)):
        raise typer.Exit(1)


def replay(
    file: Annotated[Path, typer.Argument(help="A file that PALIMPSEST_RECORD wrote.")],
    as_json: Json = False,
    settings_path: SettingsPath = None,
) -> None:
    """Read a recorded exchange with a model again, and show its result.

    Calls no model. Exit code 1 when the reply would not count as complete.
    """
    if not asyncio.run(_replay(read_config(), file, as_json=as_json)):
        raise typer.Exit(1)


async def _replay(config: Config, file: Path, *, as_json: bool) -> bool:
    from service.domain.prompting.ends import End
    from service.llm.providers import recording
    from service.llm.providers.failures import ModelFailure
    from service.llm.providers.transport import LitellmTransport

    try:
        recorded = recording.read(file)
    except recording.NoRecord as error:
        raise CommandError(str(error)) from None
    said: dict[str, Any] = {
        "model": recorded.model,
        "purpose": recorded.ask.purpose.value,
        "template": recorded.ask.template,
    }
    try:
        done = await LitellmTransport(config).replay(recorded)
    except recording.NoRecord as error:
        raise CommandError(f"{file}: {error}") from None
    except ModelFailure as failure:
        is_whole = False
        said |= {"fault": failure.fault.value, "said": str(failure)}
    else:
        is_whole = done.end is End.COMPLETE
        said |= {
            "end": done.end.value,
            "said": done.said,
            "input_tokens": done.input_tokens,
            "output_tokens": done.output_tokens,
            "reasoning_tokens": done.reasoning_tokens,
            "text": done.text,
        }
    if as_json:
        show_json(said)
    else:
        for name, value in said.items():
            show(f"{name:17} {'' if value is None else value}")
    return is_whole


async def _check(config: Config, name: str, *, dry_run: bool, as_json: bool) -> bool:
    from service.llm.providers.model_check import Checked, ModelCheck

    check = ModelCheck(config, name)
    most = check.most_micro_usd()
    price = (
        "their price is not known"
        if most is None
        else f"at most ${most / MICRO:.4f}, and most likely far less"
    )
    bound = max(map(check.reply_tokens, check.probes))
    say(
        f"{len(check.probes)} requests to {name}, of about 60 tokens each, with replies of up to"
        f" {bound:,} tokens: {price}"
    )
    done: list[Checked] = []
    for deployment in check.deployments:
        say(deployment)
    for probe in () if dry_run else check.probes:
        one = await check.run(probe)
        done.append(one)
        if as_json:
            show_json(_json(one))
        if probe.name == "plain" and one.completion is None:
            raise CommandError(one.said)
    is_ok = all(one.is_ok for one in done)
    spent = [one.completion.cost_micro_usd for one in done if one.completion]
    cost = None if None in spent else sum(one for one in spent if one is not None)
    suggested = check.suggested(done) if done else {}
    if as_json:
        show_json(
            {
                "model": name,
                "ok": is_ok,
                "requests": len(done),
                "most_micro_usd": most,
                "cost_micro_usd": cost,
                "profile": plain_json(check.profile),
                "suggested": suggested,
            }
        )
        return is_ok
    _show(done, plain_json(check.profile))
    if suggested:
        show("\nwhat would fit what it takes:")
        show(f"PALIMPSEST_MODEL_PROFILES='{json.dumps(suggested)}'")
    if done:
        show("\ncost: " + ("not known" if cost is None else f"${cost / MICRO:.6f}"))
    return is_ok


def _show(done: list[Any], profile: dict[str, Any]) -> None:
    if done:
        table = new_table("form", "result", "the profile", "", "said")
        for one in done:
            outcome = one.outcome.value
            table.add_row(
                one.probe.name,
                f"[{_STYLES[outcome]}]{outcome}[/]",
                one.probe.profile,
                "" if one.is_ok else "[red]differs[/]",
                escaped(one.said),
            )
        show_table(table)
        show()
    show("the profile:")
    for field, value in profile.items():
        shown = " ".join(value) if isinstance(value, list) else value
        show(f"  {field:18} {'' if shown is None else shown}")


def _json(one: Any) -> dict[str, Any]:
    done = one.completion
    return {
        "form": one.probe.name,
        "result": one.outcome.value,
        "profile": one.probe.profile,
        "ok": one.is_ok,
        "said": one.said,
        "input_tokens": done.input_tokens if done else None,
        "output_tokens": done.output_tokens if done else None,
        "reasoning_tokens": done.reasoning_tokens if done else None,
        "cost_micro_usd": done.cost_micro_usd if done else None,
    }
