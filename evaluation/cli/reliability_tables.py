"""The table of `palimpsest eval reliability`: lengths down, strategies across."""

from collections.abc import Callable, Sequence

from rich.table import Table

from evaluation.cli.tables import NONE
from evaluation.reliability.outcomes import LengthSummary, StrategySummary
from service.cli.output import plain, show_table

_SECTIONS: Sequence[tuple[str, Callable[[LengthSummary], str]]] = (
    ("tasks solved, by steps", lambda one: f"{one.success_rate:.0%}"),
    ("tokens per task", lambda one: _tokens(one.tokens_per_task)),
    ("tokens per success", lambda one: _tokens(one.tokens_per_success)),
    ("longest context", lambda one: f"{one.longest_context:,}"),
)


def show_summaries(summaries: Sequence[StrategySummary]) -> None:
    """A section for each figure; the reasoning horizons come last."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for one in summaries:
        table.add_column(plain(one.strategy), justify="right", no_wrap=True)
    for title, cell in _SECTIONS:
        table.add_row(f"[bold]{title}[/bold]")
        # All strategies play the same tasks.
        for row in zip(*(one.lengths for one in summaries), strict=True):
            table.add_row(f"  {row[0].length}", *(cell(one) for one in row))
    if any(at.failed for one in summaries for at in one.lengths):
        failed = [sum(at.failed for at in one.lengths) for one in summaries]
        table.add_row("[bold]failed[/bold]", *(f"{count:,}" for count in failed))
    horizons = [f"{one.horizon:,}" if one.horizon else NONE for one in summaries]
    table.add_row("[bold]horizon[/bold], in steps", *horizons)
    show_table(table)


def _tokens(count: float | None) -> str:
    return NONE if count is None else f"{count:,.0f}"
