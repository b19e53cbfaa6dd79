"""Decides how long a step waits for more chunks than it has.

It depends on stored rows, the spec, the model and the service's settings only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.log.chunks import ChunkKind
from service.domain.prism.pacing import SizedChunk
from service.domain.prism.spec import SERVICE_LINGER_MS, PrismSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceLinger:
    """How long memories that say nothing themselves wait while all that waits is messages."""

    #: Counted from the first message; 0: they do not wait.
    message_seconds: float
    #: Messages whose texts have no more tokens than this together are small talk.
    small_talk_tokens: int
    #: How long small talk waits; no less than other messages.
    small_talk_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Linger:
    """A wait for more chunks."""

    #: When it ends.
    due: datetime
    #: Its length, in seconds.
    seconds: float
    #: Whether the next chunk ends it, and another one begins.
    until_more: bool = False


def linger_of(
    spec: PrismSpec,
    group: Sequence[SizedChunk],
    service: ServiceLinger,
    count: Callable[[str], int],
) -> Linger | None:
    """Returns the wait of a step that would read `group`; None: it does not wait.

    Small talk waits for something of substance, and from there on as long as that alone would;
    so greetings and thanks share the step of what is said besides.
    """
    first = group[0].logged.created_at
    if spec.linger_ms != SERVICE_LINGER_MS:
        seconds = spec.linger_ms / 1000
        return Linger(due=first + timedelta(seconds=seconds), seconds=seconds) if seconds else None
    is_other = any(one.logged.chunk.kind is not ChunkKind.MESSAGE for one in group)
    if is_other or not service.message_seconds:
        return None
    longest = max(service.small_talk_seconds, service.message_seconds)
    last = first + timedelta(seconds=longest)
    begun = _begun(group, service.small_talk_tokens, count)
    if begun is None:
        return Linger(due=last, seconds=longest, until_more=True)
    due = begun + timedelta(seconds=service.message_seconds)
    return Linger(due=min(due, last), seconds=service.message_seconds)


def _begun(
    group: Sequence[SizedChunk], most_tokens: int, count: Callable[[str], int]
) -> datetime | None:
    """Returns when messages passed so many tokens; None: they have not."""
    total = 0
    for one in group:
        # Without speaker and heading, which say nothing themselves.
        total += count(one.logged.chunk.text)
        if total > most_tokens:
            return one.logged.created_at
    return None
