"""Quotas of a tenant, and the token bucket that rates are measured with."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason


class QuotaName(StrEnum):
    """What a quota limits."""

    REQUESTS_PER_SECOND = "requests_per_second"
    CHUNKS_PER_SECOND = "chunks_per_second"
    BYTES_PER_SECOND = "bytes_per_second"
    CONCURRENT_ASKS = "concurrent_asks"
    CONCURRENT_STREAMS = "concurrent_streams"
    SESSIONS = "sessions"
    MEMORIES = "memories"
    STORED_BYTES = "stored_bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The quotas of a tenant; 0 does not limit."""

    #: Calls of any method.
    requests_per_second: int = 0
    #: Chunks that are appended, and their size in bytes as they are sent.
    chunks_per_second: int = 0
    bytes_per_second: int = 0
    #: Questions that are answered, and other streams, at once.
    concurrent_asks: int = 0
    concurrent_streams: int = 0
    #: Sessions and memories that exist, and the content of all chunks in bytes of UTF-8.
    sessions: int = 0
    memories: int = 0
    stored_bytes: int = 0

    def limit(self, name: QuotaName) -> int:
        """Returns the limit of that name."""
        return int(getattr(self, name.value))

    @property
    def is_limited(self) -> bool:
        """Returns whether it limits anything."""
        return any(getattr(self, field.name) for field in fields(self))


UNLIMITED = Quota()


class TokenBucket:
    """A token bucket that holds one second's tokens, as the generic cell rate algorithm (GCRA).

    A take of more than it can hold is granted when it is full, and is owed: so a large batch
    passes, and what follows waits for longer.
    """

    def __init__(self) -> None:
        #: When it is full again, in seconds of the caller's clock.
        self._full_at = 0.0

    def take(self, rate: int, needed: int, wanted: int, now: float) -> tuple[int, float]:
        """Takes up to `wanted` tokens, `needed` at least; else none.

        `rate`: tokens a second. Returns how many, and after how many seconds to try again.
        """
        full_at = max(self._full_at, now)
        free = math.floor((now + 1 - full_at) * rate + 1e-6)
        if free < min(needed, rate):
            return 0, (min(needed, rate) - free) / rate
        taken = max(needed, min(wanted, free))
        self._full_at = full_at + taken / rate
        return taken, 0.0


def exceeded(name: QuotaName, limit: int, *, retry_seconds: float = 0.0) -> Exhausted:
    """Returns the error of a call that a quota does not allow; rates recover by themselves."""
    then = "send less, or ask" if retry_seconds else "delete some, or ask"
    if name in (QuotaName.CONCURRENT_ASKS, QuotaName.CONCURRENT_STREAMS):
        then = "end some, or ask"
    return Exhausted(
        Reason.QUOTA_EXHAUSTED,
        f"the tenant's quota {name.value} of {limit} is used up: {then} the operator to raise it"
        " (palimpsest access quota set)",
        {"quota": name.value, "limit": limit},
        retry_seconds=retry_seconds,
    )
