"""`palimpsest eval recall`: how much of the evidence is in what is recalled for a question."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.table import Table

import palimpsest
from evaluation.cli.files import (
    check_folders,
    check_new,
    check_service,
    listed,
    now,
    read_dataset,
    session_name,
    versions,
)
from evaluation.cli.own_service import own_service
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
from evaluation.searching import with_evidence
from evaluation.selection import Half, choose, half_of
from evaluation.sessions import Place, create, until
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json, show_table
from service.cli.run import StopSignals, read_config
from service.telemetry import logs

FORMAT = 1
MAX_CONCURRENCY = 64
MAX_BUDGET = 100_000
DAY_SECONDS = 86_400.0
SHOWN_FAILURES = 5
#: The memory that Recall takes where none is named.
MEMORY = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What is to be recalled."""

    documents: Sequence[Document]
    budgets: Sequence[int]
    wants_vectors: bool
    with_memory: bool
    concurrency: int
    timeout_seconds: float
    run_id: str = field(default_factory=lambda: uuid4().hex[:12])
    results: list[Recollection] = field(default_factory=list)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("recall")(recall)


def recall(
    dataset: Annotated[Path, typer.Option(help="Documents with questions, JSON Lines.")],
    limit: Annotated[int, typer.Option(min=1, help="Questions, spread over the documents.")],
    budgets: Annotated[
        str, typer.Option(help="Tokens of the texts, with commas between.")
    ] = ",".join(map(str, BUDGETS)),
    memory: Annotated[
        bool, typer.Option("--memory", help="Besides, with a memory that has read all of it.")
    ] = False,
    half: Annotated[
        Half | None, typer.Option(help="Only this half of the documents, by a hash of their ids.")
    ] = None,
    embedding_model: Annotated[
        str, typer.Option(help="provider/name, for vectors; default: the service's.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/name, for --memory.")] = "",
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
    ] = "",
    shortest: Annotated[bool, typer.Option(help="Prefer the shortest documents.")] = False,
    documents: Annotated[int, typer.Option(min=0, help="At most so many; 0: any number.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Documents at the same time.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option(min=1, max=DAY_SECONDS, help="Seconds for a text, or an index.")
    ] = 600.0,
    report: Annotated[Path | None, typer.Option(help="A JSON file for all of it.")] = None,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a service; default: one of its own.", metavar="ADDR")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where a service of its own keeps its data; else nowhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    settings_path: SettingsPath = None,
) -> None:
    """Recall for the questions of a dataset; say how much of their evidence is in the text.

    Compares Recall with the best chunks of a search that have the same tokens. Only questions
    with evidence are asked. Without --address it starts a service of its own and stops
    it at the end; docs/guides/evaluation.md has the format of datasets.
    """
    check_service(address, base_url, embedding_model, data_dir)
    check_folders(report=report)
    check_new(report=report)
    config = read_config(
        model=model or None,
        model_base_url=base_url or None,
        embedding_model=embedding_model or None,
    )
    wanted = _budgets(budgets)
    read, digest = read_dataset(dataset)
    found = with_evidence([one for one in read if half in (None, half_of(one))])
    if not any(one.questions for one in found):
        where = f"the {half} half of {dataset.name}" if half else dataset.name
        raise CommandError(f"{where} names no evidence")
    embeds = "" if address else config.embedding_model
    job = _Job(
        documents=choose(found, limit, shortest=shortest, most=documents),
        budgets=wanted,
        wants_vectors=bool(embeds),
        with_memory=memory,
        concurrency=concurrency,
        timeout_seconds=timeout,
    )
    count = sum(len(one.questions) for one in job.documents)
    say(f"{count} questions about {len(job.documents)} documents")
    logs.configure("error", "console")
    stop = StopSignals()
    if address:
        stop.run(_run(job, address))
    else:
        with own_service(
            config,
            model=model,
            base_url=base_url,
            embedding_model=embedding_model,
            data_dir=data_dir,
        ) as (_, at):
            stop.run(_run(job, at))
    summaries = summarize(job.results)
    head = {
        "format": FORMAT,
        "created": now(),
        "settings": {
            "dataset": dataset.name,
            "dataset_sha256": digest,
            "half": half or "",
            "limit": limit,
            "shortest": shortest,
            "documents": documents,
            "budgets": list(wanted),
            "memory": memory,
            "embedding_model": embeds,
            "model": model or ("" if address else config.model),
        },
        "versions": versions(),
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


async def _run(job: _Job, address: str) -> None:
    async with palimpsest.connect(address) as client:
        ways = len(RecallWay) if job.with_memory else len(RecallWay) - 1
        total = sum(len(one.questions) for one in job.documents) * ways * len(job.budgets)
        with Progress(total, 0, "texts") as progress:

            def hear(one: Recollection) -> None:
                job.results.append(one)
                progress.show(one.way, failed=bool(one.failure))

            place = Place(
                client=client,
                session_of=lambda document: session_name(job.run_id, document),
                timeout_seconds=job.timeout_seconds,
            )
            indexes = Indexes(
                client, wants_vectors=job.wants_vectors, timeout_seconds=job.timeout_seconds
            )
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
