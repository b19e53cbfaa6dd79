"""Records browsing as events."""

from dataclasses import dataclass, field
from typing import Any

from service.domain.answers.browse.pieces import Frame
from service.domain.answers.trajectory import Action, Event, EventKind, EventSequence


@dataclass(kw_only=True, slots=True)
class BrowseRecorder:
    """Makes the events of one browsing.

    The fields of each event, for exports:

    - UNDERSTANDING: NONE, or INVALID; `targets` is the option, `text` the query in other
      words, `reasoning` the subject and the order.
    - RETRIEVAL: NONE; `text` is what was searched for, `shown` the pieces, best first.
    - PIECE: APPEND, MERGE, MOVE, RETRIEVE (`targets`: the pieces), ANSWER, AGGREGATE (`text`:
      what the piece adds) or INVALID. Without a template the action was by lot.
    - AGGREGATION: ANSWER, AGGREGATE, NONE (null) or INVALID; `shown` are the pieces it is from.
    - END: ANSWER with the answer, or NONE with the value of NoAnswer; `reasoning` says that it
      is a guess, or why no reply was of use.
    """

    _events: EventSequence = field(default_factory=EventSequence)

    def event(
        self, kind: EventKind, action: Action, *, frame: Frame | None = None, **said: Any
    ) -> Event:
        """The next event, at a piece if one is given; `said` as `EventSequence.add` takes it."""
        if frame is not None:
            said |= {
                "node_id": frame.piece_id,
                "from_position": frame.from_position,
                "to_position": frame.to_position,
            }
        return self._events.add(kind, action, **said)
