"""Waiting for workers: a bounded number of calls in one server process."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.domain.errors import Exhausted
from service.domain.reasons import Reason

#: When a caller that met a full server may try again.
BUSY_RETRY_SECONDS = 1.0


class WaitingRoom:
    """Where the calls wait that a worker has to do something for."""

    def __init__(
        self, places: int, *, reason: Reason = Reason.TOO_MANY_ASKS, who: str = "asks"
    ) -> None:
        self._places = places
        self._reason = reason
        self._who = who
        self._taken = 0

    @property
    def is_empty(self) -> bool:
        """Whether no call has a place."""
        return self._taken == 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one call. Raises Exhausted when there is none."""
        if self._taken >= self._places:
            raise Exhausted(
                self._reason,
                f"this server has {self._taken} {self._who} under way already",
                {"limit": self._places},
                retry_seconds=BUSY_RETRY_SECONDS,
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
