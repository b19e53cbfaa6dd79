"""Finds the likeliest reason why a provider's cache had other tokens than predicted.

These are heuristics: a provider reports how many tokens it found, never why. Two executors may
classify a call differently. Totals over many calls are useful, a single one hardly.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

#: By which share a prediction may be wrong: our tokenizer need not be the provider's.
TOLERANCE = 0.02
#: Misses in a row, without any hit, that count as drift.
DRIFT_MISSES = 3
#: Prompts of different owners in a row of which nothing at all was found.
OUTAGE_OWNERS = 3
#: Deployments of one provider that have lost everything at once.
OUTAGE_DEPLOYMENTS = 2


class MissReason(StrEnum):
    """The relation of what was reported to what was predicted; a column of the ledger."""

    #: As predicted, to within a block or the tolerance.
    NONE = "none"
    #: More was found: another process has sent it, or the providers' own texts match.
    MORE = "more"
    #: Less was found: the rest was probably evicted.
    EVICTED = "evicted"
    #: Another deployment has it cached.
    MISROUTED = "misrouted"
    #: What should match never does: the template, the tokenizer or the rendering differs.
    DRIFT = "drift"
    #: Everything is gone at several deployments, or of several owners, at once.
    OUTAGE = "outage"
    #: The provider does not report, or the index could not be asked.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known about one call's cache."""

    #: Whether the index could be asked.
    known: bool
    #: Tokens; 0 or more.
    predicted_tokens: int
    #: Tokens; None when the provider does not say.
    reported_tokens: int | None
    #: Reuse ends at a multiple of so many tokens.
    granularity_tokens: int
    #: Tokens that were warm at the best other deployment.
    elsewhere_tokens: int = 0
    #: Predictions that came true at this deployment before.
    hits: int = 0
    #: Predictions that did not, since the last that did; this one included.
    misses_in_a_row: int = 0
    #: Owners in a row, this one included, of whose warm prompts this deployment found nothing.
    cold_owners: int = 0
    #: Deployments of this provider, this one included, whose last warm prompt found nothing.
    cold_deployments: int = 0


def tolerance(predicted_tokens: int, granularity_tokens: int) -> int:
    """Returns by how many tokens a prediction may be wrong and still count as true."""
    return max(granularity_tokens, ceil(TOLERANCE * predicted_tokens))


def classify(seen: Evidence) -> MissReason:
    """Returns the likeliest reason."""
    if not seen.known or seen.reported_tokens is None:
        return MissReason.UNKNOWN
    predicted, reported = seen.predicted_tokens, seen.reported_tokens
    near = tolerance(predicted, seen.granularity_tokens)
    best = max(predicted, reported)
    if seen.elsewhere_tokens > best + tolerance(seen.elsewhere_tokens, seen.granularity_tokens):
        return MissReason.MISROUTED
    if abs(reported - predicted) <= near:
        return MissReason.NONE
    if reported > predicted:
        return MissReason.MORE
    everywhere = seen.cold_owners >= OUTAGE_OWNERS or seen.cold_deployments >= OUTAGE_DEPLOYMENTS
    if seen.hits and not reported and everywhere:
        return MissReason.OUTAGE
    # Without any hit the provider has not forgotten: it has never matched.
    if seen.hits == 0 and seen.misses_in_a_row >= DRIFT_MISSES:
        return MissReason.DRIFT
    return MissReason.EVICTED
