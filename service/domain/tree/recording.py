"""Records a navigation as events, and counts them."""

from dataclasses import dataclass, field, replace
from typing import Any

from service.domain.answers.trajectory import Action, Event, EventKind, EventSequence, NoAnswer
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.tree.exploring import VisitedNode
from service.domain.tree.moves import Enter, Move, Revert, Unreadable


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Counts of a navigation (table 4, figure 4)."""

    #: Model calls.
    calls: int = 0
    #: Replies to triage and leaf prompts that were a valid action, and that were not.
    valid_actions: int = 0
    invalid_actions: int = 0
    #: How often it went back up: more than none is a stray path.
    reverts: int = 0
    #: Leaves that were read.
    leaves_read: int = 0
    #: Tokens of all prompts and replies; with those of the tree's text, the share that was read.
    tokens: int = 0
    text_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Navigation:
    """What came of a navigation."""

    #: The answer; empty when there is none.
    text: str
    #: None when there is an answer.
    no_answer: NoAnswer | None
    #: Ids of the leaves that the answer rests on, best first.
    leaves: tuple[str, ...]
    #: What the model said for it.
    reasoning: str
    statistics: Statistics
    #: Whether the answer was not found, and is the likeliest of the options.
    guessed: bool = False
    #: Whether places were left that might have it: the calls that its depth allows were used up.
    bounded: bool = False


@dataclass(kw_only=True, slots=True)
class NavigationRecorder:
    """Makes the events of one navigation and counts."""

    #: Tokens of the tree's text.
    text_tokens: int
    _statistics: Statistics = field(default_factory=Statistics)
    _events: EventSequence = field(default_factory=EventSequence)
    _read: set[str] = field(default_factory=set)

    @property
    def calls(self) -> int:
        """Model calls so far."""
        return self._statistics.calls

    @property
    def statistics(self) -> Statistics:
        """The counts of the events so far."""
        return replace(self._statistics, leaves_read=len(self._read), text_tokens=self.text_tokens)

    def move(self, spot: VisitedNode, move: Move, ask: ModelRequest, reply: ModelReply) -> Event:
        """Returns the event of a reply at a node."""
        is_leaf = spot.view.is_leaf
        if is_leaf:
            self._read.add(spot.node_id)
        valid = not isinstance(move, Unreadable)
        self._add(valid_actions=valid, invalid_actions=not valid, reverts=isinstance(move, Revert))
        targets: tuple[str, ...] = ()
        if isinstance(move, Enter):
            targets = tuple(spot.view.children[number] for number in move.targets)
        return self.event(
            EventKind.LEAF if is_leaf else EventKind.TRIAGE,
            move.action,
            spot=spot,
            shown=spot.view.children,
            targets=targets,
            reasoning=move.reasoning,
            text=move.text,
            ask=ask,
            reply=reply,
        )

    def event(
        self,
        kind: EventKind,
        action: Action,
        *,
        spot: VisitedNode | None = None,
        reply: ModelReply | None = None,
        **said: Any,
    ) -> Event:
        """Returns the next event, at a node if one is given; `said` are its further fields."""
        if spot is not None:
            said |= _place(spot)
        if reply is not None:
            self._add(calls=1, tokens=reply.input_tokens + reply.output_tokens)
        return self._events.add(kind, action, reply=reply, **said)

    def _add(self, **counts: int) -> None:
        before = self._statistics
        sums = {name: getattr(before, name) + int(more) for name, more in counts.items()}
        self._statistics = replace(before, **sums)


def _place(spot: VisitedNode) -> dict[str, Any]:
    view = spot.view
    return {
        "node_id": view.node_id,
        "level": view.level,
        "from_position": view.start.position,
        "to_position": view.end.last_position,
        "depth": spot.depth,
    }
