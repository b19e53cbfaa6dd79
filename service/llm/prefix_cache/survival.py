"""How long what a provider caches survives, learned from what providers report.

A provider says at most how long it keeps a prefix when it has room. Whether it did is
seen at each call: the prefix that was sent `age` seconds ago was found, or was not.
"""

from collections.abc import Sequence

#: Ends of the first buckets of ages, in seconds, as far as they are within the time to
#: live; then come the ages up to it, up to twice of it, and beyond.
AGES_SECONDS = (60, 120, 240)
BUCKETS = len(AGES_SECONDS) + 3
#: The chance where nothing is known, by bucket: nearly sure within the time to live.
DEFAULT_CHANCE = (0.98, 0.97, 0.95, 0.9, 0.3, 0.1)
#: How many outcomes the default counts for.
PRIOR_OUTCOMES = 4.0


def bucket_of(age_seconds: float, ttl_seconds: int) -> int:
    """The bucket of an age."""
    ends = (*(min(age, ttl_seconds) for age in AGES_SECONDS), ttl_seconds, 2 * ttl_seconds)
    return sum(age_seconds > end for end in ends)


def chance(bucket: int, outcomes: Sequence[tuple[float, float]]) -> float:
    """The chance that a prefix of this age is still there.

    `outcomes` holds, for each bucket, how many survived and how many did not.
    """
    survived, lost = outcomes[bucket] if bucket < len(outcomes) else (0.0, 0.0)
    prior = DEFAULT_CHANCE[bucket] * PRIOR_OUTCOMES
    return (survived + prior) / (survived + lost + PRIOR_OUTCOMES)
