"""Schedules: what a memory's prompts would have cost, had it been folded at other times.

For judging the policy of `service.domain.prism.folding` by a log: against the memory
written in place, against amendments that are never folded, and against the best that
anybody could have done who knew the log in advance.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from service.domain.json_values import Json, canonical, restore
from service.domain.paths import Path
from service.domain.prices import ModelPrices
from service.domain.prism.amending import MISSING, replay, value_at
from service.domain.prism.amendments import Amendment
from service.domain.prism.folding import (
    FoldState,
    Parts,
    Sizes,
    fold,
    folded,
    is_due,
    keeping,
    kept_tokens,
)
from service.domain.prism.memory import PrismMemory
from service.domain.prism.optimum import Optimum
from service.domain.prism.ordering import LEVELS, Changes, Keys, arranged
from service.domain.schemas.tree import Schema
from service.domain.tokens import estimate_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedStep:
    """A step that a memory made: a prompt, and what its reply amended."""

    amendments: Sequence[Amendment]
    #: Tokens behind the memory in the prompt: the chunk or chunks.
    chunk_tokens: int
    #: Tokens of the reply.
    output_tokens: int
    #: The provider had nothing of the prompt any more; always so for the first one.
    cold: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """What a log's prompts and replies have, by what is paid for it."""

    #: At the price of reading the cache, and that of writing it.
    cached: int
    written: int
    #: At the full price of input: chunks, and prefixes that are too short for the cache.
    fresh: int
    output: int
    #: Folds that were made.
    folds: int

    def cost(self, prices: ModelPrices) -> float:
        """The price in full input tokens; times `prices.input_usd` in US dollars."""
        return (
            self.cached * prices.read
            + self.written * prices.write
            + self.fresh
            + self.output * prices.output
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One log under four ways of folding."""

    #: The memory as one object in each prompt.
    in_place: Tokens
    #: Never folded.
    amendments: Tokens
    #: By the policy of `service.domain.prism.folding`.
    adaptive: Tokens
    #: The best for whoever knows the log in advance, of two layouts of the keys.
    optimum: Tokens


@dataclass(frozen=True, kw_only=True)
class Log:
    """A memory's steps, and what is needed to render them."""

    schema: Schema
    steps: Sequence[LoggedStep]
    #: In front of the memory in each prompt, the same each time.
    task_tokens: int = 0
    #: Canonical JSON of the state before the first step.
    base_json: str = "{}"
    #: Tokens of a text.
    count: Callable[[str], int] = estimate_tokens


def compare(log: Log, prices: ModelPrices) -> Comparison:
    """What the log's prompts cost under each way of folding, at these prices.

    It takes time as the memory's size times the number of steps. The optimum is exact
    for each of two layouts: keys as they were added, and those that change often last.
    """
    return compare_all(log, [prices])[0]


def compare_all(log: Log, many: Sequence[ModelPrices]) -> Sequence[Comparison]:
    """As `compare`, for several prices at once: the memory is rendered once for all."""
    shown = _shown(log)
    every = tuple(range(len(shown)))
    layouts = (Changes(), _hindsight(log))
    best = [_optima(log, layout, shown, many) for layout in layouts]
    plans = [(prices, plan) for prices in many for plan in (every, ())]
    fixed = _simulate(log, shown, plans, Changes())
    return [
        Comparison(
            in_place=fixed[2 * number],
            amendments=fixed[2 * number + 1],
            adaptive=adaptive(log, prices),
            optimum=min((one[number] for one in best), key=lambda one: one.cost(prices)),
        )
        for number, prices in enumerate(many)
    ]


def scheduled(log: Log, prices: ModelPrices, folds: Sequence[int]) -> Tokens:
    """The log folded before the prompts of these steps, from 0 on, and no others."""
    return _simulate(log, _shown(log), [(prices, folds)], Changes())[0]


def adaptive(log: Log, prices: ModelPrices) -> Tokens:
    """The log under the very policy that the service follows."""
    memory = PrismMemory.load(log.schema, base_json=log.base_json, amendments=(), count=log.count)
    state = FoldState.anew(0)
    paid = _Paid()
    for number, step in enumerate(log.steps):
        cold = step.cold or not number
        sizes = Sizes.of(memory, log.task_tokens, state.prompted)
        due = is_due(sizes, state, prices, cold=cold)
        if due:
            memory, state, sizes = _folded(memory, state, prices, sizes, cold=cold)
        paid.add(step, (folded if due else keeping)(sizes, prices, cold=cold), folds=due)
        state = state.stepped(sizes, prices)
        memory = memory.apply(state.revision, step.amendments)
    return paid.tokens()


def _folded(
    memory: PrismMemory, state: FoldState, prices: ModelPrices, sizes: Sizes, *, cold: bool
) -> tuple[PrismMemory, FoldState, Sizes]:
    """The memory folded, and its sizes with what the provider has of the new base."""
    new, state = fold(memory, state, prices, cold=cold)
    kept = kept_tokens(memory.base_json, new.base_json, new.base_tokens)
    live = new.base_tokens
    return new, state, replace(sizes, shown=live, fresh=0, live=live, kept=kept)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a prompt shows."""

    #: Tokens of the state, and of what was amended since the last prompt.
    live: int
    fresh: int
    #: Tokens of the state a character.
    density: float
    cold: bool


def _shown(log: Log) -> Sequence[_Shown]:
    memory = PrismMemory.load(log.schema, base_json=log.base_json, amendments=(), count=log.count)
    shown: list[_Shown] = []
    before = 0
    for number, step in enumerate(log.steps):
        fresh = memory.amendment_tokens - before
        before = memory.amendment_tokens
        cold = step.cold or not number
        live = memory.live_tokens
        density = live / len(memory.value_json)
        shown.append(_Shown(live=live, fresh=fresh, density=density, cold=cold))
        memory = memory.apply(number + 1, step.amendments)
    return shown


def _texts(log: Log, layout: Changes) -> Iterator[str]:
    """What is in the memory before each step, with the keys in the order of a layout."""
    value = restore(log.base_json)
    ranks = _ranks(log, layout)
    for step in log.steps:
        yield canonical(value)
        value = replay(log.schema, value, step.amendments)
        if ranks:
            for one in step.amendments:
                _arrange(value, one.path, ranks)


def _ranks(log: Log, layout: Changes) -> dict[Keys, int]:
    """The place of each key among its siblings; none for the order in which they came."""
    if not layout.counts:
        return {}
    whole = restore(log.base_json)
    for step in log.steps:
        whole = replay(log.schema, whole, step.amendments)
    ranks: dict[Keys, int] = {}
    _rank(arranged(whole, layout), (), ranks)
    return ranks


def _rank(value: Json, at: Keys, ranks: dict[Keys, int]) -> None:
    if isinstance(value, dict) and len(at) < LEVELS:
        for number, (key, one) in enumerate(value.items()):
            ranks[*at, key] = number
            _rank(one, (*at, key), ranks)


def _arrange(value: Json, path: Path, ranks: dict[Keys, int]) -> None:
    """Moves the keys that an amendment added, on each level, to their places."""
    here = value
    at: Keys = ()
    for token in path.tokens[:LEVELS]:
        if not isinstance(here, dict) or not isinstance(token, str):
            return
        if len(here) > 1 and next(reversed(here)) == token:
            places = {key: ranks.get((*at, key), 0) for key in here}
            held = [(key, here[key]) for key in sorted(here, key=places.__getitem__)]
            here.clear()
            here.update(held)
        if token not in here:
            return
        here, at = here[token], (*at, token)


def _hindsight(log: Log) -> Changes:
    """In how many of all steps each key changed."""
    value = restore(log.base_json)
    counts: Counter[Keys] = Counter()
    for step in log.steps:
        touched: set[Keys] = set()
        for one in step.amendments:
            for depth in range(1, LEVELS + 1):
                keys = tuple(token for token in one.path.tokens[:depth] if isinstance(token, str))
                if len(keys) == depth and value_at(value, Path(keys)) is not MISSING:
                    touched.add(keys)
        counts.update(touched)
        value = replay(log.schema, value, step.amendments)
    return Changes(folds=len(log.steps), counts=counts)


def _optima(
    log: Log, layout: Changes, shown: Sequence[_Shown], many: Sequence[ModelPrices]
) -> Sequence[Tokens]:
    """The best schedule for each of the prices, the keys being in the order of a layout."""
    searches = [
        Optimum(
            prices,
            base=log.base_json,
            base_tokens=log.count(log.base_json),
            task_tokens=log.task_tokens,
            density=max((one.density for one in shown), default=0.0),
        )
        for prices in many
    ]
    for number, (text, one) in enumerate(zip(_texts(log, layout), shown, strict=True)):
        left = len(shown) - number - 1
        for search in searches:
            search.step(text, one.live, one.fresh, cold=one.cold, left=left)
    plans = [(prices, search.result()[1]) for prices, search in zip(many, searches, strict=True)]
    return _simulate(log, shown, plans, layout)


def _simulate(
    log: Log,
    shown: Sequence[_Shown],
    plans: Sequence[tuple[ModelPrices, Sequence[int]]],
    layout: Changes,
) -> Sequence[Tokens]:
    """What plans cost: each a price model, and the steps before whose prompts it folds."""
    runs = [_Run(log, prices, folds) for prices, folds in plans]
    for number, (text, one) in enumerate(zip(_texts(log, layout), shown, strict=True)):
        for run in runs:
            run.step(number, text, one, log.steps[number])
    return [run.paid.tokens() for run in runs]


class _Run:
    """One plan, step by step."""

    def __init__(self, log: Log, prices: ModelPrices, folds: Sequence[int]) -> None:
        self.paid = _Paid()
        self._prices = prices
        self._folds = frozenset(folds)
        self._task = log.task_tokens
        self._base = log.base_json
        self._tokens = log.count(log.base_json)

    def step(self, number: int, text: str, shown: _Shown, step: LoggedStep) -> None:
        folds = number in self._folds
        self._tokens += shown.fresh
        sizes = Sizes(
            task=self._task,
            shown=self._tokens,
            fresh=shown.fresh,
            live=shown.live,
            kept=kept_tokens(self._base, text, shown.live) if folds else 0,
        )
        parts = (folded if folds else keeping)(sizes, self._prices, cold=shown.cold)
        self.paid.add(step, parts, folds=folds)
        if folds:
            self._base, self._tokens = text, shown.live


class _Paid:
    """What was paid so far."""

    def __init__(self) -> None:
        self._cached = self._written = self._fresh = self._output = self._folds = 0

    def add(self, step: LoggedStep, prefix: Parts, *, folds: bool) -> None:
        self._cached += prefix.cached
        self._written += prefix.written
        self._fresh += prefix.fresh + step.chunk_tokens
        self._output += step.output_tokens
        self._folds += folds

    def tokens(self) -> Tokens:
        return Tokens(
            cached=self._cached,
            written=self._written,
            fresh=self._fresh,
            output=self._output,
            folds=self._folds,
        )
