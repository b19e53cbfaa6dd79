"""`palimpsest eval search`: how well search finds the evidence of a dataset's questions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.table import Table

import palimpsest
from evaluation import plots
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
from evaluation.cli.tables import NONE, Progress, show_failures
from evaluation.datasets import Document
from evaluation.indexing import Indexes
from evaluation.report import ReportError, json_file, replace_file
from evaluation.search_baselines import BY_VECTORS, Baselines, local_embedder
from evaluation.searching import (
    MEASURES,
    Difference,
    Searched,
    SearchRun,
    SearchSummary,
    SearchWay,
    against_better_part,
    summarize,
    with_evidence,
)
from evaluation.selection import Half, choose, half_of
from evaluation.sessions import Place
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json, show_table
from service.cli.run import StopSignals, read_config
from service.llm.embeddings.embedding import LOCAL, CannotEmbed
from service.telemetry import logs

FORMAT = 1
MAX_CONCURRENCY = 64
DAY_SECONDS = 86_400.0
SHOWN_FAILURES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What is to be searched for."""

    documents: Sequence[Document]
    ways: tuple[SearchWay, ...]
    #: Whether vectors must be there before anything is searched for.
    wants_vectors: bool
    concurrency: int
    timeout_seconds: float
    baselines: Baselines
    run_id: str = field(default_factory=lambda: uuid4().hex[:12])
    results: list[Searched] = field(default_factory=list)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("search")(search)


def search(
    dataset: Annotated[Path, typer.Option(help="Documents with questions, JSON Lines.")],
    limit: Annotated[int, typer.Option(min=1, help="Questions, spread over the documents.")],
    ways: Annotated[
        str,
        typer.Option(
            help="words, vectors, hybrid, bm25s, stemmed, cosine, rrf; default: all there can be."
        ),
    ] = "",
    half: Annotated[
        Half | None, typer.Option(help="Only this half of the documents, by a hash of their ids.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Besides, let the model order what is found.")
    ] = False,
    embedding_model: Annotated[
        str, typer.Option(help="provider/name, for vectors; default: the service's.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/name, for --rerank.")] = "",
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
    ] = "",
    shortest: Annotated[bool, typer.Option(help="Prefer the shortest documents.")] = False,
    documents: Annotated[int, typer.Option(min=0, help="At most so many; 0: any number.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Documents at the same time.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option(min=1, max=DAY_SECONDS, help="Seconds for a search, or an index.")
    ] = 600.0,
    report: Annotated[Path | None, typer.Option(help="A JSON file for all of it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where a plot goes, as SVG.")] = None,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a service; default: one of its own.", metavar="ADDR")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where a service of its own keeps its data; else nowhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    settings_path: SettingsPath = None,
) -> None:
    """Search for the questions of a dataset; say how much of their evidence is found.

    Only questions with evidence are searched for. Without --address it starts a service of
    its own and stops it at the end; docs/guides/evaluation.md has the format of datasets.
    """
    check_service(address, base_url, embedding_model, data_dir)
    check_folders(report=report, plot=plot)
    check_new(report=report, plot=plot)
    config = read_config(
        model=model or None,
        model_base_url=base_url or None,
        embedding_model=embedding_model or None,
    )
    # What the service at --address has is its own affair.
    embeds = "" if address else config.embedding_model
    wanted = _ways(ways, embeds, rerank)
    try:
        baselines = Baselines(local_embedder(config) if BY_VECTORS & {*wanted} else None)
    except CannotEmbed as error:
        raise CommandError(str(error)) from error
    read, digest = read_dataset(dataset)
    found = with_evidence([one for one in read if half in (None, half_of(one))])
    if not any(one.questions for one in found):
        where = f"the {half} half of {dataset.name}" if half else dataset.name
        raise CommandError(f"{where} names no evidence")
    job = _Job(
        documents=choose(found, limit, shortest=shortest, most=documents),
        ways=wanted,
        wants_vectors=bool(embeds),
        concurrency=concurrency,
        timeout_seconds=timeout,
        baselines=baselines,
    )
    count = sum(len(one.questions) for one in job.documents)
    say(f"{count} questions about {len(job.documents)} documents, by {', '.join(job.ways)}")
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
    summaries = [summarize(way, job.results) for way in job.ways]
    differences = against_better_part(job.results)
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
            "ways": list(job.ways),
            "embedding_model": embeds,
            "model": model or ("" if address else config.model),
        },
        "versions": versions(),
        "summaries": [asdict(one) for one in summaries],
        "hybrid_against_better_part": [asdict(one) for one in differences],
    }
    _write(report, plot, head, job, summaries, dataset.name)
    if as_json:
        show_json(head)
    else:
        _show(summaries, differences)
        show_failures((one.failure for one in job.results), SHOWN_FAILURES)


def _ways(said: str, embeds: str, rerank: bool) -> tuple[SearchWay, ...]:
    known = [one for one in SearchWay if one is not SearchWay.RERANKED]
    names = listed(said)
    for name in names:
        if name not in known:
            raise CommandError(f"there is no way {name!r}; there are {', '.join(known)}")
    if said and not names:
        raise CommandError("--ways names none")
    absent = set() if embeds.startswith(LOCAL) else set(BY_VECTORS)
    if asked := [name for name in names if name in absent]:
        raise CommandError(
            f"{' and '.join(asked)} need vectors in this process: --embedding-model local/minilm"
        )
    if not embeds:
        absent |= {SearchWay.VECTORS, SearchWay.HYBRID}
    chosen = [one for one in known if (one in names if names else one not in absent)]
    return (*chosen, SearchWay.RERANKED) if rerank else tuple(chosen)


async def _run(job: _Job, address: str) -> None:
    total = sum(len(one.questions) for one in job.documents) * len(job.ways)
    async with palimpsest.connect(address) as client:
        with Progress(total, 0, "searches") as progress:

            def hear(one: Searched) -> None:
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
            run = SearchRun(
                place,
                indexes,
                job.ways,
                concurrency=job.concurrency,
                on_result=hear,
                rank=job.baselines.rank,
            )
            await run.go(job.documents)


def _write(
    report: Path | None,
    plot: Path | None,
    head: dict[str, Any],
    job: _Job,
    summaries: Sequence[SearchSummary],
    name: str,
) -> None:
    try:
        if report is not None:
            json_file(report, {**head, "searches": [asdict(one) for one in job.results]})
            say(f"the report is in {report}")
        if plot is not None:
            series = {
                one.way.value: [(float(k), share) for k, share in enumerate(one.recall, start=1)]
                for one in summaries
            }
            drawn = plots.lines(
                f"{name}: evidence among the best chunks",
                x_title="chunks",
                y_title="evidence recall",
                y_range=(0, 1),
                series=series,
            )
            replace_file(plot, drawn)
            say(f"the plot is in {plot}")
    except ReportError as error:
        raise CommandError(str(error)) from error


def _show(summaries: Sequence[SearchSummary], differences: Sequence[Difference]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for one in summaries:
        table.add_column(one.way.value, justify="right", no_wrap=True)
    table.add_row("questions", *(f"{one.questions:,}" for one in summaries))
    table.add_row("failed", *(f"{one.failed:,}" for one in summaries))
    for name in MEASURES:
        table.add_row(name, *(f"{one.mean(name):.3f}" for one in summaries))
        table.add_row("  95 %", *(_range(*one.intervals[name]) for one in summaries))
    table.add_row("ms/search", *(_milliseconds(one.seconds) for one in summaries))
    show_table(table)
    if differences:
        _show_differences(differences)


def _show_differences(differences: Sequence[Difference]) -> None:
    say("hybrid against the better one of its parts, with the 95 % interval of the difference:")
    table = Table(box=None, pad_edge=False)
    for header in ("", "part", "difference", "95 %"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for one in differences:
        range_of_it = _range(one.low, one.high, "+")
        table.add_row(one.measure, one.part.value, f"{one.mean:+.3f}", range_of_it)
    show_table(table)


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.2f} {high:{sign}.2f}"


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds * 1000:,.0f}"
