"""Simulates what a memory's prompts would have cost with other folds.

Judges the policy of `service.domain.prism.folding` by a log: against the memory written in
place, and against amendments that are never folded. `evaluation.hindsight` adds the best
schedule of all, which takes knowing the log in advance.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from service.domain.prism.amending import replay
from service.domain.prism.amendments import Amendment
from service.domain.prism.folding import (
    FoldState,
    PrefixTokens,
    PromptSizes,
    fold,
    folded,
    is_due,
    keeping,
    kept_tokens,
)
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import Schema
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import ModelPrices
from service.domain.values.json_values import canonical, restore


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedStep:
    """A step that a memory made: a prompt, and what its reply amended."""

    amendments: Sequence[Amendment]
    #: Tokens after the memory in the prompt: the chunk or chunks.
    chunk_tokens: int
    #: Tokens of the reply.
    output_tokens: int
    #: The provider had nothing of the prompt any more; always so for the first one.
    cold: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """What a log's prompts and replies have, by what is paid for it."""

    #: At the price of reading the cache, and that of writing it.
    cached: int = 0
    written: int = 0
    #: At the full price of input: chunks, and prefixes that are too short for the cache.
    fresh: int = 0
    output: int = 0
    #: Folds that were made.
    folds: int = 0

    def plus(self, step: LoggedStep, prefix: PrefixTokens, *, folds: bool) -> "Tokens":
        """Returns these with those of one more step."""
        return Tokens(
            cached=self.cached + prefix.cached,
            written=self.written + prefix.written,
            fresh=self.fresh + prefix.fresh + step.chunk_tokens,
            output=self.output + step.output_tokens,
            folds=self.folds + folds,
        )

    def cost(self, prices: ModelPrices) -> float:
        """Returns the price in full input tokens; times `prices.input_usd` in US dollars."""
        return (
            self.cached * prices.read
            + self.written * prices.write
            + self.fresh
            + self.output * prices.output
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldingComparison:
    """One log under three ways of folding."""

    #: The memory as one object in each prompt.
    in_place: Tokens
    #: Never folded.
    amendments: Tokens
    #: By the policy of `service.domain.prism.folding`.
    adaptive: Tokens


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """A memory's steps, and what is needed to render them."""

    schema: Schema
    steps: Sequence[LoggedStep]
    #: In front of the memory in each prompt, the same each time.
    task_tokens: int = 0
    #: Canonical JSON of the state before the first step.
    base_json: str = "{}"
    #: Tokens of a text.
    count: Callable[[str], int] = estimate_tokens


def compare(log: StepLog, prices: ModelPrices) -> FoldingComparison:
    """Returns what the log's prompts cost under each way of folding, at these prices.

    It takes time as the memory's size times the number of steps.
    """
    return compare_all(log, [prices])[0]


def compare_all(log: StepLog, many: Sequence[ModelPrices]) -> Sequence[FoldingComparison]:
    """Runs `compare` for several prices at once: the memory is rendered once for all."""
    shown = shown_sizes(log)
    every = tuple(range(len(shown)))
    plans = [(prices, plan) for prices in many for plan in (every, ())]
    fixed = simulate(log, shown, _texts(log), plans)
    return [
        FoldingComparison(
            in_place=fixed[2 * number],
            amendments=fixed[2 * number + 1],
            adaptive=adaptive(log, prices),
        )
        for number, prices in enumerate(many)
    ]


def scheduled(log: StepLog, prices: ModelPrices, folds: Sequence[int]) -> Tokens:
    """Returns the log folded before the prompts of these steps, from 0 on, and no others."""
    return simulate(log, shown_sizes(log), _texts(log), [(prices, folds)])[0]


def adaptive(log: StepLog, prices: ModelPrices) -> Tokens:
    """Returns the log under the very policy that the service follows."""
    memory = PrismMemory.load(log.schema, base_json=log.base_json, amendments=(), count=log.count)
    state = FoldState.anew(0)
    paid = Tokens()
    for number, step in enumerate(log.steps):
        cold = step.cold or not number
        sizes = PromptSizes.of(memory, log.task_tokens, state.prompted)
        due = is_due(sizes, state, prices, cold=cold)
        if due:
            memory, state, sizes = _folded(memory, state, prices, sizes, cold=cold)
        prefix = (folded if due else keeping)(sizes, prices, cold=cold)
        paid = paid.plus(step, prefix, folds=due)
        state = state.stepped(sizes, prices)
        memory = memory.apply(state.revision, step.amendments)
    return paid


def _folded(
    memory: PrismMemory, state: FoldState, prices: ModelPrices, sizes: PromptSizes, *, cold: bool
) -> tuple[PrismMemory, FoldState, PromptSizes]:
    """Returns the memory folded, and its sizes with what the provider has of the new base."""
    new, state = fold(memory, state, prices, cold=cold)
    kept = kept_tokens(memory.base_json, new.base_json, new.base_tokens)
    live = new.base_tokens
    return new, state, replace(sizes, shown=live, fresh=0, live=live, kept=kept)


@dataclass(frozen=True, slots=True)
class PromptShape:
    """What a prompt shows."""

    #: Tokens of the state, and of what was amended since the last prompt.
    live: int
    fresh: int
    #: Tokens of the state a character.
    density: float
    cold: bool


def shown_sizes(log: StepLog) -> Sequence[PromptShape]:
    """Returns what each step's prompt shows, in the order of the steps."""
    memory = PrismMemory.load(log.schema, base_json=log.base_json, amendments=(), count=log.count)
    shown: list[PromptShape] = []
    before = 0
    for number, step in enumerate(log.steps):
        fresh = memory.amendment_tokens - before
        before = memory.amendment_tokens
        cold = step.cold or not number
        live = memory.live_tokens
        density = live / len(memory.value_json)
        shown.append(PromptShape(live=live, fresh=fresh, density=density, cold=cold))
        memory = memory.apply(number + 1, step.amendments)
    return shown


def _texts(log: StepLog) -> Iterator[str]:
    """Yields what is in the memory before each step."""
    value = restore(log.base_json)
    for step in log.steps:
        yield canonical(value)
        value = replay(log.schema, value, step.amendments)


def simulate(
    log: StepLog,
    shown: Sequence[PromptShape],
    texts: Iterable[str],
    plans: Sequence[tuple[ModelPrices, Sequence[int]]],
) -> Sequence[Tokens]:
    """Returns what plans cost: each a price model, and the steps before whose prompts it folds.

    `texts` are what is in the memory before each step, with its keys in any order.
    """
    runs = [_Run(log, prices, folds) for prices, folds in plans]
    for number, (text, one) in enumerate(zip(texts, shown, strict=True)):
        for run in runs:
            run.step(number, text, one, log.steps[number])
    return [run.paid for run in runs]


class _Run:
    """One plan, step by step."""

    def __init__(self, log: StepLog, prices: ModelPrices, folds: Sequence[int]) -> None:
        self.paid = Tokens()
        self._prices = prices
        self._folds = frozenset(folds)
        self._task = log.task_tokens
        self._base = log.base_json
        self._tokens = log.count(log.base_json)

    def step(self, number: int, text: str, shown: PromptShape, step: LoggedStep) -> None:
        folds = number in self._folds
        self._tokens += shown.fresh
        sizes = PromptSizes(
            task=self._task,
            shown=self._tokens,
            fresh=shown.fresh,
            live=shown.live,
            kept=kept_tokens(self._base, text, shown.live) if folds else 0,
        )
        parts = (folded if folds else keeping)(sizes, self._prices, cold=shown.cold)
        self.paid = self.paid.plus(step, parts, folds=folds)
        if folds:
            self._base, self._tokens = text, shown.live
