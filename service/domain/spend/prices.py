"""Prices of a model's tokens, and the behaviour of its prefix cache."""

from dataclasses import dataclass
from enum import StrEnum


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


#: Millionths of a dollar in a dollar.
MICRO = 1_000_000


def cost_micro_usd(
    prices: ModelPrices, *, input_tokens: int, cached: int, written: int, output_tokens: int
) -> int | None:
    """What a call costs, in millionths of a US dollar; None when the price is not known.

    `cached` and `written` are those of the input tokens that the cache gave or took in.
    """
    if prices.input_usd is None:
        return None
    fresh = max(input_tokens - cached - written, 0)
    weighted = fresh + prices.read * cached + prices.write * written + prices.output * output_tokens
    return round(weighted * prices.input_usd * MICRO)


def most_micro_usd(prices: ModelPrices, *, input_tokens: int, output_tokens: int) -> int | None:
    """What a call costs at most, with nothing in the cache; None when the price is not known."""
    written = input_tokens if prices.write > 1 else 0
    return cost_micro_usd(
        prices, input_tokens=input_tokens, cached=0, written=written, output_tokens=output_tokens
    )
