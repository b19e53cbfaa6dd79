"""`palimpsest eval search`: how well search finds the evidence of a dataset's questions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.table import Table

from evaluation import plots
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
)
from evaluation.sessions import Place
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json, show_table
from service.llm.embeddings.embedding import LOCAL, CannotEmbed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What is to be searched for."""

    documents: Sequence[Document]
    ways: tuple[SearchWay, ...]
    concurrency: int
    baselines: Baselines
    run_id: str = field(default_factory=lambda: uuid4().hex[:12])
    results: list[Searched] = field(default_factory=list)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("search")(search)


def search(
    dataset: Dataset,
    limit: Limit,
    ways: Annotated[
        str,
        typer.Option(
            help="words, vectors, hybrid, bm25s, stemmed, cosine, rrf; default: all there can be."
        ),
    ] = "",
    half: OnlyHalf = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Besides, let the model order what is found.")
    ] = False,
    embedding_model: EmbeddingModel = "",
    model: Annotated[str, typer.Option(help="provider/name, for --rerank.")] = "",
    base_url: BaseUrl = "",
    shortest: Shortest = False,
    documents: MostDocuments = 0,
    concurrency: Concurrency = 4,
    timeout: Timeout = 600.0,
    report: Report = None,
    plot: Annotated[Path | None, typer.Option(help="Where a plot goes, as SVG.")] = None,
    address: Address = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
    settings_path: SettingsPath = None,
) -> None:
    """Search for the questions of a dataset; say how much of their evidence is found.

    Only questions with evidence are searched for. Without --address it starts a service of
    its own and stops it at the end; docs/guides/evaluation.md has the format of datasets.
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
    config = options.check(report=report, plot=plot)
    wanted = _ways(ways, options.embeds(config), rerank)
    try:
        baselines = Baselines(local_embedder(config) if BY_VECTORS & {*wanted} else None)
    except CannotEmbed as error:
        raise CommandError(str(error)) from error
    found, digest = options.choose()
    job = _Job(documents=found, ways=wanted, concurrency=concurrency, baselines=baselines)
    count = sum(len(one.questions) for one in found)
    say(f"{count} questions about {len(found)} documents, by {', '.join(wanted)}")
    options.serve(config, job.run_id, lambda place, indexes: _run(job, place, indexes))
    summaries = [summarize(way, job.results) for way in job.ways]
    differences = against_better_part(job.results)
    head = {
        **options.head(config, digest, {"ways": list(wanted)}),
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


async def _run(job: _Job, place: Place, indexes: Indexes) -> None:
    total = sum(len(one.questions) for one in job.documents) * len(job.ways)
    with Progress(total, 0, "searches") as progress:

        def hear(one: Searched) -> None:
            job.results.append(one)
            progress.show(one.way, failed=bool(one.failure))

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
