"""Reports to the prefix index what a call shows: what is cached, and why it differed.

Each process remembers a little to find the reasons (`service.llm.prefix_cache.misses`). This is
lost with the process.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from service.domain.calls.ledger import Call
from service.domain.calls.prefix_index import PrefixSurvival, Sent
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.prefix_cache.cache import PrefixIndex, bucket_of, calibrated, expected_tokens
from service.llm.prefix_cache.misses import Evidence, MissReason, classify, tolerance
from service.llm.prefix_cache.recent_prompts import RecentPrompt, RecentPrompts
from service.llm.providers.plans import CallRequest, deployment_name
from service.llm.providers.renderers import kept_ends

#: Deployments that are remembered; the least recently used is forgotten.
MAX_DEPLOYMENTS = 1024
#: Owners in a row that are remembered of one deployment.
MAX_OWNERS = 16


@dataclass(slots=True)
class _DeploymentFeedback:
    """What one deployment found of the prefixes that should have been warm."""

    hits: int = 0
    misses_in_a_row: int = 0
    #: Owners of whose warm prompts nothing was found, since the last find.
    cold_owners: set[str] = field(default_factory=set)


class PrefixFeedback:
    """Compares predicted with reported tokens, and reports the result to the index."""

    def __init__(
        self,
        index: PrefixIndex,
        prices: Callable[[str], ModelPrices],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._index = index
        self._prices = prices
        self._clock = clock
        self._deployments: OrderedDict[tuple[str, str], _DeploymentFeedback] = OrderedDict()
        self._recent = RecentPrompts()

    def predicted(self, order: CallRequest) -> int:
        """Returns the tokens that the provider should find, by the index or the last prompt."""
        prices = self._prices(order.model)
        if prices.family is CacheFamily.EXPLICIT:
            # Only prefixes that end at a mark are found there.
            return order.route.predicted_tokens
        since = self._clock() - prices.ttl_seconds
        recent = self._recent.find(_recent_key(order), since)
        common = 0 if recent is None else recent.common_tokens(_texts(order))
        return max(order.route.predicted_tokens, expected_tokens(common, prices))

    def miss_reason(self, order: CallRequest, predicted: int, reported: int | None) -> MissReason:
        """Returns why a call's cache had other tokens than predicted."""
        route, prices = order.route, self._prices(order.model)
        provider = order.model.partition("/")[0]
        deployment = self._deployment(provider, deployment_name(order.model, route.deployment))
        if route.known and reported is not None and predicted:
            near = tolerance(predicted, prices.granularity_tokens)
            _note(deployment, order.prefix.memory_key, reported, hit=reported >= predicted - near)
        return classify(
            Evidence(
                known=route.known,
                predicted_tokens=predicted,
                reported_tokens=reported,
                granularity_tokens=prices.granularity_tokens,
                elsewhere_tokens=route.elsewhere_tokens,
                hits=deployment.hits,
                misses_in_a_row=deployment.misses_in_a_row,
                cold_owners=len(deployment.cold_owners),
                cold_deployments=sum(
                    bool(one.cold_owners) and one.hits > 0
                    for (of, _), one in self._deployments.items()
                    if of == provider
                ),
            )
        )

    async def learn(self, order: CallRequest, call: Call) -> None:
        """Reports to the index what is warm, and which warm prefixes survived."""
        prefix, route, prices = order.prefix, order.route, self._prices(order.model)
        rest = order.ask.segments[len(prefix.ids) :]
        anchor, exact = _anchor(order, call, prices)
        tokens = calibrated(
            prefix,
            rest=[one.text for one in rest],
            input_tokens=call.input_tokens,
            warm_segments=route.warm_segments,
            warm_tokens=anchor,
        )
        self._recent.keep(
            _recent_key(order),
            RecentPrompt(texts=_texts(order), tokens=tokens, sent_at=self._clock()),
        )
        kept = kept_ends(prefix, order.plan.marks, prices)
        await self._index.sent(
            Sent(
                memory_key=prefix.memory_key,
                group_key=prefix.group_key,
                boundaries=tuple((prefix.ids[at], tokens[at]) for at in kept),
                with_group=0 in kept,
                exact=prefix.ids[route.warm_segments - 1] if exact else None,
                deployment=deployment_name(order.model, route.deployment),
                now=self._clock(),
                ttl_seconds=prices.ttl_seconds,
                outcome=_outcome(order, call, prices),
            )
        )

    def _deployment(self, provider: str, name: str) -> _DeploymentFeedback:
        deployment = self._deployments.setdefault((provider, name), _DeploymentFeedback())
        self._deployments.move_to_end((provider, name))
        if len(self._deployments) > MAX_DEPLOYMENTS:
            self._deployments.popitem(last=False)
        return deployment


def _recent_key(order: CallRequest) -> tuple[str, ...]:
    # Prompts for other tasks begin differently.
    deployment = deployment_name(order.model, order.route.deployment)
    return (deployment, order.prefix.memory_key, order.prefix.group_key)


def _texts(order: CallRequest) -> tuple[str, ...]:
    return tuple(one.text for one in order.ask.segments[: len(order.prefix.ids)])


def _note(deployment: _DeploymentFeedback, owner: str, reported: int, *, hit: bool) -> None:
    if hit:
        deployment.hits += 1
        deployment.misses_in_a_row = 0
    else:
        deployment.misses_in_a_row += 1
    if reported:
        deployment.cold_owners.clear()
    elif len(deployment.cold_owners) < MAX_OWNERS:
        deployment.cold_owners.add(owner)


def _anchor(order: CallRequest, call: Call, prices: ModelPrices) -> tuple[int, bool]:
    """Returns the tokens up to the boundary that was read, and whether the provider reported them.

    It finds at least these, and more if the next segment begins alike. So a report replaces an
    estimate, and lowers an earlier report.
    """
    route, reported = order.route, call.reported_cached_tokens
    known = (route.warm_tokens, route.warm_exact)
    if not reported or not route.warm_tokens:
        return known
    granularity = prices.granularity_tokens
    if abs(reported - route.warm_tokens) > max(route.warm_tokens // 4, granularity):
        # It is about another boundary.
        return known
    if reported == route.warm_tokens - route.warm_tokens % granularity:
        # As predicted; the index is more precise than the report.
        return route.warm_tokens, True
    said = reported + granularity // 2
    return (min(said, route.warm_tokens) if route.warm_exact else said), True


def _outcome(order: CallRequest, call: Call, prices: ModelPrices) -> PrefixSurvival | None:
    route, reported = order.route, call.reported_cached_tokens
    age = route.deepest_age_seconds
    if not route.known or reported is None or not route.deepest_tokens or age is None:
        return None
    near = tolerance(route.deepest_tokens, prices.granularity_tokens)
    return PrefixSurvival(
        bucket=bucket_of(age, prices.ttl_seconds),
        survived=reported >= route.deepest_tokens - near,
    )
