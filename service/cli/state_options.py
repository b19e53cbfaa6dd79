"""The settings of state memories as options of the command line."""

from typing import Annotated, Any

import typer

from palimpsest.state_values import Period
from service.cli.output import CommandError
from service.cli.talk import MAX_TOKENS
from service.cli.texts import read_text

#: The settings that the proto's StateSpec bounds, and how.
MAX_PERIOD = 1000
MAX_STATE_TOKENS = 32_000
MAX_EPISODE_VECTORS = 64
MAX_IDLE_SECONDS = 30 * 86_400.0

TaskFile = Annotated[
    str, typer.Option(help="Of a state memory: a file with the task prompt, or - .")
]
PeriodSteps = Annotated[
    int | None,
    typer.Option(
        "--period", min=0, max=MAX_PERIOD, help="Of a state memory: N, steps a compression; 0: 10."
    ),
]
PeriodKind = Annotated[
    Period | None,
    typer.Option(help="Of a state memory: always N steps, or fewer when they say much."),
]
PeriodTokens = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_TOKENS,
        help="Of a state memory: tokens that stay uncompressed at most; else 4,000; 0: any.",
    ),
]
Idle = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MAX_IDLE_SECONDS,
        help="Of a state memory: compress also behind so many seconds without a step; 0: never.",
    ),
]
StateTokens = Annotated[
    int | None,
    typer.Option(
        min=0, max=MAX_STATE_TOKENS, help="Of a state memory: tokens of a vector; 0: 500."
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(help="Of a state memory: a text that every vector has; give it for each."),
]
EpisodeVectors = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_EPISODE_VECTORS,
        help="Of a state memory: K, vectors that make one of the next level; 0: no episodes.",
    ),
]


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """What was given, by the names of StateSettings. Raises CommandError.

    `options` are by the names of the options; what is None was not given.
    """
    given = {name: value for name, value in options.items() if value is not None}
    file = given.pop("task_file", "")
    if file:
        if given.get("task"):
            raise CommandError("give --task or --task-file, not both")
        given["task"] = read_text(file).rstrip()
    if "idle" in given:
        given["idle_seconds"] = given.pop("idle")
    if "pin" in given:
        given["pinned"] = tuple(given.pop("pin"))
    return given
