"""How memories of each kind are kept, to and from the proto's messages."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, TypedDict

from palimpsest._convert import duration, message_of, refuse_unknown, value_of
from palimpsest._schemas import Schema, schema_fields
from palimpsest.v1 import common_pb2, memories_pb2

#: How a memory is written into prompts: a base and a line for each amendment since, or
#: one JSON object.
Encoding = Literal["adaptive", "amendments", "in_place"]
#: Which amendments the model may propose.
AllowedOps = Literal["add_and_update", "add_only"]
#: What happens to a value of another type than the schema's.
Coercion = Literal["refuse", "lossless"]
#: What a step sees of a memory of more than `memory_tokens`: all of it, so the memory is
#: consolidated; or the part that fits the step's text, so the memory may grow.
Steps = Literal["whole", "focused"]
#: How the model writes its moves; "auto" is "structured" where the model offers it.
ReplyFormat = Literal["auto", "text", "structured"]
#: The working memory that navigation carries down the path.
WorkingMemory = Literal["cut", "off", "summarized"]
#: How the number of steps between two compressions is chosen.
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
    #: Whether the beginning of a text replaces a failed summary; else the tree stalls.
    skip_failures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSettings:
    """How state vectors are kept. Zeros and empty texts mean the service's defaults, unless stated
    otherwise.
    """

    #: The task prompt, the first state vector.
    task: str = ""
    #: N: steps that one compression takes; 1 to 1,000.
    period: int = 0
    period_kind: StatePeriod = "fixed"
    #: Steps are also compressed before they have more tokens together; None: 4,000; 0: no limit.
    period_tokens: int | None = None
    #: Steps are also compressed after so long without a new one; 0: never.
    idle_seconds: float = 0.0
    #: Tokens of a state vector at most; 32 to 32,000.
    state_tokens: int = 0
    #: Strings that every state vector contains word for word.
    pinned: tuple[str, ...] = ()
    #: K: vectors that are compressed into one of the next level; 2 to 64, 0: no episodes.
    episode_vectors: int = 0
    #: Model as provider/name.
    model: str = ""
    #: How the model writes its moves when a question navigates.
    reply_format: ReplyFormat = "auto"
    #: Whether the beginning of steps replaces a failed compression; else the memory stalls.
    skip_failures: bool = False


class TreeOptions(TypedDict, total=False):
    """The settings of `palimpsest.TreeSettings` that `Session.create_tree` accepts."""

    segment_tokens: int
    max_children: int
    summary_tokens: int
    reasoning: bool
    working_memory: WorkingMemory
    working_memory_tokens: int
    model: str
    navigation_model: str
    reply_format: ReplyFormat
    skip_failures: bool


class AgentSettings(TypedDict, total=False):
    """What `Session.create_state` and `Client.agent` take of `palimpsest.StateSettings`."""

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


def prism_spec(
    schema: Schema, *, linger: float | timedelta | None, skip_failures: bool, **rest: Any
) -> memories_pb2.PrismSpec:
    """Returns a spec; what is None is the service's to choose. Raises TypeError and ValueError."""
    return message_of(
        memories_pb2.PrismSpec,
        **schema_fields(schema),
        linger=None if linger is None else duration(linger, "linger"),
        on_failure="skip" if skip_failures else "stall",
        **rest,
    )


def _fields(settings: TreeSettings | StateSettings) -> dict[str, Any]:
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}
    given["on_failure"] = "skip" if given.pop("skip_failures") else "stall"
    return given


def tree_spec(settings: TreeSettings) -> memories_pb2.TreeSpec:
    """Returns the spec of a tree. Raises TypeError and ValueError."""
    reasoning = "on" if settings.reasoning else "off"
    return message_of(memories_pb2.TreeSpec, **{**_fields(settings), "reasoning": reasoning})


def tree_settings(message: memories_pb2.TreeSpec) -> TreeSettings:
    """Returns the settings of a tree."""
    return value_of(
        TreeSettings,
        message,
        reasoning=message.reasoning != memories_pb2.TreeSpec.REASONING_OFF,
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
    )


def state_spec(settings: StateSettings) -> memories_pb2.StateSpec:
    """Returns the spec of a state memory. Raises TypeError and ValueError."""
    given = _fields(settings)
    idle = given.pop("idle_seconds")
    given["idle"] = duration(idle, "idle_seconds") if idle else None
    return message_of(memories_pb2.StateSpec, **given)


def state_settings_of(**given: Any) -> StateSettings:
    """Returns the settings of a state memory. Raises TypeError for a name that is none."""
    refuse_unknown("setting", given, AgentSettings)
    return StateSettings(**given)


def state_settings(message: memories_pb2.StateSpec) -> StateSettings:
    """Returns the settings of a state memory."""
    return value_of(
        StateSettings,
        message,
        idle_seconds=message.idle.ToMilliseconds() / 1000,
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
    )
