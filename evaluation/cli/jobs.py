"""The run of `palimpsest eval`: which strategies it takes, and where they ask."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import palimpsest
from evaluation import datasets, log_readers
from evaluation.cli.files import now, session_name
from evaluation.cli.own_service import own_service
from evaluation.cli.tables import Progress
from evaluation.indexing import Indexes
from evaluation.log_readers import BrowseSettings, LogStrategy
from evaluation.measures import Measure
from evaluation.memories import MemorySettings, PccStrategy, PrismStrategy
from evaluation.memwalker import MemWalkerStrategy, TreeSettings
from evaluation.report import Report
from evaluation.run import Run
from evaluation.sessions import Place
from evaluation.strategies import BASELINES, Strategy, StrategyName
from evaluation.summary import Summary, summarize
from service.cli.output import CommandError, say
from service.cli.run import StopSignals
from service.settings.config import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be run."""

    documents: Sequence[datasets.Document]
    measure: Measure
    strategies: tuple[StrategyName, ...]
    tree: TreeSettings
    memory: MemorySettings
    browse: BrowseSettings
    #: As provider/name; empty means the service's own.
    model: str
    base_url: str
    embedding_model: str
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
        return not set(self.strategies).isdisjoint(BASELINES)

    def questions(self) -> Iterator[tuple[StrategyName, datasets.Document, datasets.Question]]:
        """Yields everything that is asked."""
        for name in self.strategies:
            for document in self.documents:
                for question in document.questions:
                    yield name, document, question


def run_all(
    job: Job, config: Config, address: str, data_dir: Path | None, stop: StopSignals
) -> Sequence[Summary]:
    """Runs what is left to be run; the summaries of all of it. Raises ReportError."""
    from service.app.foundation import CannotStart

    left = any(
        not job.report.is_done(name, document.id, question.number)
        for name, document, question in job.questions()
    )
    try:
        if left and address:
            stop.run(_run(job, config, address))
        elif left:
            service = own_service(
                config,
                model=job.model,
                base_url=job.base_url,
                embedding_model=job.embedding_model,
                data_dir=data_dir,
            )
            with service as (own, at):
                stop.run(_run(job, own, at))
    except CannotStart as error:
        raise CommandError(str(error)) from error
    finally:
        summaries = _summaries(job.report)
        job.report.write(updated=now(), summaries=[asdict(one) for one in summaries])
    job.report.write(complete=True)
    return summaries


def _summaries(report: Report) -> list[Summary]:
    held = {one.strategy for one in report.results}
    return [summarize(name, report.results, report.builds) for name in StrategyName if name in held]


async def _run(job: Job, config: Config, address: str) -> None:
    from evaluation.exporting import TrajectoryFile

    asked = [(name, one.id, question.number) for name, one, question in job.questions()]
    done = sum(job.report.is_done(*one) for one in asked)
    async with palimpsest.connect(address) as client:
        exporter = None if job.export is None else TrajectoryFile(job.export, client)
        with Progress(len(asked), done, "questions") as progress:
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
    from evaluation.baseline_runs import BaselineStrategy
    from evaluation.baselines.reading import Baseline
    from service.app.gateways import open_model_access

    async with contextlib.AsyncExitStack() as stack:
        access = None
        if job.has_baselines:
            if config.database_url is None:
                raise CommandError(
                    "baselines ask the model themselves and write to the service's ledger: set"
                    " PALIMPSEST_DATABASE_URL to that of the service, or leave"
                    f" {', '.join(BASELINES)} out of --strategies"
                )
            access = await stack.enter_async_context(open_model_access(config))
        place = Place(
            client=client,
            session_of=lambda document: session_name(job.report.run_id, document),
            timeout_seconds=job.timeout_seconds,
        )
        indexes = Indexes(
            client, wants_vectors=bool(job.embedding_model), timeout_seconds=job.timeout_seconds
        )

        def opened(name: StrategyName) -> Strategy:
            if name in log_readers.NAMES:
                return LogStrategy(name, place, job.browse, indexes)
            match name:
                case StrategyName.MEMWALKER:
                    return MemWalkerStrategy(place, job.tree)
                case StrategyName.PRISM:
                    return PrismStrategy(place, job.memory)
                case StrategyName.PCC:
                    return PccStrategy(place, job.memory)
            assert access is not None, "the others are baselines"
            return BaselineStrategy(
                Baseline(name),
                access,
                client,
                model=job.model or config.model,
                window_tokens=job.window_tokens,
                session_of=place.session_of,
            )

        yield {name: opened(name) for name in job.strategies}
