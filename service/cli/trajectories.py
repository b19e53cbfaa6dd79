"""Commands for trajectories: what readers did."""

from typing import Annotated, Any, Literal

import typer

import palimpsest
from palimpsest import NavigationStatistics
from palimpsest.navigation_values import TrainingExample
from service.cli.explaining import draw, drawing_console, event_json, statistics_json
from service.cli.output import show, show_json
from service.cli.talk import (
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    Address,
    Json,
    MemoryName,
    SessionName,
    run,
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    trajectories = typer.Typer(
        no_args_is_help=True, help="What readers did, navigating or browsing: show, sum up, export."
    )
    trajectories.command("show")(trajectories_show)
    trajectories.command("stats")(trajectories_stats)
    trajectories.command("export")(trajectories_export)
    app.add_typer(trajectories, name="trajectories")


def trajectories_show(
    answer_id: Annotated[str, typer.Argument(help="The answer's id, as `ask --json` prints it.")],
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Draw the way of a stored answer in its tree or log; with --json one line for each event."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            told = client.session(session)
            events = [event async for event in told.trajectory(answer_id)]
            answer = await told.answer(answer_id)
        if as_json:
            for event in events:
                show_json(event_json(event))
            return
        drawing_console().print(draw(answer.query, events))
        show(answer.text)

    run(work())


def trajectories_stats(
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show what all questions to a tree came to."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            told = client.session(session).memory(memory)
            statistics = await told.navigation_statistics()
        if as_json:
            show_json(statistics_json(statistics))
        else:
            _show_statistics(statistics)

    run(work())


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


def trajectories_export(
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="Only this answer, by its id; give it for each."),
    ] = None,
    browsed: Annotated[
        bool, typer.Option("--browsed", help="What was browsed of the log, not of a memory.")
    ] = False,
    verdict: Annotated[
        Literal["good", "bad"] | None, typer.Option(help="Only answers that were rated so.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Print the moves of navigations that found an answer, as examples to train with.

    With --browsed those of browsings of the session's log.

    One JSON line for each: `messages` with the prompt and the reply, in the form that chat
    models are trained with. Answers that an older release made with other prompts are left
    out.
    """

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            named = client.session(session)
            told = named if browsed else named.memory(memory)
            good = None if verdict is None else verdict == "good"
            async for example in told.export_trajectories(answer or (), good=good):
                show_json(
                    {
                        "messages": example.messages,
                        "answer_id": example.answer_id,
                        "ordinal": example.ordinal,
                        "template": example.template,
                        **_rating_json(example),
                    }
                )

    run(work())


def _rating_json(example: TrainingExample) -> dict[str, Any]:
    """What somebody thinks of the answer; nothing as long as nobody said."""
    rating = example.rating
    if rating is None:
        return {}
    told = {"verdict": "good" if rating.good else "bad", "comment": rating.comment}
    return {"rating": {**told, "expected": rating.expected}}
