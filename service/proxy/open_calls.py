"""Calls of tools that a model made, until the program sends what they returned."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from service.proxy.turns import ToolUse

#: Replies with calls that are kept; the oldest is remembered without its results.
MAX_OPEN = 1000


@dataclass(frozen=True, kw_only=True)
class OpenCalls:
    """The calls of one reply."""

    session: str
    thread: str
    #: What the model said before them.
    thought: str
    #: Empty: they are remembered, and their results come alone.
    uses: Sequence[ToolUse]
    #: Seconds of the monotonic clock.
    since: float


class CallsInProgress:
    """Keeps the calls of replies, in the order in which they were made."""

    def __init__(self) -> None:
        self._open: OrderedDict[frozenset[str], OpenCalls] = OrderedDict()

    def add(self, made: OpenCalls) -> None:
        """Adds the calls of a reply."""
        ids = frozenset(one.id for one in made.uses)
        self._open[ids] = made
        self._open.move_to_end(ids)

    def pop(self, session: str, thread: str, ids: Collection[str]) -> OpenCalls | None:
        """Returns the calls that results belong to; None: no reply here has made them."""
        for found, made in reversed(self._open.items()):
            if (made.session, made.thread) == (session, thread) and not found.isdisjoint(ids):
                del self._open[found]
                return made
        return None

    def expired(self, before: float) -> Iterator[OpenCalls]:
        """Yields calls without results that were made before a time, or are too many.

        They stay known, so that results that come later are not remembered with them again.
        """
        for ids, made in list(self._open.items()):
            too_many = len(self._open) > MAX_OPEN
            if made.since >= before and not too_many:
                return
            if made.uses:
                self._open[ids] = OpenCalls(
                    session=made.session,
                    thread=made.thread,
                    thought="",
                    uses=(),
                    since=made.since,
                )
                yield made
            if too_many:
                del self._open[ids]
