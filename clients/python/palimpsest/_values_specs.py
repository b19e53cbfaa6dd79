"""How memories of each kind are kept: plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

#: How a memory is written into prompts: a base and a line for each amendment since, or
#: one JSON object.
Encoding = Literal["adaptive", "amendments", "in_place"]
#: Which amendments the model may propose.
AllowedOps = Literal["add_and_update", "add_only"]
#: What happens to a value of another type than the schema's.
Coercion = Literal["refuse", "lossless"]
#: What a step is shown of a memory that is larger than its `memory_tokens`: all of it, and then
#: the memory is consolidated; or what fits the step's text, and then it may grow.
Steps = Literal["whole", "focused"]
#: How the model writes its moves; "auto" is "structured" where the model offers it.
ReplyFormat = Literal["auto", "text", "structured"]
#: What navigation carries down the path.
WorkingMemory = Literal["off", "cut", "summarized"]
#: What the number of steps between two compressions goes by.
StatePeriod = Literal["fixed", "adaptive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSettings:
    """How a tree is built and navigated. Zeros and empty texts are the service's defaults."""

    #: Tokens of the text under a leaf at most; 64 to 100,000.
    segment_tokens: int = 0
    #: Children of a node at most; 2 to 32.
    max_children: int = 0
    #: Tokens of a summary at most; 16 to 8,000.
    summary_tokens: int = 0
    #: Whether the model says why before it moves. Weak models do better without.
    reasoning: bool = True
    working_memory: WorkingMemory = "cut"
    #: Tokens of the working memory at most; 16 to 32,000.
    working_memory_tokens: int = 0
    #: Model for summaries as provider/name.
    model: str = ""
    #: Model for navigation; empty means `model`.
    navigation_model: str = ""
    reply_format: ReplyFormat = "auto"
    #: What cannot be summarized is stood for by its beginning; else the tree stalls.
    skip_failures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSettings:
    """How state vectors are kept. Zeros and empty texts are the service's defaults, unless
    it is said otherwise.
    """

    #: The task prompt, the first state vector.
    task: str = ""
    #: N: steps that one compression takes; 1 to 1,000.
    period: int = 0
    period_kind: StatePeriod = "fixed"
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


class AgentSettings(TypedDict, total=False):
    """What of `palimpsest.StateSettings` a loop may say about its memory."""

    task: str
    period: int
    period_kind: StatePeriod
    period_tokens: int | None
    idle_seconds: float
    state_tokens: int
    pinned: Sequence[str]
    episode_vectors: int
    model: str
    reply_format: ReplyFormat
    skip_failures: bool
