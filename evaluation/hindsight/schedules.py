"""The cheapest schedule of a log, of two layouts of the memory's keys."""

from collections import Counter
from collections.abc import Iterator, Sequence

from evaluation.hindsight.optimum import Optimum
from service.domain.prism.amending import MISSING, replay, value_at
from service.domain.prism.ordering import LEVELS, Changes, Keys, arranged
from service.domain.prism.schedules import PromptShape, StepLog, Tokens, shown_sizes, simulate
from service.domain.spend.prices import ModelPrices
from service.domain.values.json_values import Json, canonical, restore
from service.domain.values.paths import Path


def best(log: StepLog, prices: ModelPrices) -> Tokens:
    """Returns the least that a log's prompts can cost, folded with knowledge of the log.

    It is exact for each of two layouts: keys as they were added, and those that change
    often last. It takes time as the memory's size times the number of steps.
    """
    return best_of_all(log, [prices])[0]


def best_of_all(log: StepLog, many: Sequence[ModelPrices]) -> Sequence[Tokens]:
    """Returns `best` for several prices at once, rendering the memory once for all."""
    shown = shown_sizes(log)
    found = [_of_layout(log, layout, shown, many) for layout in (Changes(), _changes(log))]
    return [
        min((one[number] for one in found), key=lambda one: one.cost(prices))
        for number, prices in enumerate(many)
    ]


def _texts(log: StepLog, layout: Changes) -> Iterator[str]:
    """Yields what is in the memory before each step, with the keys in the order of a layout."""
    value = restore(log.base_json)
    ranks = _ranks(log, layout)
    for step in log.steps:
        yield canonical(value)
        value = replay(log.schema, value, step.amendments)
        if ranks:
            for one in step.amendments:
                _arrange(value, one.path, ranks)


def _ranks(log: StepLog, layout: Changes) -> dict[Keys, int]:
    """Returns the place of each key among its siblings; none for the order in which they came."""
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


def _changes(log: StepLog) -> Changes:
    """Counts in how many of all steps each key changed."""
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


def _of_layout(
    log: StepLog, layout: Changes, shown: Sequence[PromptShape], many: Sequence[ModelPrices]
) -> Sequence[Tokens]:
    """Returns the best schedule for each of the prices, the keys being in the order of a layout."""
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
    return simulate(log, shown, _texts(log, layout), plans)
