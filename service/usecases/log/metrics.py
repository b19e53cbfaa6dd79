"""Counts how often each guard kept something from going wrong.

Beside these there are `palimpsest.steps.fenced` (`service.usecases.memories.metrics`) and
`palimpsest.database.refused` (`storage.engine.errors`), for keys that refused a write.
"""

from enum import StrEnum

from service.domain.values.errors import PalimpsestError
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric


class Guard(StrEnum):
    """Guards that do not refuse a call; one that does is counted by its ErrorReason."""

    #: Chunks came again that are stored: they were acked once more.
    APPEND_REPEAT = "append.repeat"
    #: A request came again that was done: its first result was returned.
    APPEND_REQUEST = "append.request"
    #: The same, of any other method than Append.
    REQUEST = "request"
    #: An append on a guess found the session or the producer changed, and locked it.
    APPEND_GUESS = "append.guess"
    #: A worker that made a call had lost its lease meanwhile.
    CALL_LEASE = "call.lease"
    #: A reply came when there was one to the same call: the first one counts.
    CALL_REPLY = "call.reply"
    #: An answer was made that had ended already: it was thrown away.
    ANSWER_SETTLED = "answer.settled"


_GUARDS = meter().create_counter(
    Metric.GUARDS, description="What guards kept from happening, by guard"
)


def kept(guard: Guard) -> None:
    """Counts that a guard did its work."""
    _GUARDS.add(1, {Attribute.GUARD: guard.value})


def refused(error: PalimpsestError) -> None:
    """Counts that a guard refused what a client wanted."""
    _GUARDS.add(1, {Attribute.GUARD: error.reason.value})
