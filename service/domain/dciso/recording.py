"""Recording: what browsing did, as events, and how many calls that took."""

from dataclasses import dataclass
from typing import Any

from service.domain.dciso.pieces import Frame
from service.domain.flows import ModelAsk, ModelReply
from service.domain.trajectory import Action, Event, EventKind


@dataclass(kw_only=True, slots=True)
class Recorder:
    """Makes the events of one browsing.

    Which event carries what, for whoever exports them:

    - UNDERSTANDING: NONE, or INVALID; `targets` is the option, `text` the query in other
      words, `reasoning` the subject and the order.
    - RETRIEVAL: NONE; `text` is what was searched for, `shown` the pieces, best first.
    - PIECE: APPEND, MERGE, MOVE, RETRIEVE (`targets`: the pieces), ANSWER, AGGREGATE (`text`:
      what the piece adds) or INVALID. Without a template the action was by lot.
    - AGGREGATION: ANSWER, AGGREGATE, NONE (null) or INVALID; `shown` are the pieces it is from.
    - END: ANSWER with the answer, or NONE with the value of NoAnswer.
    """

    _ordinal: int = 0

    def event(
        self,
        kind: EventKind,
        action: Action,
        *,
        frame: Frame | None = None,
        ask: ModelAsk | None = None,
        reply: ModelReply | None = None,
        **said: Any,
    ) -> Event:
        """The next event; `said` are further fields of it."""
        self._ordinal += 1
        if frame is not None:
            said |= {
                "node_id": frame.piece_id,
                "from_position": frame.from_position,
                "to_position": frame.to_position,
            }
        if ask is not None and reply is not None:
            said |= {
                "attempt": ask.attempt + 1,
                "template": ask.template,
                "reply": reply.text,
                "input_tokens": reply.input_tokens,
                "cached_tokens": reply.cached_tokens,
                "output_tokens": reply.output_tokens,
            }
        return Event(ordinal=self._ordinal, kind=kind, action=action, **said)
