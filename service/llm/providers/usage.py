"""Reads the usage that a provider reports for a call.

litellm unifies the fields. This module distinguishes "none" from "not reported", and corrects
impossible counts. (litellm turns Anthropic's missing fields into 0; Anthropic always has them.)
"""

from dataclasses import dataclass
from typing import Any

from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import MICRO

#: A higher reported cost of a call is ignored.
MAX_USD = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The tokens of one call."""

    #: Tokens of the prompt, cached ones included: the provider's count, else our estimate.
    input_tokens: int
    #: Tokens of the reply: the provider's count, else our estimate.
    output_tokens: int
    #: Tokens of the prompt read from the cache; None if not reported.
    cached_tokens: int | None
    #: Tokens of the prompt written to the cache; None if not reported.
    cache_write_tokens: int | None
    #: Tokens of the reply spent on thinking; None if not reported.
    reasoning_tokens: int | None = None


def usage_of(response: Any, ask: ModelRequest, text: str) -> Usage:
    """Returns the usage of litellm's response; `text` is its reply."""
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    thinking: Any = getattr(usage, "completion_tokens_details", None)
    # Some servers count nothing; litellm then reports 0, which no prompt has.
    input_tokens = _count(usage, "prompt_tokens") or estimate_tokens(ask.text)
    cached = _count(details, "cached_tokens")
    written = _count(details, "cache_write_tokens")
    if written is None:
        written = _count(details, "cache_creation_tokens")
    # Some servers count cached tokens twice: no more than the prompt can be cached.
    cached = None if cached is None else min(cached, input_tokens)
    if written is not None:
        written = min(written, input_tokens - (cached or 0))
    output_tokens = _count(usage, "completion_tokens") or estimate_tokens(text)
    reasoning_tokens = _count(thinking, "reasoning_tokens")
    if reasoning_tokens is not None and reasoning_tokens > output_tokens:
        # litellm estimates Claude's, and prices the call by that.
        thinking.reasoning_tokens = reasoning_tokens = output_tokens
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached,
        cache_write_tokens=written,
        # litellm turns a missing count into 0.
        reasoning_tokens=reasoning_tokens or None,
    )


def reported_micro_usd(response: Any, model: str) -> int | None:
    """Returns the cost that OpenRouter reports, with what its provider bills us itself."""
    if not model.startswith("openrouter/"):
        return None
    usage = getattr(response, "usage", None)
    cost = _usd(getattr(usage, "cost", None))
    details = getattr(usage, "cost_details", None)
    if cost is not None and getattr(usage, "is_byok", None) is True and isinstance(details, dict):
        cost += _usd(details.get("upstream_inference_cost")) or 0.0
    return None if cost is None else round(cost * MICRO)


def _usd(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < MAX_USD else None  # type: ignore[operator, arg-type]


def _count(said: Any, name: str) -> int | None:
    """Returns a count of tokens; None if there is no valid one."""
    value = getattr(said, name, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
