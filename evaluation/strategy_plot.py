"""The plot of an evaluation: how good strategies are, and what that takes."""

from collections.abc import Callable, Sequence

from evaluation.measures import Measure
from evaluation.plots import Field, fields
from evaluation.summary import Summary

_TOKENS = "tokens for each question, building included"


def strategy_plot(summaries: Sequence[Summary], measure: Measure, *, title: str) -> str:
    """Returns an SVG plot of scores, and of evidence shown and cited, over tokens.

    It takes one strategy or more. A measure that no strategy has gets no plot.
    """
    drawn: Sequence[tuple[str, Callable[[Summary], float | None]]] = (
        (measure.value, lambda one: one.score),
        ("evidence shown", lambda one: one.evidence_shown),
        ("evidence cited", lambda one: one.evidence_cited),
        ("gold cited", lambda one: one.gold_cited),
    )
    found = [_field(summaries, name, of, title) for name, of in drawn]
    return fields([one for one in found if one.points])


def _field(
    summaries: Sequence[Summary], name: str, of: Callable[[Summary], float | None], title: str
) -> Field:
    points = {
        # A strategy whose calls were not counted is at the left.
        one.strategy: (max(one.tokens_per_question, 1.0), value)
        for one in summaries
        if (value := of(one)) is not None
    }
    return Field(
        title=f"{title}: {name}", x_title=_TOKENS, y_title=name, y_range=(0, 1), points=points
    )
