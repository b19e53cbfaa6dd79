"""What `palimpsest eval` shows: how far it is, and a line for each strategy."""

from collections.abc import Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from service.cli.output import err, out, plain, show
from service.evaluation.measures import Measure
from service.evaluation.report import Result
from service.evaluation.strategies import Spent
from service.evaluation.summary import Summary

#: What is shown where there is nothing to show.
NONE = "-"


class Progress:
    """A bar over all questions of all strategies, on a terminal. Use it as a context manager."""

    def __init__(self, total: int, done: int) -> None:
        self._failed = 0
        self._bar = Bar(
            TextColumn("{task.fields[strategy]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("questions{task.fields[failures]}"),
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._bar.add_task(
            "", total=total, completed=done, strategy="starting", failures=""
        )

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, result: Result) -> None:
        """One question more has an outcome."""
        self._failed += bool(result.failure)
        self._bar.update(
            self._task,
            advance=1,
            strategy=result.strategy,
            failures=f", {self._failed} failed" if self._failed else "",
        )


def show_summaries(summaries: Sequence[Summary], measure: Measure) -> None:
    """A table over all strategies, and one of what only MemWalker has."""
    table = _table("strategy")
    for name in (
        "questions", "failed", measure.value, "exact", "no answer", "evidence shown",
        "calls", "tokens in", "out", "USD", "s/question",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for one in summaries:
        table.add_row(
            one.strategy,
            f"{one.questions:,}",
            f"{one.failed:,}",
            f"{one.score:.3f}",
            f"{one.exact:.3f}",
            _percent(one.no_answer_rate),
            _percent(one.evidence_shown),
            *_spent(one.spent),
            NONE if one.seconds is None else f"{one.seconds:.2f}",
        )
    out.print(table)
    _show_building(summaries)
    _show_walks(summaries)


def _show_building(summaries: Sequence[Summary]) -> None:
    built = [one for one in summaries if one.building.calls]
    if not built:
        return
    show()
    table = _table("before the questions")
    for name in ("calls", "tokens in", "out", "USD", "s/document"):
        table.add_column(name, justify="right")
    for one in built:
        seconds = NONE if one.building_seconds is None else f"{one.building_seconds:.2f}"
        table.add_row(one.strategy, *_spent(one.building), seconds)
    out.print(table)


def _show_walks(summaries: Sequence[Summary]) -> None:
    walked = [(one, one.walks) for one in summaries if one.walks is not None]
    if not walked:
        return
    show()
    table = _table("navigation")
    for name in (
        "stray", "recovered", "valid actions", "evidence cited", "text read", "if right",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for one, walks in walked:
        table.add_row(
            one.strategy,
            _percent(walks.stray_ratio),
            _percent(walks.recovery_rate),
            _percent(walks.valid_action_rate),
            _percent(one.evidence_cited),
            _percent(walks.text_read),
            _percent(walks.text_read_successful),
        )
    out.print(table)


def show_failures(results: Sequence[Result], most: int) -> None:
    """Why questions failed: the first of each cause."""
    causes: dict[str, int] = {}
    for one in results:
        if one.failure:
            causes[one.failure] = causes.get(one.failure, 0) + 1
    for cause, count in list(causes.items())[:most]:
        show(f"{count} failed: {cause}")
    if len(causes) > most:
        show(f"… and for {len(causes) - most} more reasons, which the report has")


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(plain(first))
    return table


def _spent(spent: Spent) -> tuple[str, str, str, str]:
    cost = spent.cost_micro_usd
    return (
        f"{spent.calls:,}",
        f"{spent.input_tokens:,}",
        f"{spent.output_tokens:,}",
        "unknown" if cost is None else f"{cost / 1e6:.4f}",
    )


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"
