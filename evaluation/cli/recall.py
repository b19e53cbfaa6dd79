"""`palimpsest eval recall`: how much of the evidence is in what is recalled for a question."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated
from uuid import uuid4

import typer
from rich.table import Table

import palimpsest
from evaluation.cli.files import listed
from evaluation.cli.retrieval import (
    SHOWN_FAILURES,
    Address,
    AsJson,
    BaseUrl,
    Concurrency,
    DataDir,
    Dataset,
    EmbeddingModel,
    Limit,
    MostDocuments,
    OnlyHalf,
    Report,
    RetrievalOptions,
    Shortest,
    Timeout,
)
from evaluation.cli.tables import Progress, show_failures
from evaluation.datasets import Document
from evaluation.indexing import Indexes
from evaluation.recalling import (
    BUDGETS,
    MEASURES,
    RecallRun,
    RecallSummary,
    RecallWay,
    Recollection,
    Remember,
    summarize,
)
from evaluation.report import ReportError, json_file
from evaluation.schemas import GENERAL, TASK
from evaluation.sessions import Place, create, until
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json, show_table

MAX_BUDGET = 100_000
#: The memory that Recall takes where none is named.
MEMORY = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What is to be recalled."""

    documents: Sequence[Document]
    budgets: Sequence[int]
    with_memory: bool
    concurrency: int
    timeout_seconds: float
    run_id: str = field(default_factory=lambda: uuid4().hex[:12])
    results: list[Recollection] = field(default_factory=list)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("recall")(recall)


def recall(
    dataset: Dataset,
    limit: Limit,
    budgets: Annotated[
        str, typer.Option(help="Tokens of the texts, with commas between.")
    ] = ",".join(map(str, BUDGETS)),
    memory: Annotated[
        bool, typer.Option("--memory", help="Besides, with a memory that has read all of it.")
    ] = False,
    half: OnlyHalf = None,
    embedding_model: EmbeddingModel = "",
    model: Annotated[str, typer.Option(help="provider/name, for --memory.")] = "",
    base_url: BaseUrl = "",
    shortest: Shortest = False,
    documents: MostDocuments = 0,
    concurrency: Concurrency = 4,
    timeout: Timeout = 600.0,
    report: Report = None,
    address: Address = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
    settings_path: SettingsPath = None,
) -> None:
    """Recall for the questions of a dataset; say how much of their evidence is in the text.

    Compares Recall with the best chunks of a search that have the same tokens. Only questions
    with evidence are asked. Without --address it starts a service of its own and stops
    it at the end; docs/guides/evaluation.md has the format of datasets.
    """
    options = RetrievalOptions(
        dataset=dataset,
        half=half,
        limit=limit,
        shortest=shortest,
        documents=documents,
        concurrency=concurrency,
        timeout_seconds=timeout,
        model=model,
        base_url=base_url,
        embedding_model=embedding_model,
        address=address,
        data_dir=data_dir,
    )
    config = options.check(report=report)
    wanted = _budgets(budgets)
    found, digest = options.choose()
    job = _Job(
        documents=found,
        budgets=wanted,
        with_memory=memory,
        concurrency=concurrency,
        timeout_seconds=timeout,
    )
    count = sum(len(one.questions) for one in found)
    say(f"{count} questions about {len(found)} documents")
    options.serve(config, job.run_id, lambda place, indexes: _run(job, place, indexes))
    summaries = summarize(job.results)
    head = {
        **options.head(config, digest, {"budgets": list(wanted), "memory": memory}),
        "summaries": [asdict(one) for one in summaries],
    }
    if report is not None:
        try:
            json_file(report, {**head, "recalls": [asdict(one) for one in job.results]})
        except ReportError as error:
            raise CommandError(str(error)) from error
        say(f"the report is in {report}")
    if as_json:
        show_json(head)
    else:
        _show(summaries)
        show_failures((one.failure for one in job.results), SHOWN_FAILURES)


def _budgets(said: str) -> tuple[int, ...]:
    found = []
    for one in listed(said):
        if not one.isdecimal() or not 0 < int(one) <= MAX_BUDGET:
            raise CommandError(
                f"--budgets: {one!r} is no number of tokens from 1 to {MAX_BUDGET:,}"
            )
        found.append(int(one))
    if not found:
        raise CommandError("--budgets names none")
    return tuple(dict.fromkeys(found))


async def _run(job: _Job, place: Place, indexes: Indexes) -> None:
    ways = len(RecallWay) if job.with_memory else len(RecallWay) - 1
    total = sum(len(one.questions) for one in job.documents) * ways * len(job.budgets)
    with Progress(total, 0, "texts") as progress:

        def hear(one: Recollection) -> None:
            job.results.append(one)
            progress.show(one.way, failed=bool(one.failure))

        run = RecallRun(
            place,
            indexes,
            job.budgets,
            concurrency=job.concurrency,
            on_result=hear,
            remember=_remembering(job) if job.with_memory else None,
        )
        await run.go(job.documents)


def _remembering(job: _Job) -> Remember:
    async def remember(document: Document, session: palimpsest.Session) -> None:
        await create(lambda: session.create_memory(MEMORY, schema_source=GENERAL, task=TASK))
        memory = session.memory(MEMORY)
        await memory.flush()
        head = len(document.chunks)
        await until(memory, lambda info: info.applied_position >= head, job.timeout_seconds)
        await (await memory.consolidate()).wait(timeout=job.timeout_seconds)

    return remember


def _show(summaries: Sequence[RecallSummary]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("budget", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for header in ("questions", "failed", "tokens", *MEASURES):
        table.add_column(header, justify="right", no_wrap=True)
        if header in MEASURES:
            table.add_column("95 %", justify="right", no_wrap=True)
    for one in summaries:
        cells = [f"{one.questions:,}", f"{one.failed:,}", f"{one.tokens:,.0f}"]
        for name in MEASURES:
            low, high = one.intervals[name]
            cells += [f"{one.means[name]:.3f}", f"{low:.2f} {high:.2f}"]
        table.add_row(f"{one.budget:,}", one.way.value, *cells)
    show_table(table)
