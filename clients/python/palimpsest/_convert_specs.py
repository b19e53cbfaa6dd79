"""How memories of each kind are kept, to and from the proto's messages."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from palimpsest._convert import message_of, milliseconds, name_of, numbers_of
from palimpsest._convert import number_of as _number_of
from palimpsest._schemas import Schema, schema_fields
from palimpsest._values_specs import (
    AllowedOps,
    Coercion,
    Encoding,
    ReplyFormat,
    StatePeriod,
    StateSettings,
    Steps,
    TreeSettings,
    WorkingMemory,
)
from palimpsest.v1 import common_pb2, memories_pb2

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
PLAIN_PRISM = (
    "schema_source",
    "task",
    "question",
    "final_task",
    "model",
    "chunk_tokens",
    "fold_tokens",
    "memory_tokens",
)
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
    return TreeSettings(
        reasoning=message.reasoning != _Tree.REASONING_OFF,
        working_memory=name_of(WORKING_MEMORIES, message.working_memory),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN_TREE},
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
    return StateSettings(
        period_kind=name_of(PERIODS, message.period_kind),
        period_tokens=message.period_tokens if message.HasField("period_tokens") else None,
        idle_seconds=message.idle.ToMilliseconds() / 1000,
        pinned=tuple(message.pinned),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == common_pb2.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN_STATE},
    )
