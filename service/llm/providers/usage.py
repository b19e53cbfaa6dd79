"""Reads the usage that a provider reports for a call into one form.

litellm unifies the fields of its providers; what is left to us is to distinguish
"nothing" from "not said", and to believe no count that cannot be. (Of Anthropic's fields
litellm makes 0 where one is missing; Anthropic always says them.)
"""

from dataclasses import dataclass
from typing import Any

from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import MICRO

#: A call that is said to cost more is not believed.
MAX_USD = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The tokens of one call."""

    #: Of the prompt, with those of the cache; the provider's count, else our estimate.
    input_tokens: int
    #: Of the reply; the provider's count, else our estimate.
    output_tokens: int
    #: Of the prompt, read from the cache; None when the provider does not say.
    cached_tokens: int | None
    #: Of the prompt, written to the cache; None when the provider does not say.
    cache_write_tokens: int | None
    #: Of the reply, spent on thinking; None when the provider does not say.
    reasoning_tokens: int | None = None


def usage_of(response: Any, ask: ModelRequest, text: str) -> Usage:
    """What a response of litellm says that it took; `text` is its reply."""
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    thinking: Any = getattr(usage, "completion_tokens_details", None)
    # Some servers count nothing; litellm then says 0, which no prompt has.
    input_tokens = _count(usage, "prompt_tokens") or estimate_tokens(ask.text)
    cached = _count(details, "cached_tokens")
    written = _count(details, "cache_write_tokens")
    if written is None:
        written = _count(details, "cache_creation_tokens")
    # Servers have counted twice what they read: no more than the prompt can be cached.
    cached = None if cached is None else min(cached, input_tokens)
    if written is not None:
        written = min(written, input_tokens - (cached or 0))
    output_tokens = _count(usage, "completion_tokens") or estimate_tokens(text)
    reasoning_tokens = _count(thinking, "reasoning_tokens")
    if reasoning_tokens is not None and reasoning_tokens > output_tokens:
        # Of Claude's litellm has an estimate, by which it prices the call.
        thinking.reasoning_tokens = reasoning_tokens = output_tokens
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached,
        cache_write_tokens=written,
        # litellm makes 0 of what was not said.
        reasoning_tokens=reasoning_tokens or None,
    )


def told_micro_usd(response: Any, model: str) -> int | None:
    """What OpenRouter says that a call cost, with what the provider behind it takes of us."""
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
    """A count of tokens; None when there is none, or what is there is no count."""
    value = getattr(said, name, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
