"""State memories as the client returns them: plain values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest.tree_values import ReplyFormat

#: What the number of steps between two compressions goes by.
Period = Literal["fixed", "adaptive"]
#: What to do when a compression is due that is not made yet: take the older vectors and
#: more recent steps, or wait for it.
Freshness = Literal["latest", "wait"]
#: Where a state vector comes from; "unknown" only where the service is newer.
VectorMade = Literal["task", "model", "cut", "skipped", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSettings:
    """How state vectors are kept. Zeros and empty texts are the service's defaults, unless
    it is said otherwise.
    """

    #: The task prompt, the first state vector.
    task: str = ""
    #: N: steps that one compression takes; 1 to 1,000.
    period: int = 0
    period_kind: Period = "fixed"
    #: Steps are also compressed before they have more tokens together; None: 4,000; 0: never
    #: for that.
    period_tokens: int | None = None
    #: Steps are also compressed when none has come for so long; 0: never for that.
    idle_seconds: float = 0.0
    #: Tokens of a state vector at most; 32 to 32,000.
    state_tokens: int = 0
    #: Strings that every state vector has word for word.
    pinned: tuple[str, ...] = ()
    #: K: so many vectors are compressed into one of the next level; 2 to 64, 0: no episodes.
    episode_vectors: int = 0
    #: Model as provider/name.
    model: str = ""
    #: How the model writes its moves when a question navigates.
    reply_format: ReplyFormat = "auto"
    #: What cannot be compressed is stood for by its beginning; else the memory stalls.
    skip_failures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StateVector:
    """A state vector. It never changes."""

    #: That brought it; 0 for the task prompt.
    revision: int
    #: 1: of steps; 2 and up: an episode, of vectors of the level below.
    level: int
    text: str
    #: Of the text, as the model that made it counts.
    tokens: int
    made: VectorMade
    #: It stands for the positions after_position + 1 to to_position; what is new in it is
    #: from_position + 1 to to_position.
    after_position: int
    from_position: int
    to_position: int
    #: Revisions of the vectors that an episode was made from.
    children: tuple[int, ...]
    #: Replies of the model that it took.
    replies: int
    #: Pinned strings that the model had dropped.
    appended: tuple[str, ...]
    #: When it was committed; None in a working context.
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """A message for a chat model."""

    role: str
    content: str
