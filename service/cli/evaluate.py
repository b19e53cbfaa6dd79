"""`palimpsest eval`: how well strategies answer the questions of a dataset, and what it costs."""

import asyncio
import contextlib
import hashlib
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from typer.core import TyperGroup

import palimpsest
from service import logs
from service.cli import reliability
from service.cli.evaluation_tables import Progress, show_failures, show_summaries
from service.cli.output import CommandError, say, show_json
from service.cli.own_service import own_service
from service.cli.run import StopSignals, read_config
from service.config import Config
from service.domain.baselines.reading import LEAST_WINDOW_TOKENS
from service.evaluation import datasets
from service.evaluation.measures import Measure, measure_of
from service.evaluation.memwalker import MemWalkerStrategy, TreeSettings
from service.evaluation.report import FORMAT, Report, ReportError
from service.evaluation.run import Run
from service.evaluation.selection import choose
from service.evaluation.strategies import Strategy, StrategyName
from service.evaluation.summary import Summary, summarize

#: What the paper gives its models to read (section 4).
WINDOW_TOKENS = 4096
MAX_WINDOW_TOKENS = 10_000_000
MAX_CONCURRENCY = 256
DAY_SECONDS = 86_400.0
#: Reasons of failures that are shown; all of them are in the report.
SHOWN_FAILURES = 5
#: Characters of a document's id in the name of its session.
_SLUG_CHARACTERS = 40


#: The command that `palimpsest eval` is by itself.
BY_ITSELF = "questions"


class _Evaluations(TyperGroup):
    """`palimpsest eval` with options alone is its first command, help included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Names the command where none is named."""
        if not args or args[0].startswith("-"):
            args = [BY_ITSELF, *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    evaluations = typer.Typer(
        cls=_Evaluations,
        help="Compare strategies: with the questions of a dataset, or in games of many steps.",
        rich_markup_mode=None,
    )
    evaluations.command(
        BY_ITSELF,
        epilog="`palimpsest eval reliability` is another experiment; see its --help.",
    )(evaluate)
    reliability.register(evaluations)
    app.add_typer(evaluations, name="eval")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be run."""

    documents: Sequence[datasets.Document]
    measure: Measure
    strategies: tuple[StrategyName, ...]
    tree: TreeSettings
    #: As provider/name; empty means the service's own.
    model: str
    base_url: str
    window_tokens: int
    concurrency: int
    timeout_seconds: float
    report: Report
    #: Whether the service's data is there when the run is continued.
    is_kept: bool
    export: Path | None

    @property
    def has_baselines(self) -> bool:
        """Whether it asks models besides the service."""
        return any(name is not StrategyName.MEMWALKER for name in self.strategies)

    def session_of(self, document: datasets.Document) -> str:
        """The name of a document's session: unlike any other's of any run."""
        slug = "".join(char if char.isalnum() and char.isascii() else "-" for char in document.id)
        digest = hashlib.sha256(document.id.encode()).hexdigest()[:8]
        return f"eval/{self.report.run_id}/{slug[:_SLUG_CHARACTERS]}-{digest}"


def evaluate(
    dataset: Annotated[Path, typer.Option(help="Documents with questions, JSON Lines.")],
    limit: Annotated[int, typer.Option(min=1, help="Questions, spread over the documents.")],
    strategies: Annotated[
        str, typer.Option(help="Which ones, with commas between them.")
    ] = ",".join(StrategyName),
    shortest: Annotated[bool, typer.Option(help="Prefer the shortest documents.")] = False,
    model: Annotated[str, typer.Option(help="provider/name; default: the service's.")] = "",
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
    ] = "",
    window: Annotated[
        int,
        typer.Option(
            min=LEAST_WINDOW_TOKENS,
            max=MAX_WINDOW_TOKENS,
            help="Tokens of a baseline's prompt with its reply.",
        ),
    ] = WINDOW_TOKENS,
    segment_tokens: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    max_children: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    summary_tokens: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    reasoning: Annotated[bool, typer.Option(help="Whether navigation says why it moves.")] = True,
    hybrid: Annotated[int, typer.Option(min=0, max=32, help="Leaves to begin with.")] = 0,
    beam: Annotated[int, typer.Option(min=1, max=8, help="Nodes to explore at once.")] = 1,
    max_calls: Annotated[int, typer.Option(min=0, max=1000, help="Of a navigation.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Questions at the same time.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option(min=1, max=DAY_SECONDS, help="Seconds for an answer.")
    ] = 600.0,
    report: Annotated[
        Path | None, typer.Option(help="A JSON file that is written as it goes.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the report of --report.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Where right trajectories go, as training data.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a service; default: one of its own.", metavar="ADDR")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where a service of its own keeps its data; else nowhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask the questions of a dataset with several strategies; compare answers and costs.

    Without --address it starts a service of its own, as the demo does, and stops it at the
    end. A line of the dataset is a document: id, its text in chunks, turns, steps or text,
    and questions with q and gold; docs/guides/evaluation.md has the format.
    """
    _check_places(address, base_url, data_dir, report, resume, export)
    names = _strategies(strategies)
    chosen, digest = _chosen(dataset, limit, shortest)
    tree = TreeSettings(
        segment_tokens=segment_tokens,
        max_children=max_children,
        summary_tokens=summary_tokens,
        reasoning=reasoning,
        hybrid_leaves=hybrid,
        beam=beam,
        max_calls=max_calls,
        model=model,
    )
    config = read_config(model=model or None, model_base_url=base_url or None)
    questions = [one for document in chosen for one in document.questions]
    measure = measure_of(questions)
    settings = {
        "dataset": dataset.name,
        "dataset_sha256": digest,
        "limit": limit,
        "shortest": shortest,
        "measure": measure,
        "strategies": names,
        "model": model or ("" if address else config.model),
        "window_tokens": window,
        "tree": asdict(tree),
        "concurrency": concurrency,
        "timeout_seconds": timeout,
    }
    job = Job(
        documents=chosen,
        measure=measure,
        strategies=names,
        tree=tree,
        model=model,
        base_url=base_url,
        window_tokens=window,
        concurrency=concurrency,
        timeout_seconds=timeout,
        report=_report(report, resume, settings),
        is_kept=bool(address or data_dir),
        export=export,
    )
    say(f"{len(questions)} questions about {len(chosen)} documents, scored by {measure}")
    # What fails is in the report; a line of the log would go across the bar.
    logs.configure("error", "console")
    StopSignals()
    try:
        summaries = _run_all(job, config, address, data_dir)
    except ReportError as error:
        raise CommandError(str(error)) from error
    if as_json:
        found = job.report.to_json()
        show_json({key: found[key] for key in ("settings", "versions", "summaries")})
    else:
        show_summaries(summaries, measure)
        show_failures((one.failure for one in job.report.results), SHOWN_FAILURES)
    if report is not None:
        say(f"the report is in {report}")


def _check_places(
    address: str,
    base_url: str,
    data_dir: Path | None,
    report: Path | None,
    resume: bool,
    export: Path | None,
) -> None:
    if address and base_url:
        raise CommandError("--base-url is for a service of its own; the one at --address has its")
    if address and data_dir is not None:
        raise CommandError("--data-dir is for a service of its own, not for one at --address")
    if resume and report is None:
        raise CommandError("--resume goes on with the report that --report names")
    for name, path in (("--report", report), ("--export", export)):
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(f"{name}: there is no folder {path.absolute().parent}")
    if export is not None and export.exists() and not resume:
        raise CommandError(f"{export} is there already; name another file for --export")


def _strategies(said: str) -> tuple[StrategyName, ...]:
    names = [one.strip() for one in said.split(",") if one.strip()]
    known = set(StrategyName)
    for name in names:
        if name not in known:
            raise CommandError(
                f"there is no strategy {name!r}; there are {', '.join(StrategyName)}"
            )
    if not names:
        raise CommandError("--strategies names none")
    return tuple(one for one in StrategyName if one in names)


def _chosen(path: Path, limit: int, shortest: bool) -> tuple[list[datasets.Document], str]:
    try:
        documents = datasets.read(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except datasets.DatasetError as error:
        raise CommandError(str(error)) from error
    return choose(documents, limit, shortest=shortest), digest


def _report(path: Path | None, resume: bool, settings: dict[str, Any]) -> Report:
    head = {
        "format": FORMAT,
        "run_id": uuid4().hex[:12],
        "created": _now(),
        "updated": _now(),
        "complete": False,
        # As a file has it, so that a report that is read again compares equal.
        "settings": {**settings, "strategies": list(settings["strategies"])},
        "versions": {
            "palimpsest": metadata.version("palimpsest-server"),
            "litellm": metadata.version("litellm"),
            "python": platform.python_version(),
        },
        "summaries": [],
    }
    try:
        if resume and path is not None:
            return Report.resume(path, head)
        return Report.begin(path, head)
    except ReportError as error:
        raise CommandError(str(error)) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run_all(job: Job, config: Config, address: str, data_dir: Path | None) -> Sequence[Summary]:
    """Runs what is left to be run; the summaries of all of it."""
    from service.app import CannotStart

    left = any(
        not job.report.is_done(name, document.id, question.number)
        for name in job.strategies
        for document in job.documents
        for question in document.questions
    )
    try:
        if left and address:
            asyncio.run(_run(job, config, address))
        elif left:
            service = own_service(config, model=job.model, base_url=job.base_url, data_dir=data_dir)
            with service as (own, at):
                asyncio.run(_run(job, own, at))
    except CannotStart as error:
        raise CommandError(str(error)) from error
    finally:
        summaries = _summaries(job.report)
        job.report.write(updated=_now(), summaries=[asdict(one) for one in summaries])
    job.report.write(complete=True)
    return summaries


def _summaries(report: Report) -> list[Summary]:
    held = {one.strategy for one in report.results}
    return [summarize(name, report.results, report.builds) for name in StrategyName if name in held]


async def _run(job: Job, config: Config, address: str) -> None:
    from service.evaluation.exporting import TrajectoryFile

    total = sum(len(document.questions) for document in job.documents) * len(job.strategies)
    done = sum(
        job.report.is_done(name, document.id, question.number)
        for name in job.strategies
        for document in job.documents
        for question in document.questions
    )
    async with palimpsest.connect(address) as client:
        exporter = None if job.export is None else TrajectoryFile(job.export, client)
        with Progress(total, done, "questions") as progress:
            run = Run(
                job.documents,
                job.report,
                measure=job.measure,
                # What a folder that goes away held is gone: it is built, and paid, again.
                place="kept" if job.is_kept else uuid4().hex[:12],
                concurrency=job.concurrency,
                on_result=lambda one: progress.show(one.strategy, failed=bool(one.failure)),
                exporter=exporter,
            )
            async with _opened(job, config, client) as strategies:
                await run.go(strategies)
    if exporter is not None:
        say(f"{exporter.examples} moves of right answers are in {job.export}")
        for failure in exporter.failures:
            say(f"not exported: {failure}")


@contextlib.asynccontextmanager
async def _opened(
    job: Job, config: Config, client: palimpsest.Client
) -> AsyncIterator[dict[StrategyName, Strategy]]:
    from service.app import asking
    from service.domain.baselines.reading import Baseline
    from service.evaluation.baseline_runs import BaselineStrategy

    found: dict[StrategyName, Strategy] = {}
    async with contextlib.AsyncExitStack() as stack:
        if StrategyName.MEMWALKER in job.strategies:
            found[StrategyName.MEMWALKER] = MemWalkerStrategy(
                client,
                job.tree,
                timeout_seconds=job.timeout_seconds,
                session_of=job.session_of,
            )
        if job.has_baselines:
            if config.database_url is None:
                raise CommandError(
                    "baselines ask the model themselves and write to the service's ledger: set"
                    " PALIMPSEST_DATABASE_URL to that of the service, or --strategies memwalker"
                )
            desk = await stack.enter_async_context(asking(config))
            for name in job.strategies:
                if name is not StrategyName.MEMWALKER:
                    found[name] = BaselineStrategy(
                        Baseline(name),
                        desk,
                        client,
                        model=job.model or config.model,
                        window_tokens=job.window_tokens,
                        session_of=job.session_of,
                    )
        yield found
