"""Prices of a model's tokens, the behaviour of its prefix cache, and what calls cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: A token of a reply costs as much as so many of a prompt (table 3 of the paper).
OUTPUT_WEIGHT = 3
#: The paper gives its index in millions of tokens.
INDEX_UNIT = 1_000_000
#: Millionths of a dollar in a dollar.
MICRO = 1_000_000


class CacheFamily(StrEnum):
    """How a provider learns what of a prompt to cache."""

    #: It keeps what ends at a mark of ours (Anthropic's cache_control and its kin).
    EXPLICIT = "explicit"
    #: It keeps prefixes by itself, and finds them better by a key of ours (OpenAI and its kin).
    KEYED = "keyed"
    #: It keeps prefixes by itself (inference servers: vLLM, llama.cpp; DeepSeek).
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPrices:
    """A model's prices and the habits of its cache.

    Ratios are to the price of an input token that the cache neither has nor takes in.
    """

    family: CacheFamily
    #: US dollars for an input token at the full price; 0 or more, None when not known.
    input_usd: float | None
    #: Ratio for a token that is read from the cache; 0 to 1.
    read: float
    #: Ratio for a token that is written to it; 0 or more.
    write: float
    #: Ratio for a token of the reply; 0 or more.
    output: float
    #: Reuse ends at a multiple of this many tokens; 1 or more.
    granularity_tokens: int
    #: Prefixes with fewer tokens are not kept.
    min_tokens: int
    #: How long a prefix stays warm without being used.
    ttl_seconds: int
    #: Marks that a prompt may carry; 0 for providers that take none.
    max_marks: int = 0
    #: The lifetime that a mark asks for, as the provider writes it; empty: its usual one.
    mark_ttl: str = ""


def cost_micro_usd(
    prices: ModelPrices, *, input_tokens: int, cached: int, written: int, output_tokens: int
) -> int | None:
    """Returns what a call costs, in millionths of a US dollar; None if the price is not known.

    `cached` and `written` are those of the input tokens that the cache gave or took in.
    """
    if prices.input_usd is None:
        return None
    fresh = max(input_tokens - cached - written, 0)
    weighted = fresh + prices.read * cached + prices.write * written + prices.output * output_tokens
    return round(weighted * prices.input_usd * MICRO)


def most_micro_usd(prices: ModelPrices, *, input_tokens: int, output_tokens: int) -> int | None:
    """Returns what a call costs at most, with nothing cached; None if the price is not known."""
    written = input_tokens if prices.write > 1 else 0
    return cost_micro_usd(
        prices, input_tokens=input_tokens, cached=0, written=written, output_tokens=output_tokens
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCost:
    """A line of table 3 (arXiv 2412.18914, section 4.2), with its price."""

    #: Prompts; 0 or more.
    prompts: int
    #: Tokens of all prompts.
    total_tokens: int
    #: Those of them that were read from the cache.
    cached_tokens: int
    #: Those of them that were written to it.
    written_tokens: int
    #: Tokens of all replies.
    output_tokens: int
    #: Millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None

    @property
    def net_tokens(self) -> int:
        """Tokens that had to be read anew."""
        return self.total_tokens - self.cached_tokens

    @property
    def cost_index(self) -> float:
        """(net + 3 x output) / 1,000,000."""
        return (self.net_tokens + OUTPUT_WEIGHT * self.output_tokens) / INDEX_UNIT


def added(costs: Iterable[LogCost]) -> LogCost:
    """Returns the sum; its price is that of those that have one, None when none has."""
    found = list(costs)
    prices = [one.cost_micro_usd for one in found if one.cost_micro_usd is not None]
    return LogCost(
        prompts=sum(one.prompts for one in found),
        total_tokens=sum(one.total_tokens for one in found),
        cached_tokens=sum(one.cached_tokens for one in found),
        written_tokens=sum(one.written_tokens for one in found),
        output_tokens=sum(one.output_tokens for one in found),
        cost_micro_usd=sum(prices) if prices else None,
    )
