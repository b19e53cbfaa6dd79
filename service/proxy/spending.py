"""Reserves what a call may cost, and replaces it by what the call did cost."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from service.domain.spend.prices import ModelPrices, cost_micro_usd, most_micro_usd
from service.llm.providers.facts import tokenizer_of
from service.llm.providers.model_map import entry_of
from service.llm.providers.prices import HOUR_WRITE
from service.proxy.budget import Budget, OverBudget, ReservedCost
from service.proxy.conversation import Conversation
from service.proxy.estimate import most_tokens, request_tokens
from service.proxy.replies import Reply

_log = structlog.get_logger("palimpsest.proxy")

#: The limit of a reply that a request does not limit, and the least that it gets.
UNLIMITED_OUTPUT_TOKENS = 32_000
LEAST_OUTPUT_TOKENS = 1_000
#: How fast a model may write. A reply that was cut may have had thoughts that were never sent.
TOKENS_PER_SECOND = 500
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(frozen=True, kw_only=True)
class Spending:
    """A call that is made, and what is reserved for it."""

    reserved: ReservedCost
    prices: ModelPrices
    #: Tokens at most.
    input_tokens: int
    output_tokens: int
    #: Seconds of the monotonic clock.
    began: float


class Purse:
    """Reserves and charges calls by a budget."""

    def __init__(
        self,
        budget: Budget,
        prices: Callable[[str], ModelPrices],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prices`: of a model by provider/name."""
        self._budget = budget
        self._clock = clock
        self._prices = prices

    async def reserve(self, talk: Conversation, body: dict[str, Any]) -> Spending:
        """Reserves what a request may cost at most. Raises OverBudget.

        A request without a limit of its reply gets one, of what is left.
        """
        return await asyncio.to_thread(self._reserve, talk, body)

    async def release(self, spending: Spending) -> None:
        """Releases what is reserved for a call that the provider refused or never got."""
        await self._replace(spending, 0)

    async def charge(self, spending: Spending, reply: Reply, *, was_cut: bool) -> None:
        """Charges a call by the counts of the provider.

        Of a reply that was cut, or has no counts, it charges what was read, and what the model may
        have written in that time. What says nothing of its end stays reserved.
        """
        seconds = self._clock() - spending.began
        if reply.is_ended and reply.input_tokens:
            read, written = reply.input_tokens, reply.output_tokens
        elif reply.is_ended or was_cut:
            unseen = max(
                most_tokens(reply.text + reply.besides), round(seconds * TOKENS_PER_SECOND)
            )
            read = reply.input_tokens or spending.input_tokens
            written = max(reply.output_tokens, min(unseen, spending.output_tokens))
        else:
            return
        cost = cost_micro_usd(
            spending.prices,
            input_tokens=read,
            cached=reply.cached_tokens,
            written=reply.written_tokens,
            output_tokens=written,
        )
        await self._replace(spending, cost or 0)

    async def _replace(self, spending: Spending, micro_usd: int) -> None:
        try:
            await asyncio.to_thread(self._budget.replace, spending.reserved, micro_usd)
        except OverBudget as error:
            _log.error("a call stays charged with what it might have cost", reason=str(error))

    def _reserve(self, talk: Conversation, body: dict[str, Any]) -> Spending:
        name = talk.model if "/" in talk.model else f"{talk.form.name}/{talk.model}"
        prices = self._priced(name, body)
        entry = entry_of(name)
        read = request_tokens(
            talk.form,
            body,
            tokenizer_of(name) or most_tokens,
            window=None if entry is None else entry.window_tokens,
        )
        copies = body["n"] if type(body.get("n")) is int and body["n"] > 1 else 1
        given = [body[one] for one in _LIMITS if type(body.get(one)) is int and body[one] > 0]
        limit = max(given) if given else self._limit(prices, read, copies)
        if not given and talk.form.limit:
            body[talk.form.limit] = limit
        most = _cost(prices, read, limit * copies)
        return Spending(
            reserved=self._budget.reserve(most),
            prices=prices,
            input_tokens=read,
            output_tokens=limit * copies,
            began=self._clock(),
        )

    def _priced(self, name: str, body: dict[str, Any]) -> ModelPrices:
        prices = self._prices(name)
        if prices.input_usd is None:
            raise OverBudget(
                "the price of this model is not known, and there is a budget: set it by"
                " PALIMPSEST_MODEL_PRICES"
            )
        # Anthropic's longer lifetime of a cached prefix costs more.
        return replace(prices, write=HOUR_WRITE) if _keeps_an_hour(body) else prices

    def _limit(self, prices: ModelPrices, read: int, copies: int) -> int:
        """Returns how long a reply may be for what is left, after what the prompt costs."""
        low, high = LEAST_OUTPUT_TOKENS, UNLIMITED_OUTPUT_TOKENS
        left = self._budget.left()
        if _cost(prices, read, high * copies) <= left:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            fits = _cost(prices, read, middle * copies) <= left
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _cost(prices: ModelPrices, read: int, written: int) -> int:
    return most_micro_usd(prices, input_tokens=read, output_tokens=written) or 0


def _keeps_an_hour(value: Any) -> bool:
    if isinstance(value, list):
        return any(_keeps_an_hour(one) for one in value)
    if not isinstance(value, dict):
        return False
    control = value.get("cache_control")
    if isinstance(control, dict) and control.get("ttl") == "1h":
        return True
    return any(_keeps_an_hour(one) for one in value.values())
