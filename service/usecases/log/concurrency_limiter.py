"""Limits how many calls are under way in one server process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason

#: When a client that met a full server may try again.
BUSY_RETRY_SECONDS = 1.0


class ConcurrencyLimiter:
    """Gives slots to calls, the same number for each key; refuses calls while all are taken."""

    def __init__(
        self, slots: int, *, reason: Reason = Reason.TOO_MANY_ASKS, what: str = "asks"
    ) -> None:
        self._slots = slots
        self._reason = reason
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextmanager
    def slot(self, key: str = "") -> Iterator[None]:
        """Takes a slot of the key for one call. Raises Exhausted when there is none."""
        if self._taken[key] >= self._slots:
            raise Exhausted(
                self._reason,
                f"this server has {self._taken[key]} {self._what} under way already",
                {"limit": self._slots},
                retry_seconds=BUSY_RETRY_SECONDS,
            )
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
