"""Recording: the events of a reader in their order, and what they say of model calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.answers.trajectory import Action, Event, EventKind
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest


@dataclass(slots=True)
class EventSequence:
    """Makes the events of one reading: 1, 2, 3 …"""

    _ordinal: int = 0

    def add(
        self,
        kind: EventKind,
        action: Action,
        *,
        ask: ModelRequest | None = None,
        reply: ModelReply | None = None,
        **said: Any,
    ) -> Event:
        """The next event, of a model call if `ask` and `reply` are given.

        `said` are further fields of it.
        """
        self._ordinal += 1
        if ask is not None and reply is not None:
            said |= {"attempt": ask.attempt + 1, "template": ask.template}
            said |= reply_fields([reply])
        return Event(ordinal=self._ordinal, kind=kind, action=action, **said)


def reply_fields(replies: Sequence[ModelReply]) -> dict[str, Any]:
    """Fields of an event that tell of replies: the words of the last, the tokens of all."""
    cached = [one.cached_tokens for one in replies]
    return {
        "reply": replies[-1].text if replies else "",
        "input_tokens": sum(one.input_tokens for one in replies),
        "cached_tokens": None if None in cached or not cached else sum(one or 0 for one in cached),
        "output_tokens": sum(one.output_tokens for one in replies),
        "end": replies[-1].end if replies else End.COMPLETE,
    }
