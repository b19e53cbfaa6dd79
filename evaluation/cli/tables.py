"""What `palimpsest eval` shows: how far it is, and a line for each strategy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

from rich.cells import cell_len
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from evaluation.measures import Measure
from evaluation.strategies import Spent
from evaluation.summary import Summary, WalkSummary
from service.cli.output import err, out, plain, show

#: What is shown where there is nothing to show.
NONE = "-"


class Progress:
    """A bar over all that all strategies do, on a terminal. Use it as a context manager."""

    def __init__(self, total: int, done: int, unit: str) -> None:
        self._failed = 0
        self._bar = Bar(
            TextColumn("{task.fields[strategy]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{unit}{{task.fields[failures]}}"),
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

    def show(self, strategy: str, *, failed: bool, units: int = 1) -> None:
        """One more has an outcome, a question or what else there is; `units` of it are done."""
        self._failed += failed
        self._bar.update(
            self._task,
            advance=units,
            strategy=strategy,
            failures=f", {self._failed} failed" if self._failed else "",
        )


def show_summaries(summaries: Sequence[Summary], measure: Measure) -> None:
    """A table with a column for each strategy; what none of them has is left out.

    Columns that do not fit beside the others come in a table below.
    """
    rows = list(_rows(summaries, measure))
    names = max(cell_len(name) for name, _ in rows)
    widths = [
        max(cell_len(one.strategy), *(cell_len(line) for _, row in rows for line in row[at]))
        for at, one in enumerate(summaries)
    ]
    first = 0
    for last in _breaks(widths, out.width - names):
        if first:
            out.print()
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for one in summaries[first:last]:
            table.add_column(plain(one.strategy), justify="right", no_wrap=True)
        for name, row in rows:
            title = f"[bold]{name}[/bold]" if not any(row) else name
            table.add_row(title, *("\n".join(lines) for lines in row[first:last]))
        out.print(table)
        first = last


def _breaks(widths: Sequence[int], room: int) -> Iterator[int]:
    """Yields the columns after which a table ends; each has one at least."""
    used = 0
    for at, width in enumerate(widths):
        # Two blanks precede each.
        if used and used + width + 2 > room:
            yield at
            used = 0
        used += width + 2
    yield len(widths)


def _rows(
    summaries: Sequence[Summary], measure: Measure
) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
    """Names of rows, and the lines of each cell; a title has none."""
    for title, rows in _sections(measure):
        cells = [(name, [show_one(one) for one in summaries]) for name, show_one in rows]
        known = [(name, row) for name, row in cells if set(row) != {NONE}]
        if title and known:
            yield title, [()] * len(summaries)
        for name, row in known:
            yield f"  {name}" if title else name, [cell.split("\n") for cell in row]


_Row = tuple[str, Callable[[Summary], str]]


def _sections(measure: Measure) -> Sequence[tuple[str, Sequence[_Row]]]:
    return (
        (
            "",
            (
                ("questions", lambda one: f"{one.questions:,}"),
                ("failed", lambda one: f"{one.failed:,}"),
                (measure.value, lambda one: f"{one.score:.3f}"),
                ("… without guesses", _without_guesses),
                *_other_scores(measure),
                ("exact match", lambda one: f"{one.exact:.3f}"),
                ("no answer", lambda one: _percent(one.no_answer_rate)),
                ("guessed", lambda one: _percent(one.guessed_rate) if one.guessed_rate else NONE),
                ("evidence shown", lambda one: _percent(one.evidence_shown)),
                ("evidence cited", lambda one: _percent(one.evidence_cited)),
                ("gold cited", lambda one: _percent(one.gold_cited)),
                ("tokens/question", lambda one: f"{one.tokens_per_question:,.0f}"),
            ),
        ),
        ("answering", _spending(_answering, "s/question", lambda one: one.seconds)),
        ("building", _spending(_building, "s/document", lambda one: one.building_seconds)),
        (
            "navigation",
            (
                ("stray ratio", _of_walks(lambda walks: walks.stray_ratio)),
                ("recovery rate", _of_walks(lambda walks: walks.recovery_rate)),
                ("valid actions", _of_walks(lambda walks: walks.valid_action_rate)),
                ("text read", _of_walks(lambda walks: walks.text_read)),
                ("… where right", _of_walks(lambda walks: walks.text_read_successful)),
            ),
        ),
        (
            "browsing",
            (
                ("pieces read", lambda one: NONE if one.pieces is None else f"{one.pieces:.1f}"),
                ("chosen", lambda one: _listed(one.chosen)),
            ),
        ),
    )


def _other_scores(measure: Measure) -> Sequence[_Row]:
    rows: dict[Measure, _Row] = {
        Measure.F1: ("f1", lambda one: f"{one.f1:.3f}"),
        Measure.ROUGE_L: ("rouge_l", lambda one: f"{one.rouge_l:.3f}"),
    }
    return [row for other, row in rows.items() if other is not measure]


def _without_guesses(one: Summary) -> str:
    return f"{one.score_without_guesses:.3f}" if one.guessed_rate else NONE


def _listed(chosen: Mapping[str, int]) -> str:
    """Returns a line for each."""
    return "\n".join(f"{name} {count}" for name, count in chosen.items()) or NONE


def _answering(one: Summary) -> Spent | None:
    return one.spent


def _building(one: Summary) -> Spent | None:
    return one.building if one.building.calls else None


def _spending(
    spent_of: Callable[[Summary], Spent | None],
    per: str,
    seconds_of: Callable[[Summary], float | None],
) -> Sequence[_Row]:
    def of(show_one: Callable[[Spent], str]) -> Callable[[Summary], str]:
        def cell(one: Summary) -> str:
            spent = spent_of(one)
            return NONE if spent is None else show_one(spent)

        return cell

    def seconds(one: Summary) -> str:
        found = seconds_of(one)
        return NONE if found is None or spent_of(one) is None else f"{found:.2f}"

    return (
        ("calls", of(lambda spent: f"{spent.calls:,}")),
        ("tokens in", of(lambda spent: f"{spent.input_tokens:,}")),
        ("tokens out", of(lambda spent: f"{spent.output_tokens:,}")),
        ("USD", of(_price)),
        (per, seconds),
    )


def _price(spent: Spent) -> str:
    cost = spent.cost_micro_usd
    return "unknown" if cost is None else f"{cost / 1e6:.4f}"


def _of_walks(share_of: Callable[[WalkSummary], float | None]) -> Callable[[Summary], str]:
    return lambda one: NONE if one.walks is None else _percent(share_of(one.walks))


def show_failures(failures: Iterable[str], most: int) -> None:
    """Why questions failed, of those that did: the first of each cause."""
    causes: dict[str, int] = {}
    for failure in failures:
        if failure:
            causes[failure] = causes.get(failure, 0) + 1
    for cause, count in list(causes.items())[:most]:
        show(f"{count} failed: {cause}")
    if len(causes) > most:
        show(f"… and for {len(causes) - most} more reasons, which the report has")


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"
