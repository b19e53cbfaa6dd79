"""`palimpsest eval reliability`: how long strategies keep what a task began with."""

import contextlib
import math
import platform
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

import palimpsest
from evaluation import plots
from evaluation.cli.own_service import own_service
from evaluation.cli.reliability_tables import show_summaries
from evaluation.cli.tables import Progress, show_failures
from evaluation.reliability import tasks
from evaluation.reliability.experiment import STRATEGIES, Experiment, Settings, period_of
from evaluation.reliability.outcomes import GameResult, StrategySummary, summarize
from evaluation.reliability.report import Report
from evaluation.reliability.scripted import ScriptedModel
from evaluation.reliability.server import MODEL, serving
from evaluation.report import ReportError, replace_file
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json
from service.cli.run import StopSignals, read_config
from service.settings.config import Config
from service.telemetry import logs

LENGTHS = "10,20,30,50,100,150,200"
#: Tokens of a context: some 40 steps.
WINDOW_TOKENS = 2048
LEAST_WINDOW_TOKENS = 256
MAX_WINDOW_TOKENS = 10_000_000
#: Tokens of a summary and of a state vector, as the service bounds them.
STATE_TOKENS = 200
LEAST_STATE_TOKENS, MAX_STATE_TOKENS = 32, 32_000
#: Pieces that retrieval takes.
RETRIEVED = 20
#: The share of facts that go wrong each time they are written again.
LOSS = 0.01
MAX_CONCURRENCY = 256
DAY_SECONDS = 86_400.0
#: Reasons of failures that are shown; all of them are in the report.
SHOWN_FAILURES = 5


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("reliability")(reliability)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be run."""

    strategies: tuple[str, ...]
    tasks: Sequence[tasks.Task]
    settings: Settings
    #: As provider/name; empty: the scripted one plays.
    model: str
    base_url: str
    scripted: ScriptedModel | None
    report: Report

    @property
    def needs_service(self) -> bool:
        """Whether it has state memories, or calls for the ledger."""
        return self.scripted is None or any(period_of(name) for name in self.strategies)

    @property
    def steps(self) -> int:
        """Returns the number of steps of all games."""
        return len(self.strategies) * sum(task.length for task in self.tasks)


def reliability(
    lengths: Annotated[str, typer.Option(help="Steps of a task, with commas.")] = LENGTHS,
    runs: Annotated[
        int, typer.Option(min=1, max=tasks.MAX_RUNS, help="Tasks of each length.")
    ] = 10,
    strategies: Annotated[
        str, typer.Option(help="Which ones, with commas; pcc-N for any N.")
    ] = ",".join(STRATEGIES),
    seed: Annotated[int, typer.Option(help="Other seeds are other tasks.")] = 1,
    window: Annotated[
        int,
        typer.Option(
            min=LEAST_WINDOW_TOKENS, max=MAX_WINDOW_TOKENS, help="Tokens of a context at most."
        ),
    ] = WINDOW_TOKENS,
    state_tokens: Annotated[
        int,
        typer.Option(
            min=LEAST_STATE_TOKENS,
            max=MAX_STATE_TOKENS,
            help="Of a summary or a state vector at most.",
        ),
    ] = STATE_TOKENS,
    retrieved: Annotated[
        int, typer.Option(min=1, max=1000, help="Steps that retrieval takes at most.")
    ] = RETRIEVED,
    loss: Annotated[
        float,
        typer.Option(
            help="The scripted model's: how likely a fact goes wrong when it is written again."
        ),
    ] = LOSS,
    model: Annotated[
        str, typer.Option(help="provider/name; default: a scripted model, no language model.")
    ] = "",
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
    ] = "",
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Tasks at the same time.")
    ] = 8,
    timeout: Annotated[
        float, typer.Option(min=1, max=DAY_SECONDS, help="Seconds for a compression.")
    ] = 600.0,
    report: Annotated[Path | None, typer.Option(help="A JSON file with all results.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file .svg: success by length.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    settings_path: SettingsPath = None,
) -> None:
    """Play games of many steps with several strategies; count how often the end is right.

    Things move from box to box, and the last question is where one of them is: a strategy
    that has lost the beginning, or a step, cannot know. Where a strategy needs a service,
    this starts one, which keeps the state memories of pcc-N, and stops it at the end.
    Without --model a scripted model plays: docs/guides/evaluation.md explains its figures.
    """
    _check(loss, model, base_url, report, plot)
    names = _strategies(strategies)
    steps = _lengths(lengths)
    config = read_config(model=model or None, model_base_url=base_url or None)
    if model.startswith("offline/"):
        raise CommandError("the offline model plays no games; leave --model out for a scripted one")
    settings = Settings(
        window_tokens=window,
        state_tokens=state_tokens,
        retrieved=retrieved,
        concurrency=concurrency,
        timeout_seconds=timeout,
    )
    said = {
        "lengths": steps,
        "runs": runs,
        "strategies": list(names),
        "seed": seed,
        "loss": None if model else loss,
        "model": model or "scripted",
        **asdict(settings),
    }
    job = Job(
        strategies=names,
        tasks=tasks.make_all(steps, runs, seed=seed),
        settings=settings,
        model=model,
        base_url=base_url,
        scripted=None if model else ScriptedModel(seed=seed, loss=loss, state_tokens=state_tokens),
        report=Report(report, said, _versions(), created=_now()),
    )
    # What fails is in the report; a line of the log would go across the bar.
    logs.configure("error", "console")
    stop = StopSignals()
    try:
        summaries = _run_all(job, config, stop)
        if plot is not None:
            replace_file(plot, _drawn(summaries, job.model or "scripted model"))
    except ReportError as error:
        raise CommandError(str(error)) from error
    if as_json:
        show_json(job.report.head())
    else:
        show_summaries(summaries)
        show_failures((one.failure for one in job.report.results), SHOWN_FAILURES)
    for what, path in (("report", report), ("plot", plot)):
        if path is not None:
            say(f"the {what} is in {path}")


def _check(loss: float, model: str, base_url: str, report: Path | None, plot: Path | None) -> None:
    if not 0 <= loss <= 1 or math.isnan(loss):
        raise CommandError("--loss is a probability, from 0 to 1")
    if base_url and not model:
        raise CommandError("--base-url is where --model is; name that as well")
    if plot is not None and plot.suffix != ".svg":
        raise CommandError(f"--plot draws SVG: {plot} does not end in .svg")
    for name, path in (("--report", report), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(f"{name}: there is no folder {path.absolute().parent}")
        if path is not None and path.exists():
            raise CommandError(f"{path} is there already; name another file for {name}")


def _strategies(said: str) -> tuple[str, ...]:
    names = list(dict.fromkeys(one.strip() for one in said.split(",") if one.strip()))
    if not names:
        raise CommandError("--strategies names none")
    try:
        for name in names:
            period_of(name)
    except ValueError as error:
        raise CommandError(str(error)) from error
    return tuple(names)


def _lengths(said: str) -> list[int]:
    words = [one.strip() for one in said.split(",") if one.strip()]
    found = set()
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= tasks.MAX_LENGTH):
            raise CommandError(
                f"--lengths: {word!r} is no number of steps from 1 to {tasks.MAX_LENGTH}"
            )
        found.add(int(word))
    if not found:
        raise CommandError("--lengths names none")
    return sorted(found)


def _versions() -> dict[str, str]:
    return {
        "palimpsest": metadata.version("palimpsest-server"),
        "litellm": metadata.version("litellm"),
        "python": platform.python_version(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run_all(job: Job, config: Config, stop: StopSignals) -> Sequence[StrategySummary]:
    """Plays everything; the summaries of what was played, which are in the report."""
    from service.app.foundation import CannotStart

    count = len(job.strategies)
    try:
        # From here on Ctrl-C leaves a report.
        tasks = f"{len(job.tasks)} task{'s' * (len(job.tasks) != 1)}"
        each = "one strategy" if count == 1 else f"each of {count} strategies"
        say(f"{tasks} with {each}, {job.steps:,} steps")
        if job.needs_service:
            with _model(job) as (model, base_url):
                with own_service(config, model=model, base_url=base_url) as (own, address):
                    stop.run(_run(job, own, address))
        else:
            stop.run(_play(job, None, None))
    except CannotStart as error:
        raise CommandError(str(error)) from error
    finally:
        summaries = summarize(job.strategies, job.report.results)
        job.report.write(summaries, updated=_now(), complete=False)
    job.report.write(summaries, updated=_now(), complete=True)
    return summaries


@contextlib.contextmanager
def _model(job: Job) -> Iterator[tuple[str, str]]:
    """Yields the service's model, as provider/name, and its base URL."""
    if job.scripted is None:
        yield job.model, job.base_url
        return
    with serving(job.scripted) as base_url:
        yield MODEL, base_url


async def _run(job: Job, config: Config, address: str) -> None:
    async with palimpsest.connect(address) as client, _access(job, config) as access:
        await _play(job, client, access)


async def _play(job: Job, client: palimpsest.Client | None, access: Any) -> None:
    with Progress(job.steps, 0, "steps") as progress:

        def show(result: GameResult) -> None:
            job.report.results.append(result)
            progress.show(result.strategy, failed=bool(result.failure), units=result.length)

        experiment = Experiment(
            client,
            job.settings,
            run_id=uuid4().hex[:12],
            scripted=job.scripted,
            access=access,
            model=job.model,
            on_result=show,
        )
        await experiment.run(job.strategies, job.tasks)


@contextlib.asynccontextmanager
async def _access(job: Job, config: Config) -> AsyncIterator[Any]:
    """Yields where a real model is asked; None where the scripted one plays."""
    from service.app.gateways import open_model_access

    if job.scripted is not None:
        yield None
        return
    async with open_model_access(config) as access:
        yield access


def _drawn(summaries: Sequence[StrategySummary], game_model: str) -> str:
    return plots.lines(
        f"Success by length ({game_model})",
        x_title="steps of a task",
        y_title="tasks solved",
        y_range=(0, 1),
        series={
            one.strategy: [(at.length, at.success_rate) for at in one.lengths] for one in summaries
        },
    )
