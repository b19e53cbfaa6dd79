"""`palimpsest eval`: how well strategies answer the questions of a dataset, and what it costs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from typer.core import TyperGroup

from evaluation.baselines.reading import LEAST_WINDOW_TOKENS
from evaluation.cli import recall, reliability, search
from evaluation.cli.files import (
    check_folders,
    check_new,
    check_service,
    listed,
    now,
    read_dataset,
    versions,
)
from evaluation.cli.jobs import Job, run_all
from evaluation.cli.tables import show_failures, show_summaries
from evaluation.log_readers import ACTIONS, BrowseSettings
from evaluation.measures import measure_of
from evaluation.memories import MemorySettings
from evaluation.memwalker import TreeSettings
from evaluation.report import FORMAT, Report, ReportError, replace_file
from evaluation.schemas import SchemaChoice
from evaluation.selection import choose
from evaluation.strategies import ALL, BASELINES, FIGURE_3, USUAL, StrategyName
from evaluation.strategy_plot import strategy_plot
from service.cli.app import SettingsPath
from service.cli.output import CommandError, say, show_json
from service.cli.run import StopSignals, read_config
from service.domain.answers.browse import spec
from service.telemetry import logs

#: What the paper gives its models to read (section 4).
WINDOW_TOKENS = 4096
MAX_CONCURRENCY = 256
DAY_SECONDS = 86_400.0
#: Reasons of failures that are shown; all of them are in the report.
SHOWN_FAILURES = 5

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
        epilog="`palimpsest eval reliability`, `palimpsest eval search` and"
        " `palimpsest eval recall` are other experiments; see their --help.",
    )(evaluate)
    search.register(evaluations)
    recall.register(evaluations)
    reliability.register(evaluations)
    app.add_typer(evaluations, name="eval")


def evaluate(
    dataset: Annotated[Path, typer.Option(help="Documents with questions, JSON Lines.")],
    limit: Annotated[int, typer.Option(min=1, help="Questions, spread over the documents.")],
    strategies: Annotated[
        str, typer.Option(help="Which ones, with commas between them; or all.")
    ] = ",".join(USUAL),
    figure3: Annotated[
        bool,
        typer.Option("--figure3", help="In place of --strategies: the ablations of DCISO's paper."),
    ] = False,
    shortest: Annotated[bool, typer.Option(help="Prefer the shortest documents.")] = False,
    documents: Annotated[int, typer.Option(min=0, help="At most so many; 0: any number.")] = 0,
    model: Annotated[str, typer.Option(help="provider/name; default: the service's.")] = "",
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
    ] = "",
    window: Annotated[
        int,
        typer.Option(
            min=spec.LEAST_WINDOW_TOKENS,
            max=spec.MAX_WINDOW_TOKENS,
            help="Tokens of a prompt with its reply, of browsing and baselines.",
        ),
    ] = WINDOW_TOKENS,
    segment_tokens: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    max_children: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    summary_tokens: Annotated[int, typer.Option(min=0, help="Of trees; 0: as usual.")] = 0,
    reasoning: Annotated[bool, typer.Option(help="Whether navigation says why it moves.")] = True,
    hybrid: Annotated[int, typer.Option(min=0, max=32, help="Leaves to begin with.")] = 0,
    beam: Annotated[int, typer.Option(min=1, max=8, help="Nodes to explore at once.")] = 1,
    max_calls: Annotated[
        int, typer.Option(min=0, max=1000, help="Of a navigation or a browsing.")
    ] = 0,
    schema: Annotated[
        SchemaChoice, typer.Option(help="Of PRISM memories: a general one, or a model writes it.")
    ] = SchemaChoice.GENERAL,
    chunk_tokens: Annotated[
        int, typer.Option(min=0, help="Of a step of PRISM memories; 0: as usual.")
    ] = 0,
    period: Annotated[
        int, typer.Option(min=0, help="Chunks that PCC compresses at once; 0: as usual.")
    ] = 0,
    state_tokens: Annotated[int, typer.Option(min=0, help="Of PCC's vectors; 0: as usual.")] = 0,
    pieces: Annotated[
        int,
        typer.Option(min=0, max=spec.MAX_PIECES, help="That browsing has ranked; 0: as usual."),
    ] = 0,
    actions: Annotated[
        str, typer.Option(help="What browsing may do, with commas between them; default: all.")
    ] = "",
    rerank: Annotated[
        bool, typer.Option("--rerank", help="A model orders the pieces that are ranked.")
    ] = False,
    embedding_model: Annotated[
        str, typer.Option(help="provider/name, for vectors; default: the service's.")
    ] = "",
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
    plot: Annotated[
        Path | None, typer.Option(help="Where a plot of scores and tokens goes, as SVG.")
    ] = None,
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
    settings_path: SettingsPath = None,
) -> None:
    """Ask the questions of a dataset with several strategies; compare answers and costs.

    Without --address it starts a service of its own, as the demo does, and stops it at the
    end. A line of the dataset is a document: id, its text in chunks, turns, steps or text,
    and questions with q and gold; docs/guides/evaluation.md has the format.
    """
    check_service(address, base_url, embedding_model, data_dir)
    if resume and report is None:
        raise CommandError("--resume goes on with the report that --report names")
    check_folders(report=report, export=export, plot=plot)
    if not resume:
        check_new(export=export, plot=plot)
    names = _strategies(strategies, figure3, window)
    read, digest = read_dataset(dataset)
    chosen = choose(read, limit, shortest=shortest, most=documents)
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
    memory = MemorySettings(
        schema=schema,
        chunk_tokens=chunk_tokens,
        period=period,
        state_tokens=state_tokens,
        model=model,
    )
    browse = BrowseSettings(
        window_tokens=window,
        pieces=pieces,
        max_calls=max_calls,
        rerank=rerank,
        actions=_actions(actions),
        model=model,
    )
    config = read_config(
        model=model or None,
        model_base_url=base_url or None,
        embedding_model=embedding_model or None,
    )
    embeds = "" if address else config.embedding_model
    questions = [one for document in chosen for one in document.questions]
    measure = measure_of(questions)
    settings = {
        "dataset": dataset.name,
        "dataset_sha256": digest,
        "limit": limit,
        "shortest": shortest,
        "documents": documents,
        "measure": measure,
        "strategies": names,
        "model": model or ("" if address else config.model),
        "window_tokens": window,
        "embedding_model": embeds,
        "tree": asdict(tree),
        "memory": asdict(memory),
        "browse": asdict(browse),
        "concurrency": concurrency,
        "timeout_seconds": timeout,
    }
    job = Job(
        documents=chosen,
        measure=measure,
        strategies=names,
        tree=tree,
        memory=memory,
        browse=browse,
        model=model,
        base_url=base_url,
        embedding_model=embeds,
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
    stop = StopSignals()
    try:
        summaries = run_all(job, config, address, data_dir, stop)
        if plot is not None:
            replace_file(plot, strategy_plot(summaries, measure, title=dataset.name))
    except ReportError as error:
        raise CommandError(str(error)) from error
    if as_json:
        found = job.report.to_json()
        show_json({key: found[key] for key in ("settings", "versions", "summaries")})
    else:
        show_summaries(summaries, measure)
        show_failures((one.failure for one in job.report.results), SHOWN_FAILURES)
    for what, path in (("report", report), ("plot", plot)):
        if path is not None:
            say(f"the {what} is in {path}")


def _strategies(said: str, figure3: bool, window: int) -> tuple[StrategyName, ...]:
    if figure3:
        return tuple(one for one in StrategyName if one in FIGURE_3)
    names = listed(said)
    if names == ["all"]:
        names = list(ALL)
    known = set(StrategyName)
    for name in names:
        if name not in known:
            raise CommandError(
                f"there is no strategy {name!r}; there are all and {', '.join(StrategyName)}"
            )
    if not names:
        raise CommandError("--strategies names none")
    if window < LEAST_WINDOW_TOKENS and not set(names).isdisjoint(BASELINES):
        raise CommandError(
            f"--window: {', '.join(BASELINES)} need {LEAST_WINDOW_TOKENS:,} tokens or more"
        )
    return tuple(one for one in StrategyName if one in names)


def _actions(said: str) -> tuple[str, ...]:
    names = listed(said)
    for name in names:
        if name not in ACTIONS:
            raise CommandError(f"there is no action {name!r}; there are {', '.join(ACTIONS)}")
    request = spec.BrowseRequest(actions=frozenset(map(spec.BrowseAction, names or ACTIONS)))
    if problem := request.problem():
        raise CommandError(f"--actions: {problem}")
    return tuple(name for name in ACTIONS if name in names)


def _report(path: Path | None, resume: bool, settings: dict[str, Any]) -> Report:
    head = {
        "format": FORMAT,
        "run_id": uuid4().hex[:12],
        "created": now(),
        "updated": now(),
        "complete": False,
        # As a file has it, so that a report that is read again compares equal.
        "settings": json.loads(json.dumps(settings)),
        "versions": versions(),
        "summaries": [],
    }
    try:
        if resume and path is not None:
            return Report.resume(path, head)
        return Report.begin(path, head)
    except ReportError as error:
        raise CommandError(str(error)) from error
