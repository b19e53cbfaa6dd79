"""How long to wait before another try of what failed."""

import random

#: What keeps failing waits at most this long between two tries, unless asked to wait longer.
MAX_SECONDS = 300.0
#: A provider that asks for more is asked again all the same: it may have been a mistake.
MAX_ASKED_SECONDS = 3600.0
#: Failures after which the wait grows no more.
MAX_DOUBLINGS = 20
#: Share of the time that a provider asks for by which a wait is longer, at most.
MAX_LATER = 0.25


def pause_seconds(
    first_seconds: float,
    failures: int,
    *,
    asked_seconds: float = 0.0,
    max_seconds: float = MAX_SECONDS,
) -> float:
    """Seconds to wait after so many `failures` and one more.

    Doubles with each failure up to `max_seconds`. Never less than `asked_seconds`, of which
    `MAX_ASKED_SECONDS` count.
    """
    doubled = first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS)
    asked = min(asked_seconds, MAX_ASKED_SECONDS) * random.uniform(1.0, 1.0 + MAX_LATER)
    return max(spread(min(doubled, max_seconds)), asked)


def spread(seconds: float) -> float:
    """Shortens a pause by chance, by half at most: what failed together is not retried together."""
    return seconds * random.uniform(0.5, 1.0)
