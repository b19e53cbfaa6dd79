"""Coalesces calls with the same long prefix: the first is sent, the others wait for its cache.

A provider finds a prefix in its cache once the call that wrote it has returned. Calls with the same
long prefix that are sent together would each pay for all of it. So the others of this process wait
for the first, and read what it wrote.

This is advice. No call waits longer than a lease, for a failed call, for a provider whose cache is
unreliable, or to save few tokens.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from opentelemetry import metrics

from service.domain.calls.prefix_index import Prefix
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.providers.labels import LABELS
from service.llm.providers.plans import CallPlan, Route, deployment_name
from service.llm.providers.renderers import kept_ends
from service.telemetry.names import Attribute, Metric

#: Fewer uncached tokens are not worth a wait, which takes as long as a call.
LEAST_GAIN_TOKENS = 512


class LeaderEnd(Enum):
    """How a leader ended."""

    #: With a reply: what it has sent is warm.
    BACK = auto()
    FAILED = auto()
    #: It was cancelled, or found its reply without a call: another call has to lead.
    GONE = auto()


class _Lead:
    """A call for which others wait."""

    def __init__(self, deployment: str, prefix: Prefix, ends: range) -> None:
        self.deployment = deployment
        self.prefix = prefix
        #: The ends of segments that it will warm, as counts of segments.
        self.ends = ends
        self.over: asyncio.Future[LeaderEnd] = asyncio.get_running_loop().create_future()
        #: How many calls wait, by the number of segments that they share.
        self.followers: Counter[int] = Counter()
        #: The ends that the provider keeps of it; None until it is sent.
        self.kept: frozenset[int] | None = None

    def warms(self, ends: range) -> int:
        """Returns the deepest of `ends` that will be warm; 0 for none."""
        kept = range(ends.stop) if self.kept is None else self.kept
        return max((end for end in kept if end in ends), default=0)

    def shared(self) -> int:
        """Returns how many segments are worth caching for the calls that wait; 0 for none."""

        def saved(end: int) -> int:
            count = sum(many for depth, many in self.followers.items() if depth >= end)
            return self.prefix.tokens[end - 1] * count

        return max((end for end, many in self.followers.items() if many), key=saved, default=0)


class PrefixCoalescer:
    """Coalesces the calls of one process by their prefixes."""

    def __init__(
        self,
        prices: Callable[[str], ModelPrices],
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No call waits longer than `seconds`."""
        self._prices = prices
        self._seconds = seconds
        self._clock = clock
        #: By deployment and the id of a boundary.
        self._leads: dict[tuple[str, bytes], _Lead] = {}
        self._waits = metrics.get_meter("palimpsest.llm").create_counter(
            Metric.LLM_WAITS,
            description="Calls that waited for one with the same beginning, by model and outcome",
        )

    @contextmanager
    def ticket(self, prefix: Prefix, model: str) -> "Iterator[Ticket]":
        """Surrounds a call from before its deployment is chosen until its end."""
        ticket = Ticket(self, prefix, model, self._prices(model), self._clock() + self._seconds)
        try:
            yield ticket
        except Exception:
            ticket.end(LeaderEnd.FAILED)
            raise
        finally:
            ticket.end(LeaderEnd.GONE)

    def find(self, deployment: str, prefix: Prefix, ends: range) -> tuple[_Lead, int] | None:
        """Returns the leader to the deepest of these ends, and its number of segments."""
        for end in reversed(ends):
            lead = self._leads.get((deployment, prefix.ids[end - 1]))
            depth = lead.warms(range(ends.start, end + 1)) if lead else 0
            if lead and depth:
                return lead, depth
        return None

    def enter(self, lead: _Lead) -> None:
        """Lets others wait for this one."""
        for end in lead.ends:
            self._leads[lead.deployment, lead.prefix.ids[end - 1]] = lead

    def leave(self, lead: _Lead, how: LeaderEnd) -> None:
        """Wakes the calls that wait."""
        for end in lead.ends:
            key = (lead.deployment, lead.prefix.ids[end - 1])
            # A call for which it was of no use leads by now.
            if self._leads.get(key) is lead:
                del self._leads[key]
        if not lead.over.done():
            lead.over.set_result(how)

    async def wait(self, lead: _Lead, depth: int, model: str, until: float) -> LeaderEnd | None:
        """Waits for a leader; returns how it ended, or None if that took too long."""
        lead.followers[depth] += 1
        end: LeaderEnd | None = None
        try:
            async with asyncio.timeout(until - self._clock()):
                end = await asyncio.shield(lead.over)
        except TimeoutError:
            # The call goes on without it.
            end = None
        finally:
            lead.followers[depth] -= 1
        outcome = end.name.lower() if end else "late"
        self._waits.add(1, {Attribute.MODEL: LABELS.of(model), Attribute.OUTCOME: outcome})
        return end


class Ticket:
    """Says what one call may do: lead, wait or go alone."""

    def __init__(
        self,
        coalescer: PrefixCoalescer,
        prefix: Prefix,
        model: str,
        prices: ModelPrices,
        until: float,
    ) -> None:
        self._coalescer = coalescer
        self._prefix = prefix
        self._model = model
        self._prices = prices
        self._until = until
        self._lead: _Lead | None = None
        self._is_alone = prices.family is CacheFamily.PLAIN or prices.read >= 1
        #: How many segments a leader has warmed, by deployment.
        self._warmed: dict[str, int] = {}

    async def waited(self, route: Route) -> bool:
        """Waits for a leader, or leads if there is none; returns whether it has waited."""
        deployment = deployment_name(self._model, route.deployment)
        if self._lead is not None and self._lead.deployment != deployment:
            # The call is now routed elsewhere, and warms nothing where it led.
            self.end(LeaderEnd.GONE)
        if self._is_alone or self._lead is not None:
            return False
        ends = self._worth_waiting(self.warm_segments(route))
        if not ends:
            return False
        found = self._coalescer.find(deployment, self._prefix, ends)
        if found is None:
            self._lead = _Lead(deployment, self._prefix, ends)
            self._coalescer.enter(self._lead)
            return False
        lead, depth = found
        how = await self._coalescer.wait(lead, depth, self._model, self._until)
        if how is LeaderEnd.BACK:
            self._warmed[deployment] = lead.warms(range(ends.start, depth + 1))
        self._is_alone = how in (None, LeaderEnd.FAILED)
        return True

    def warm_segments(self, route: Route) -> int:
        """Returns how many segments are warm, by the index or since a leader sent them."""
        deployment = deployment_name(self._model, route.deployment)
        return max(route.warm_segments, self._warmed.get(deployment, 0))

    def shared_segments(self) -> int:
        """Returns how many segments others wait for."""
        return self._lead.shared() if self._lead else 0

    def going(self, plan: CallPlan) -> None:
        """Notes how the call is sent: others find only what the provider caches of it."""
        if self._lead is not None:
            kept = kept_ends(self._prefix, plan.marks, self._prices)
            self._lead.kept = frozenset(at + 1 for at in kept)

    def end(self, how: LeaderEnd) -> None:
        """Stops leading, and wakes the calls that wait."""
        if self._lead is not None:
            self._coalescer.leave(self._lead, how)
            self._lead = None

    def _worth_waiting(self, warm: int) -> range:
        """Returns the ends that the provider would cache and that save enough tokens."""
        tokens = self._prefix.tokens
        have = tokens[warm - 1] if 0 < warm <= len(tokens) else 0
        least = max(self._prices.min_tokens, have + LEAST_GAIN_TOKENS)
        first = next((at + 1 for at, count in enumerate(tokens) if count >= least), None)
        return range(0) if first is None else range(first, len(tokens) + 1)
