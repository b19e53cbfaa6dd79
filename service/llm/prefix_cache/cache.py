"""Predicts how much of a prompt its provider still has cached.

Providers reuse the longest prefix they have seen. A prompt is a list of segments; the
id of a segment stands for everything up to its end, so that two prompts share exactly
the ids of their common prefix. The index remembers which ids were sent and when. It is
advice: without it predictions are worse and nothing else changes.
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

#: How far an estimate of tokens may be off; further, the provider counts something else.
MAX_RATIO = 4.0


class PrefixIndex(Protocol):
    """Remembers which prefixes were sent where. Never raises: it is advice."""

    async def look(self, question: PrefixQuery) -> Seen:
        """Returns what is warm of a prompt at each deployment, and what else one trip yields."""
        ...

    async def sent(self, prompt: Sent) -> None:
        """Says that a deployment has answered a prompt, and what that taught."""
        ...

    async def queued(self, deployment: str, tokens: int, now: float) -> None:
        """Says how many tokens of prompts this process has under way at a deployment."""
        ...

    async def outcomes(self, deployment: str, now: float) -> Sequence[tuple[float, float]]:
        """For each bucket of ages how often a prefix survived, and did not; () if unknown."""
        ...


def prefix_of(
    segments: Sequence[Segment], *, model: str, tenant_id: UUID, owner_id: UUID
) -> Prefix:
    """The reusable part of a prompt: its leading reusable segments.

    `owner_id` is a memory's or a session's.
    """
    parent = _seed(model, tenant_id)
    ids: list[bytes] = []
    sizes: list[int] = []
    for segment in segments:
        if not segment.reusable:
            break
        parent, size = _extend(parent, segment.text)
        ids.append(parent)
        sizes.append(size)
    return Prefix(
        memory_key=f"{tenant_id}:{owner_id}",
        group_key=f"{tenant_id}:{ids[0].hex()}" if ids else "",
        ids=tuple(ids),
        tokens=tuple(accumulate(sizes)),
    )


def expected_tokens(warm_tokens: int, prices: ModelPrices) -> int:
    """Tokens that the provider should find of a prefix that is warm there."""
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
    """Tokens up to each boundary, as the provider counts.

    Ours are estimates; the whole prompt's total, by the provider's count, says how far
    they are off on average. Up to the boundary that was read they are as they were
    when that was sent, or as the provider reported it: so errors do not add up from call
    to call. `rest` is what follows the prefix.
    """
    if not prefix.tokens:
        return ()
    estimate = prefix.tokens[-1] + sum(estimate_prompt_tokens(text) for text in rest)
    ratio = min(max(input_tokens / max(estimate, 1), 1 / MAX_RATIO), MAX_RATIO)
    at = prefix.tokens[warm_segments - 1] if 0 < warm_segments <= len(prefix.tokens) else 0
    # Nothing was read, or nothing is known of it: the average holds from the beginning.
    anchor = float(warm_tokens) if at and warm_tokens > 0 else 0.0
    at = at if anchor else 0
    return tuple(
        round(anchor * tokens / at if tokens < at else anchor + (tokens - at) * ratio)
        for tokens in prefix.tokens
    )


def _seed(model: str, tenant_id: UUID) -> bytes:
    seed = f"{tenant_id}\0{model}".encode()
    return hashlib.blake2b(seed, digest_size=ID_BYTES).digest()


def _extend(parent: bytes, text: str) -> tuple[bytes, int]:
    """The id behind `text`, and its tokens.

    A prompt repeats nearly all segments of the one before it, and all are hashed again: a
    microsecond or two each, where remembering them took megabytes of each process.
    """
    name = hashlib.blake2b(parent, digest_size=ID_BYTES)
    name.update(text.encode())
    return name.digest(), estimate_tokens(text)
