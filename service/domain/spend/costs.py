"""What reading a log costs, as the PRISM paper counts it, and in money."""

from collections.abc import Iterable
from dataclasses import dataclass

#: A token of a reply costs as much as so many of a prompt (table 3 of the paper).
OUTPUT_WEIGHT = 3
#: The paper gives its index in millions of tokens.
INDEX_UNIT = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCost:
    """A line of table 3 (arXiv 2412.18914, section 4.2), with its price."""

    #: Prompts; 0 or more.
    prompts: int
    #: Tokens of all prompts.
    total_tokens: int
    #: Of these, those read from the cache.
    cached_tokens: int
    #: Of these, those written to it.
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
