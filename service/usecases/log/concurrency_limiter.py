"""Limits how many calls wait for workers in one server process."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason

#: When a client that met a full server may try again.
BUSY_RETRY_SECONDS = 1.0


class ConcurrencyLimiter:
    """Gives slots to calls; refuses calls while all slots are taken."""

    def __init__(
        self, slots: int, *, reason: Reason = Reason.TOO_MANY_ASKS, who: str = "asks"
    ) -> None:
        self._slots = slots
        self._reason = reason
        self._who = who
        self._taken = 0

    @property
    def is_empty(self) -> bool:
        """Whether no call has a slot."""
        return self._taken == 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Takes a slot for one call. Raises Exhausted when there is none."""
        if self._taken >= self._slots:
            raise Exhausted(
                self._reason,
                f"this server has {self._taken} {self._who} under way already",
                {"limit": self._slots},
                retry_seconds=BUSY_RETRY_SECONDS,
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
