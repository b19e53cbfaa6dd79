"""A trajectory lists what a reader read and did, event by event."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.domain.prompting.ends import End
from service.domain.prompting.flows import Fetch, ModelReply, ModelRequest


class EventKind(StrEnum):
    """What happened."""

    #: Retrieval named the leaves to begin with.
    RETRIEVAL = "retrieval"
    #: The model saw the summaries of a node's children.
    TRIAGE = "triage"
    #: The model read the text under a leaf.
    LEAF = "leaf"
    #: The model shortened the working memory.
    WORKING_MEMORY = "working_memory"
    #: The model chose among the answers of several leaves.
    MERGE = "merge"
    #: The automatic reader chose a reader and a memory; `text` says why.
    CHOICE = "choice"
    #: The model understood the task: which way to read, and the query in other words.
    UNDERSTANDING = "understanding"
    #: Browsing read a piece of the log, and the model chose an action.
    PIECE = "piece"
    #: Notes, or the whole answer, were made from what was extracted.
    AGGREGATION = "aggregation"
    #: The answer was converted to the form that was asked for.
    SHAPING = "shaping"
    #: The reader is done.
    END = "end"


class Action(StrEnum):
    """What the model did."""

    #: It went down, to `targets`.
    ENTER = "enter"
    #: It went back up.
    REVERT = "revert"
    #: It answered.
    ANSWER = "answer"
    #: It took what a piece says, by itself; `text` is that.
    APPEND = "append"
    #: It rewrote what was extracted so far with what a piece says; `text` is that.
    MERGE = "merge"
    #: The piece says nothing that matters: on to the next one.
    MOVE = "move"
    #: It asked for the pieces that fit best: `targets`.
    RETRIEVE = "retrieve"
    #: It put together what was extracted.
    AGGREGATE = "aggregate"
    #: Its reply was no action; `text` says why.
    INVALID = "invalid"
    #: Nothing was to be decided.
    NONE = "none"


class NoAnswer(StrEnum):
    """Why there is no answer."""

    #: Three replies in a row could not be read, or none had the form that was asked for.
    UNREADABLE = "unreadable"
    #: Nothing is left that could hold it.
    NOT_FOUND = "not_found"
    #: The model calls that it may cost are used up.
    STEP_LIMIT = "step_limit"
    #: There is no text yet.
    EMPTY = "empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event of a trajectory."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    kind: EventKind
    action: Action
    #: The node that was visited, or the piece; empty for what belongs to none.
    node_id: str = ""
    #: Its level, and the positions that it covers; 0 for what belongs to none.
    level: int = 0
    from_position: int = 0
    to_position: int = 0
    #: Nodes between it and the root.
    depth: int = 0
    #: 1 to 3: how often in a row the model was asked the same.
    attempt: int = 1
    #: The children that the model saw, or the leaves that retrieval named.
    shown: tuple[str, ...] = ()
    #: The nodes that it went to.
    targets: tuple[str, ...] = ()
    #: What the model said before it acted.
    reasoning: str = ""
    #: The answer; what was wrong with an invalid reply; the shortened working memory; at the
    #: end the answer, or a value of NoAnswer.
    text: str = ""
    #: Template of the prompt; empty where no model was asked.
    template: str = ""
    #: The model's reply as it came.
    reply: str = ""
    #: Tokens of the call, as the provider reports them; `cached_tokens` None: it does not say.
    input_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    #: How the reply ended.
    end: End = End.COMPLETE


@dataclass(frozen=True, kw_only=True, slots=True)
class Emit(Fetch):
    """Stores an event and streams it to waiting clients. Its reply is None."""

    event: Event


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
        """Returns the next event, of a model call if `ask` and `reply` are given.

        `said` are its further fields.
        """
        self._ordinal += 1
        if ask is not None and reply is not None:
            said |= {"attempt": ask.attempt + 1, "template": ask.template}
            said |= reply_fields([reply])
        return Event(ordinal=self._ordinal, kind=kind, action=action, **said)


def reply_fields(replies: Sequence[ModelReply]) -> dict[str, Any]:
    """Returns an event's fields of replies: the words of the last, the tokens of all."""
    cached = [one.cached_tokens for one in replies]
    return {
        "reply": replies[-1].text if replies else "",
        "input_tokens": sum(one.input_tokens for one in replies),
        "cached_tokens": None if None in cached or not cached else sum(one or 0 for one in cached),
        "output_tokens": sum(one.output_tokens for one in replies),
        "end": replies[-1].end if replies else End.COMPLETE,
    }
