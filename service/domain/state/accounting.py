"""Counts the tokens of an agent loop over a session's steps, in three ways (PCC, section 3.3).

At step t a loop reads its context and writes the step, so it processes the context and the
step. With s_1 … s_T the tokens of the steps and P those of the task prompt:

- The standard loop has the whole history in its context: P + s_1 + … + s_(t-1).
- Full recursive summarization has P and a summary of everything before, and makes that summary
  anew after every step, from the summary before and the step. It was not run here: it is
  simulated, with L_M tokens for each summary, and none for the instructions of its prompts.
- PCC has the vectors in use after step t-1, and the steps after them. P is in the first
  state vector, so nothing else stands for it.

What the agent sends besides with every context, its system prompt and instructions, is L_sys
(`system_tokens`): it is in no log, so the caller gives its length. It stands in
every context of all three, so that the ratios without it are better than what an agent saves.

All sums are exact. The paper's formulas put the means of this session in place of the lengths:
for steps of one length that of the standard loop is the sum. That of PCC is an approximation
in three ways: a period has N + 1 half steps a context, with the step itself, where the paper
has N; in the first period M is the task prompt and not a vector; and the last period may end
early. So for steps of one length, and T a multiple of N, the sum is the formula and T L_S / 2
and N (P - L_M).
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTotals:
    """What a session's steps and a memory's vectors add up to.

    Steps at one token for every four bytes, vectors as their models count.
    """

    #: T, at least 1.
    steps: int
    #: Tokens of all steps.
    step_tokens: int
    #: Tokens of the last step.
    last_step_tokens: int
    #: Tokens of steps in all contexts of the standard loop: step i stands in T - i of them.
    history_tokens: int
    #: Tokens of steps in all contexts of PCC: step i stands in those until it is compressed.
    recent_tokens: int
    #: Tokens of the vectors in use in all contexts of PCC; the task prompt's while it is M.
    vector_tokens: int
    #: Contexts of PCC in which no vector is but the task prompt, 1 to T.
    task_contexts: int
    #: Tokens of the longest context of PCC.
    max_context_tokens: int
    #: Tokens of the vectors in use after the last step; None when there is none.
    newest_tokens: int | None
    #: How often steps were compressed, and how many in all.
    compressions: int
    compressed_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """The tokens of a loop."""

    #: Tokens of all contexts.
    context_tokens: int
    #: Tokens of the longest context.
    max_context_tokens: int
    #: Tokens of contexts and steps.
    processed_tokens: int
    #: Tokens of prompts and replies of the summaries.
    compression_tokens: int
    #: By the paper's formula from mean lengths, in place of processed_tokens; 0 where the
    #: paper has none.
    formula_tokens: float

    @property
    def total_tokens(self) -> int:
        """Tokens of everything that a model reads or writes."""
        return self.processed_tokens + self.compression_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """Three loops over one session's steps."""

    #: T, at least 1.
    steps: int
    #: L_P.
    task_tokens: int
    #: L_sys, in every context of all three; 0: not counted.
    system_tokens: int
    #: L_S, the mean of a step.
    step_tokens: float
    #: L_M, see `_vector_mean`.
    state_tokens: float
    #: N, the mean of the steps that were compressed at once; 0 when none was.
    period: float
    standard: Loop
    #: Simulated.
    recursive: Loop
    #: As the memory's vectors are; its compression tokens are the ledger's.
    pcc: Loop

    @property
    def standard_ratio(self) -> float:
        """Tokens of the standard loop as a multiple of PCC's."""
        return self.standard.total_tokens / self.pcc.total_tokens

    @property
    def recursive_ratio(self) -> float:
        """Tokens of full recursive summarization as a multiple of PCC's."""
        return self.recursive.total_tokens / self.pcc.total_tokens


def account(
    sums: StateTotals, spec: StateSpec, *, compression_tokens: int, system_tokens: int = 0
) -> Accounting:
    """Returns the three loops of a session.

    `compression_tokens` of this memory's calls; `system_tokens` of the agent's system prompt.
    """
    task_tokens = estimate_tokens(spec.task)
    vector_mean = _vector_mean(sums, spec, task_tokens)
    step_mean = Fraction(sums.step_tokens, sums.steps)
    period = Fraction(sums.compressed_steps, sums.compressions or 1)
    pcc = Loop(
        context_tokens=sums.vector_tokens + sums.recent_tokens,
        max_context_tokens=sums.max_context_tokens,
        processed_tokens=sums.vector_tokens + sums.recent_tokens + sums.step_tokens,
        compression_tokens=compression_tokens,
        formula_tokens=float(
            pcc_formula(sums.steps, vector_mean, period or spec.period, step_mean)
        ),
    )
    return Accounting(
        steps=sums.steps,
        task_tokens=task_tokens,
        system_tokens=system_tokens,
        step_tokens=float(step_mean),
        state_tokens=float(vector_mean),
        period=float(period),
        standard=_instructed(_standard(sums, task_tokens, step_mean), sums.steps, system_tokens),
        recursive=_instructed(
            _recursive(sums, task_tokens, vector_mean), sums.steps, system_tokens
        ),
        pcc=_instructed(pcc, sums.steps, system_tokens),
    )


def standard_formula(steps: int, task_tokens: int, step_tokens: Fraction) -> Fraction:
    """Returns the sum over t of L_P + t L_S."""
    return steps * task_tokens + step_tokens * (steps * (steps + 1) // 2)


def pcc_formula(
    steps: int, vector_tokens: Fraction, period: Fraction | int, step_tokens: Fraction
) -> Fraction:
    """Returns T (L_M + N/2 L_S). The paper's L_P beside L_M is 0: the task prompt is in M."""
    return steps * (vector_tokens + Fraction(period) / 2 * step_tokens)


def _vector_mean(sums: StateTotals, spec: StateSpec, task_tokens: int) -> Fraction:
    """Returns L_M: the mean size of the vectors over the contexts that have any.

    Where no context has any it is the size of those in use now; where nothing is compressed,
    the most that a vector may have.
    """
    contexts = sums.steps - sums.task_contexts
    if contexts:
        return Fraction(sums.vector_tokens - sums.task_contexts * task_tokens, contexts)
    return Fraction(spec.state_tokens if sums.newest_tokens is None else sums.newest_tokens)


def _standard(sums: StateTotals, task_tokens: int, step_mean: Fraction) -> Loop:
    context_tokens = sums.steps * task_tokens + sums.history_tokens
    return Loop(
        context_tokens=context_tokens,
        max_context_tokens=task_tokens + sums.step_tokens - sums.last_step_tokens,
        processed_tokens=context_tokens + sums.step_tokens,
        compression_tokens=0,
        formula_tokens=float(standard_formula(sums.steps, task_tokens, step_mean)),
    )


def _recursive(sums: StateTotals, task_tokens: int, vector_mean: Fraction) -> Loop:
    # T summaries: each is written once, and read by the next prompt and the next step. The
    # first prompt has no summary before it, and after the last there is no step.
    read_tokens = (sums.steps - 1) * vector_mean
    context_tokens = round(sums.steps * task_tokens + read_tokens)
    return Loop(
        context_tokens=context_tokens,
        max_context_tokens=round(task_tokens + (vector_mean if sums.steps > 1 else 0)),
        processed_tokens=context_tokens + sums.step_tokens,
        compression_tokens=round(read_tokens + sums.step_tokens + sums.steps * vector_mean),
        formula_tokens=0.0,
    )


def _instructed(loop: Loop, steps: int, system_tokens: int) -> Loop:
    """Returns the loop with the agent's system prompt in each of its contexts."""
    added = steps * system_tokens
    return replace(
        loop,
        context_tokens=loop.context_tokens + added,
        max_context_tokens=loop.max_context_tokens + system_tokens,
        processed_tokens=loop.processed_tokens + added,
        formula_tokens=loop.formula_tokens + added if loop.formula_tokens else 0.0,
    )
