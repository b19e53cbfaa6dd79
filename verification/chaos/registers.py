"""Registers: numbers that only grow, seen by many clients at many times.

A head, for example, or the last sequence of a producer. A client that learns a value sets a
lower bound for all reads that begin later; and no read may see a value before the request that
causes it was sent.
"""

from array import array
from collections.abc import Iterator, Sequence


class Register:
    """What was seen of one such number; kept small however much is seen."""

    def __init__(self) -> None:
        # A client's facts that do not go beyond its earlier ones say nothing new.
        self._highest: dict[str, int] = {}
        self._times = array("d")
        self._values = array("q")
        self._invoked = array("d")
        self._read = array("q")
        self._readers: list[str] = []

    def learn(self, client: str, at: float, value: int) -> None:
        """Records that a client knows at this time that the number has reached `value`."""
        if value > self._highest.get(client, 0):
            self._highest[client] = value
            self._times.append(at)
            self._values.append(value)

    def read(self, client: str, invoked: float, value: int) -> None:
        """Records that a client that began to read at `invoked` got `value`."""
        self._invoked.append(invoked)
        self._read.append(value)
        self._readers.append(client)

    def stale(self) -> Iterator[tuple[str, int, int]]:
        """Yields reads that are older than what was known before them: reader, read, known."""
        facts = sorted(range(len(self._times)), key=self._times.__getitem__)
        reads = sorted(range(len(self._invoked)), key=self._invoked.__getitem__)
        known, at = 0, 0
        for number in reads:
            while at < len(facts) and self._times[facts[at]] < self._invoked[number]:
                known = max(known, self._values[facts[at]])
                at += 1
            if self._read[number] < known:
                yield self._readers[number], self._read[number], known

    def early(self, possible: Sequence[float]) -> Iterator[tuple[float, int]]:
        """Yields what was known before it could be: when, and the value.

        `possible` has for each value from 1 on the time before which it cannot be.
        """
        for at, value in zip(self._times, self._values, strict=True):
            if value > len(possible) or at < possible[value - 1]:
                yield at, value
