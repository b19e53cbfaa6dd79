"""How memories of each kind are kept, to and from the proto's messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict

from palimpsest._convert import message_of, milliseconds, numbers_of, value_of
from palimpsest._convert import number_of as _number_of
from palimpsest._schemas import Schema, schema_fields
from palimpsest.v1 import common_pb2, memories_pb2

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
WorkingMemory = Literal["cut", "off", "summarized"]
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


class TreeOptions(TypedDict, total=False):
    """What `Session.create_tree` takes of `palimpsest.TreeSettings`."""

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


_Spec = memories_pb2.PrismSpec
_Tree = memories_pb2.TreeSpec
_State = memories_pb2.StateSpec

#: What an enumerated setting may be, and what the proto calls it.
ENCODINGS: dict[Encoding, Any] = {
    "adaptive": _Spec.ENCODING_ADAPTIVE,
    "amendments": _Spec.ENCODING_AMENDMENTS,
    "in_place": _Spec.ENCODING_IN_PLACE,
}
ALLOWED_OPS: dict[AllowedOps, Any] = numbers_of(_Spec.AllowedOps, "ALLOWED_OPS_")
COERCIONS: dict[Coercion, Any] = numbers_of(_Spec.Coercion, "COERCION_")
REPLY_FORMATS: dict[ReplyFormat, Any] = numbers_of(common_pb2.ReplyFormat, "REPLY_FORMAT_", "auto")
STEPS: dict[Steps, Any] = numbers_of(_Spec.Steps, "STEPS_")
WORKING_MEMORIES: dict[WorkingMemory, Any] = {
    "cut": _Tree.WORKING_MEMORY_CUT,
    "off": _Tree.WORKING_MEMORY_OFF,
    "summarized": _Tree.WORKING_MEMORY_SUMMARIZED,
}
PERIODS: dict[StatePeriod, Any] = numbers_of(_State.Period, "PERIOD_")
_TABLES: dict[str, Mapping[Any, Any]] = {
    "encoding": ENCODINGS,
    "allowed_ops": ALLOWED_OPS,
    "coercion": COERCIONS,
    "reply_format": REPLY_FORMATS,
    "steps": STEPS,
    "working_memory": WORKING_MEMORIES,
    "period_kind": PERIODS,
}


def number_of(setting: str, given: object) -> Any:
    """Returns what the proto calls a setting's value. Raises ValueError."""
    return _number_of(setting, _TABLES[setting], given)


def _on_failure(skip_failures: bool) -> Any:
    return common_pb2.ON_FAILURE_SKIP if skip_failures else common_pb2.ON_FAILURE_STALL


def prism_spec(
    schema: Schema,
    *,
    choices: Mapping[str, str | None],
    linger: float | timedelta | None,
    skip_failures: bool,
    **rest: Any,
) -> memories_pb2.PrismSpec:
    """A spec; None among `choices` is the service's to choose. Raises ValueError."""
    fields: dict[str, Any] = {
        name: number_of(name, given) for name, given in choices.items() if given is not None
    }
    fields |= schema_fields(schema)
    message = _Spec(
        **fields,
        on_failure=_on_failure(skip_failures),
        **rest,
    )
    if linger is not None:
        message.linger.FromMilliseconds(milliseconds(linger, "linger"))
    return message


#: Settings that are the same with the proto.
_PLAIN_TREE = (
    "segment_tokens",
    "max_children",
    "summary_tokens",
    "working_memory_tokens",
    "model",
    "navigation_model",
)


def tree_spec(settings: TreeSettings) -> memories_pb2.TreeSpec:
    """The spec of a tree. Raises ValueError."""
    return _Tree(
        reasoning=_Tree.REASONING_ON if settings.reasoning else _Tree.REASONING_OFF,
        working_memory=number_of("working_memory", settings.working_memory),
        reply_format=number_of("reply_format", settings.reply_format),
        on_failure=_on_failure(settings.skip_failures),
        **{name: getattr(settings, name) for name in _PLAIN_TREE},
    )


def tree_settings(message: memories_pb2.TreeSpec) -> TreeSettings:
    """The settings of a tree."""
    return value_of(
        TreeSettings,
        message,
        reasoning=message.reasoning != _Tree.REASONING_OFF,
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
    )


_PLAIN_STATE = ("task", "period", "state_tokens", "episode_vectors", "model")


def state_spec(settings: StateSettings) -> memories_pb2.StateSpec:
    """The spec of a state memory. Raises TypeError and ValueError."""
    message = message_of(
        _State,
        period_kind=number_of("period_kind", settings.period_kind),
        period_tokens=settings.period_tokens,
        pinned=settings.pinned,
        reply_format=number_of("reply_format", settings.reply_format),
        on_failure=_on_failure(settings.skip_failures),
        **{name: getattr(settings, name) for name in _PLAIN_STATE},
    )
    if settings.idle_seconds:
        message.idle.FromMilliseconds(milliseconds(settings.idle_seconds, "idle_seconds"))
    return message


def state_settings_of(**given: Any) -> StateSettings:
    """Returns the settings of a state memory. Raises ValueError for one string of `pinned`."""
    pinned = given.get("pinned", ())
    if isinstance(pinned, str):
        # Each of its letters would be pinned.
        raise ValueError("pinned must be a sequence of strings, not one string")
    return StateSettings(**{**given, "pinned": tuple(pinned)})


def state_settings(message: memories_pb2.StateSpec) -> StateSettings:
    """The settings of a state memory."""
    return value_of(
        StateSettings,
        message,
        idle_seconds=message.idle.ToMilliseconds() / 1000,
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
    )
