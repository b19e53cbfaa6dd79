"""Predicts how much of a prompt its provider still has cached.

Providers reuse the longest prefix that they have seen. The id of a segment represents everything up
to its end, so two prompts share exactly the ids of their common prefix. The index remembers which
ids were sent and when. It is advice: without it predictions are worse and nothing else changes.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol
from uuid import UUID

from service.domain.calls.prefix_index import ID_BYTES, Prefix, PrefixQuery, Seen, Sent
from service.domain.prompting.flows import Segment
from service.domain.prompting.tokens import estimate_prompt_tokens, estimate_tokens
from service.domain.spend.prices import ModelPrices

#: By which factor an estimate of tokens may be wrong; beyond it the provider counts other things.
MAX_RATIO = 4.0
#: Ends of the first buckets of ages, in seconds, within the time to live. The next buckets end at
#: it and at twice of it; the last has no end.
AGES_SECONDS = (60, 120, 240)
BUCKETS = len(AGES_SECONDS) + 3
#: The chance by bucket when nothing is known.
DEFAULT_CHANCE = (0.98, 0.97, 0.95, 0.9, 0.3, 0.1)
#: How many outcomes the default counts for.
PRIOR_OUTCOMES = 4.0


class PrefixIndex(Protocol):
    """Remembers which prefixes were sent where. Never raises: it is advice."""

    async def look(self, question: PrefixQuery) -> Seen:
        """Returns what is warm of a prompt at each deployment."""
        ...

    async def sent(self, prompt: Sent) -> None:
        """Records that a deployment has answered a prompt, and what was learned from it."""
        ...

    async def queued(self, deployment: str, tokens: int, now: float) -> None:
        """Records how many tokens of prompts this process has in progress at a deployment."""
        ...

    async def outcomes(self, deployment: str, now: float) -> Sequence[tuple[float, float]]:
        """Returns by bucket of ages how often a prefix survived, and did not; () if unknown."""
        ...


def prefix_of(
    segments: Sequence[Segment], *, model: str, tenant_id: UUID, owner_id: UUID
) -> Prefix:
    """Returns a prompt's leading reusable segments; `owner_id` is a memory's or a session's."""
    seed = f"{tenant_id}\0{model}".encode()
    parent = hashlib.blake2b(seed, digest_size=ID_BYTES).digest()
    ids: list[bytes] = []
    sizes: list[int] = []
    for segment in segments:
        if not segment.reusable:
            break
        # All are hashed for each prompt: that takes microseconds, remembering them megabytes.
        parent = hashlib.blake2b(parent + segment.text.encode(), digest_size=ID_BYTES).digest()
        ids.append(parent)
        sizes.append(estimate_tokens(segment.text))
    return Prefix(
        memory_key=f"{tenant_id}:{owner_id}",
        group_key=f"{tenant_id}:{ids[0].hex()}" if ids else "",
        ids=tuple(ids),
        tokens=tuple(accumulate(sizes)),
    )


def expected_tokens(warm_tokens: int, prices: ModelPrices) -> int:
    """Returns how many tokens of a warm prefix the provider should find."""
    if warm_tokens < prices.min_tokens:
        return 0
    return warm_tokens - warm_tokens % prices.granularity_tokens


def calibrated(
    prefix: Prefix,
    *,
    rest: Sequence[str],
    input_tokens: int,
    warm_segments: int,
    warm_tokens: int,
) -> tuple[int, ...]:
    """Returns the tokens up to each boundary, as the provider counts them.

    Estimates are scaled by the provider's total for the prompt. Up to the boundary that was read,
    counts are from the call that sent it or as reported, so errors do not accumulate from call to
    call. `rest` is the prompt after the prefix.
    """
    if not prefix.tokens:
        return ()
    estimate = prefix.tokens[-1] + sum(estimate_prompt_tokens(text) for text in rest)
    ratio = min(max(input_tokens / max(estimate, 1), 1 / MAX_RATIO), MAX_RATIO)
    at = prefix.tokens[warm_segments - 1] if 0 < warm_segments <= len(prefix.tokens) else 0
    # If nothing was read, or it is unknown, the average applies from the beginning.
    anchor = float(warm_tokens) if at and warm_tokens > 0 else 0.0
    at = at if anchor else 0
    return tuple(
        round(anchor * tokens / at if tokens < at else anchor + (tokens - at) * ratio)
        for tokens in prefix.tokens
    )


def bucket_of(age_seconds: float, ttl_seconds: int) -> int:
    """Returns the bucket of an age."""
    ends = (*(min(age, ttl_seconds) for age in AGES_SECONDS), ttl_seconds, 2 * ttl_seconds)
    return sum(age_seconds > end for end in ends)


def chance(bucket: int, outcomes: Sequence[tuple[float, float]]) -> float:
    """Returns the chance that a prefix of this age is still cached.

    `outcomes` has for each bucket how many prefixes survived, and how many did not.
    """
    survived, lost = outcomes[bucket] if bucket < len(outcomes) else (0.0, 0.0)
    prior = DEFAULT_CHANCE[bucket] * PRIOR_OUTCOMES
    return (survived + prior) / (survived + lost + PRIOR_OUTCOMES)
