"""`palimpsest trajectory`: what readers did, navigating or browsing."""

from typing import Annotated, Any, Literal

import typer

from palimpsest import Memory, NavigationStatistics, Session, TrainingExample
from service.cli.command import DEFAULT_NAME, Json, MemoryName, add_group
from service.cli.drawing import draw, drawing_console, statistics_json
from service.cli.output import plain_json, show, show_json


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "What readers did, navigating or browsing: show, sum up, export."
    add_group(app, "trajectory", summary, show_, stats, export)


async def show_(
    session: Session,
    answer_id: Annotated[
        str, typer.Argument(metavar="ANSWER", help="The answer's id, as `answer list` prints it.")
    ],
    as_json: Json = False,
) -> None:
    """Draw the way of a stored answer in its tree or log; with --json one line for each event."""
    events = [event async for event in session.trajectory(answer_id)]
    answer = await session.answer(answer_id)
    if as_json:
        for event in events:
            show_json(event)
        return
    drawing_console().print(draw(answer.query, events))
    show(answer.text)


async def stats(memory: Memory, as_json: Json = False) -> None:
    """Sum up all navigations of a tree."""
    statistics = await memory.navigation_statistics()
    show_json(statistics_json(statistics)) if as_json else _show_statistics(statistics)


def _show_statistics(statistics: NavigationStatistics) -> None:
    def share(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1%}"

    for name, figure in (
        ("navigations", f"{statistics.navigations:,}"),
        ("answered", f"{statistics.answered:,}"),
        ("guessed", f"{statistics.guessed:,}"),
        ("went back at least once", f"{share(statistics.stray_ratio)} of them"),
        ("of these answered", f"{statistics.stray_answered:,} of {statistics.stray:,}"),
        ("valid actions", f"{share(statistics.valid_action_rate)} of replies"),
        ("leaves read", f"{statistics.leaves_read:,}"),
        ("model calls", f"{statistics.calls:,}"),
        ("tokens", f"{statistics.tokens:,}, {share(statistics.read_share)} of the text"),
    ):
        show(f"{name:<24} {figure}")


async def export(
    session: Session,
    memory: MemoryName = DEFAULT_NAME,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="Only this answer, by its id; may be repeated."),
    ] = None,
    browsed: Annotated[
        bool, typer.Option("--browsed", help="What was browsed of the log, not of a memory.")
    ] = False,
    verdict: Annotated[
        Literal["good", "bad"] | None, typer.Option(help="Only answers that were rated so.")
    ] = None,
) -> None:
    """Print the moves of navigations that found an answer, as examples to train with.

    With --browsed those of browsings of the session's log.

    One JSON line for each: `messages` with the prompt and the reply, in the form that chat
    models are trained with. Answers that an older release made with other prompts are left
    out.
    """
    asked = session if browsed else session.memory(memory)
    good = None if verdict is None else verdict == "good"
    async for example in asked.export_trajectories(answer or (), good=good):
        head = {name: getattr(example, name) for name in ("answer", "ordinal", "template")}
        show_json({"messages": plain_json(example.messages), **head, **_rating_json(example)})


def _rating_json(example: TrainingExample) -> dict[str, Any]:
    """Returns how the answer was rated; nothing while it was not."""
    rating = example.rating
    if rating is None:
        return {}
    found = {"verdict": "good" if rating.good else "bad", "comment": rating.comment}
    return {"rating": {**found, "expected": rating.expected}}
