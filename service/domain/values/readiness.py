"""Readiness: whether a process can reach what it works on, without flapping."""

from dataclasses import dataclass

#: Probes in a row that must fail before a process counts as not ready …
FAILURES = 3
#: … and succeed before it counts as ready again.
SUCCESSES = 2


@dataclass(slots=True)
class Readiness:
    """The results of one process's probes; ready from the beginning."""

    ready: bool = True
    #: Why the newest probe failed; empty when it did not.
    trouble: str = ""
    #: Probes in a row that contradict `ready`.
    _contrary: int = 0

    def note(self, trouble: str) -> bool:
        """Notes a probe, with its trouble or an empty string; returns whether `ready` changed."""
        self.trouble = trouble
        if self.ready == (not trouble):
            self._contrary = 0
            return False
        self._contrary += 1
        if self._contrary < (FAILURES if self.ready else SUCCESSES):
            return False
        self.ready, self._contrary = not self.ready, 0
        return True
