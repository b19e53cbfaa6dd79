"""Chooses the deployment of a model for each call: the one with the least expected cost.

Warm tokens cost the price of reading, by the chance that they survived; the others the price of
writing; queued prompts cost time. For equal costs, or without knowledge, rendezvous hashing of the
owner decides, so that processes agree without communicating.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from service.domain.calls.prefix_index import CachedPrefix, Prefix, PrefixQuery, Seen
from service.domain.spend.prices import ModelPrices
from service.llm.prefix_cache.cache import PrefixIndex, bucket_of, chance, expected_tokens
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import Route, deployment_name
from service.settings.deployments import Deployment

_log = structlog.get_logger("palimpsest.llm")

#: Tokens of prompts that a deployment reads in a second, unless configured.
TOKENS_PER_SECOND = 5000.0
#: Costs that differ by less than this share of the whole prompt are alike.
ALIKE = 0.05
#: How much more work than the average a deployment may have before owners are sent elsewhere.
BOUND_FACTOR = 1.25
#: How long a deployment that failed is not called; doubles with each further failure.
COOLDOWN_SECONDS = 10.0
MAX_COOLDOWN_SECONDS = 120.0
#: How long what was learned about survival is cached.
LEARNED_SECONDS = 30.0


@dataclass(slots=True)
class _State:
    """What this process knows of a deployment."""

    #: Calls of this process under way, and their tokens.
    calls: int = 0
    tokens: int = 0
    #: Failures in a row, and until when that keeps calls away (monotonic seconds).
    failures: int = 0
    cold_until: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentCandidate:
    """A deployment that can get the call."""

    name: str
    #: Tokens that it should have, times the chance that it still has them.
    expected_tokens: float
    #: Tokens of prompts under way there.
    queued_tokens: int
    tokens_per_second: float
    #: Whether it has as many calls under way as it may have.
    full: bool


class Router:
    """Chooses for one worker process. A model without deployments counts as one."""

    def __init__(
        self,
        deployments: Sequence[Deployment],
        index: PrefixIndex,
        prices: Callable[[str], ModelPrices],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        probe_at: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        """`probe_at`: when a deployment whose circuit is open may be probed, by `monotonic`."""
        self._index = index
        self._prices = prices
        self._clock = clock
        self._monotonic = monotonic
        self._probe_at = probe_at
        self._of_model: dict[str, list[Deployment]] = {}
        for one in deployments:
            self._of_model.setdefault(one.model, []).append(one)
        # Without a choice the load does not matter.
        self._shared = {
            one.name for several in self._of_model.values() if len(several) > 1 for one in several
        }
        self._states = {one.name: _State() for one in deployments}
        self._learned: dict[str, tuple[float, Sequence[tuple[float, float]]]] = {}

    async def choose(self, prefix: Prefix, model: str) -> Route:
        """Returns the route of a call. Never raises: it can choose without knowledge."""
        deployments = self._of_model.get(model, ())
        names = tuple(one.name for one in deployments)
        prices = self._prices(model)
        now = self._clock()
        question = PrefixQuery(
            memory_key=prefix.memory_key,
            group_key=prefix.group_key,
            ids=prefix.ids,
            deployments=names or (deployment_name(model, ""),),
            now=now,
            ttl_seconds=prices.ttl_seconds,
            with_load=len(names) > 1,
        )
        seen = await self._index.look(question)
        if len(names) > 1:
            return await self._cheapest(deployments, prefix, prices, seen, now)
        return _route(prefix, prices, seen, 0, now, deployment="".join(names[:1]))

    async def _cheapest(
        self,
        deployments: Sequence[Deployment],
        prefix: Prefix,
        prices: ModelPrices,
        seen: Seen,
        now: float,
    ) -> Route:
        usable = self._usable([one.name for one in deployments])
        candidates = [
            await self._candidate(deployments[at], seen, at, prices, now) for at in usable
        ]
        at = usable[pick(candidates, prefix, prices)]
        route = _route(prefix, prices, seen, at, now, deployment=deployments[at].name)
        return replace(route, spare=len(usable) - 1)

    @asynccontextmanager
    async def going(self, route: Route, tokens: int) -> AsyncIterator[None]:
        """Counts a call while it is under way, and learns from its failure."""
        state = self._states.get(route.deployment)
        if state is None:
            yield
            return
        try:
            # Inside, since a caller that is cancelled here has been counted already.
            await self._count(route.deployment, state, 1, tokens)
            yield
            state.failures, state.cold_until = 0, 0.0
        except ModelFailure as failure:
            if failure.fault.is_deployment:
                self._cool(route.deployment, state, failure)
            raise
        finally:
            await self._count(route.deployment, state, -1, -tokens)

    def _usable(self, names: Sequence[str]) -> list[int]:
        """Returns the positions of those that may be called, else of the first that may again."""
        now = self._monotonic()
        until = [max(self._states[name].cold_until, self._probe_at(name) or 0.0) for name in names]
        usable = [at for at, end in enumerate(until) if end <= now]
        return usable or [until.index(min(until))]

    async def _candidate(
        self, one: Deployment, seen: Seen, at: int, prices: ModelPrices, now: float
    ) -> DeploymentCandidate:
        state = self._states[one.name]
        outcomes = await self._outcomes(one.name) if seen.known else ()
        # What this process knows counts when Redis cannot say.
        queued = seen.queued_tokens[at] if seen.known else state.tokens
        return DeploymentCandidate(
            name=one.name,
            expected_tokens=_surviving(seen.cached[at], prices, outcomes, now),
            queued_tokens=queued,
            tokens_per_second=one.tokens_per_second or TOKENS_PER_SECOND,
            full=one.max_in_flight is not None and state.calls >= one.max_in_flight,
        )

    async def _outcomes(self, name: str) -> Sequence[tuple[float, float]]:
        now = self._monotonic()
        asked_at, outcomes = self._learned.get(name, (None, ()))
        if asked_at is None or now - asked_at > LEARNED_SECONDS:
            outcomes = await self._index.outcomes(name, self._clock())
            self._learned[name] = (now, outcomes)
        return outcomes

    async def _count(self, name: str, state: _State, calls: int, tokens: int) -> None:
        state.calls += calls
        state.tokens += tokens
        if name in self._shared:
            await self._index.queued(name, state.tokens, self._clock())

    def _cool(self, name: str, state: _State, failure: ModelFailure) -> None:
        state.failures += 1
        wait = COOLDOWN_SECONDS * 2.0 ** min(state.failures - 1, 10)
        wait = min(max(wait, failure.retry_after_seconds or 0.0), MAX_COOLDOWN_SECONDS)
        state.cold_until = self._monotonic() + wait
        _log.warning("deployment failed and is paused", deployment=name, seconds=wait)


def deployments_of(deployments: Sequence[Deployment], model: str) -> Sequence[str]:
    """Returns the deployments that serve a model."""
    return [one.name for one in deployments if one.model == model] or [deployment_name(model, "")]


def pick(candidates: Sequence[DeploymentCandidate], prefix: Prefix, prices: ModelPrices) -> int:
    """Returns the position of the candidate with the least expected cost."""
    free = [at for at, one in enumerate(candidates) if not one.full]
    among = free or list(range(len(candidates)))
    cacheable = max(
        [float(prefix.tokens[-1] if prefix.tokens else 0)]
        + [candidates[at].expected_tokens for at in among]
    )
    # A second of waiting costs as much as a second of computing on an average deployment.
    rate = sum(candidates[at].tokens_per_second for at in among) / len(among)

    def cost(at: int) -> float:
        one = candidates[at]
        warm = one.expected_tokens
        waiting = rate * one.queued_tokens / one.tokens_per_second
        return prices.read * warm + prices.write * (cacheable - warm) + waiting

    def load(at: int) -> float:
        return candidates[at].queued_tokens / candidates[at].tokens_per_second

    if any(candidates[at].expected_tokens for at in among):
        least = min(cost(at) for at in among)
        alike = [at for at in among if cost(at) <= least + ALIKE * max(cacheable, 1.0)]
    else:
        # Only balance matters: the owner's own deployment, unless that is overloaded.
        mean = sum(load(at) for at in among) / len(among)
        slack = cacheable / rate
        alike = [at for at in among if load(at) <= BOUND_FACTOR * mean + slack]
    return max(alike, key=lambda at: _score(prefix.memory_key, candidates[at].name))


def _score(owner: str, name: str) -> bytes:
    """Returns the rank in rendezvous hashing; adding a deployment moves few owners."""
    return hashlib.blake2b(f"{owner}\0{name}".encode(), digest_size=8).digest()


def _surviving(
    cached: CachedPrefix,
    prices: ModelPrices,
    outcomes: Sequence[tuple[float, float]],
    now: float,
) -> float:
    """Returns the tokens to expect, up to the fresh boundary or a deeper, older one."""
    found = {one for one in (cached.fresh, cached.deepest) if one is not None}
    return max(
        (
            expected_tokens(one.tokens, prices)
            * chance(bucket_of(now - one.touched, prices.ttl_seconds), outcomes)
            for one in found
        ),
        default=0.0,
    )


def _route(
    prefix: Prefix, prices: ModelPrices, seen: Seen, at: int, now: float, *, deployment: str
) -> Route:
    fresh, deepest = seen.cached[at].fresh, seen.cached[at].deepest
    others = [one.fresh.tokens for one in seen.cached if one.fresh is not None]
    predicted = expected_tokens(fresh.tokens, prices) if fresh else 0
    best = expected_tokens(max(others, default=0), prices)
    return Route(
        deployment=deployment,
        predicted_tokens=predicted,
        known=seen.known,
        warm_segments=fresh.depth if fresh else 0,
        warm_tokens=fresh.tokens if fresh else 0,
        warm_exact=fresh.exact if fresh else False,
        age_seconds=max(now - fresh.touched, 0.0) if fresh else None,
        elsewhere_tokens=best if best > predicted else 0,
        deepest_tokens=expected_tokens(deepest.tokens, prices) if deepest else 0,
        deepest_age_seconds=max(now - deepest.touched, 0.0) if deepest else None,
    )
