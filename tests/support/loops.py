"""The three loops of the PCC paper, run one context after the other over lists of numbers.

A plain model of `service.domain.state.accounting`: what that has as sums is here a list of
what is in each context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from service.domain.state.accounting import Loop, StateTotals


@dataclass(frozen=True, kw_only=True)
class Held:
    """The vectors in use at a revision."""

    to_position: int
    #: Of all of them.
    tokens: int
    #: The newest of them; 0: only the task prompt.
    newest: int


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A session's contexts, each a list of the tokens of its parts."""

    task_tokens: int
    steps: Sequence[int]
    standard: Sequence[list[int]]
    #: Vectors first, in one number.
    pcc: Sequence[list[int]]
    #: What was in use in each context, and at the end.
    held: Sequence[Held]
    at_end: Held

    def vector_mean(self, state_tokens: int) -> Fraction:
        """L_M."""
        found = [one.tokens for one in self.held if one.newest]
        if found:
            return Fraction(sum(found), len(found))
        return Fraction(self.at_end.tokens if self.at_end.newest else state_tokens)


def simulate(steps: Sequence[int], task_tokens: int, revisions: Sequence[Held]) -> Simulated:
    """Runs the loops; `revisions` in their order, the first one is the task prompt's."""
    standard, pcc, in_use = [], [], []
    for t in range(1, len(steps) + 1):
        newest = [one for one in revisions if one.to_position <= t - 1][-1]
        standard.append([task_tokens, *steps[: t - 1]])
        pcc.append([newest.tokens, *steps[newest.to_position : t - 1]])
        in_use.append(newest)
    return Simulated(
        task_tokens=task_tokens,
        steps=steps,
        standard=standard,
        pcc=pcc,
        held=in_use,
        at_end=revisions[-1],
    )


def loop(contexts: Sequence[Sequence[int | Fraction]], steps: Sequence[int]) -> Loop:
    """Returns the sums of a loop that reads these contexts; without summaries and formula."""
    context_tokens = round(sum(map(sum, contexts)))
    return Loop(
        context_tokens=context_tokens,
        max_context_tokens=round(max(map(sum, contexts))),
        processed_tokens=context_tokens + sum(steps),
        compression_tokens=0,
        formula_tokens=0,
    )


def recursive(run: Simulated, mean: Fraction) -> tuple[Loop, int]:
    """Full recursive summarization, and the tokens of its summaries."""
    contexts: list[list[int | Fraction]] = []
    summary: list[Fraction] = []
    made: Fraction = Fraction(0)
    for step in run.steps:
        contexts.append([run.task_tokens, *summary])
        made += sum(summary) + step + mean
        summary = [mean]
    return loop(contexts, run.steps), round(made)


def sums_of(run: Simulated, *, compressions: int) -> StateTotals:
    """Returns what SQL reads, counted context by context."""
    return StateTotals(
        steps=len(run.steps),
        step_tokens=sum(run.steps),
        last_step_tokens=run.steps[-1],
        history_tokens=sum(sum(context[1:]) for context in run.standard),
        recent_tokens=sum(sum(context[1:]) for context in run.pcc),
        vector_tokens=sum(context[0] for context in run.pcc),
        task_contexts=sum(not one.newest for one in run.held),
        max_context_tokens=max(map(sum, run.pcc)),
        newest_tokens=run.at_end.tokens if run.at_end.newest else None,
        compressions=compressions,
        compressed_steps=run.at_end.to_position,
    )
