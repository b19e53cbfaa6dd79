"""The settings of a memory: from the client's names to the proto's, and back."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from palimpsest import schemas, values
from palimpsest.schemas import Schema
from palimpsest.state_values import Freshness, Period, StateSettings
from palimpsest.tree_values import TreeSettings, WorkingMemory
from palimpsest.v1 import memories_pb2, states_pb2

_Spec = memories_pb2.PrismSpec
_Tree = memories_pb2.TreeSpec
_State = memories_pb2.StateSpec
_Context = states_pb2.GetWorkingContextRequest
_Message = TypeVar("_Message")

#: Of a value that an error shows, in characters.
SHOWN_CHARACTERS = 60


class JsonText(str):
    """A JSON Schema as a text, for whoever has it so: it is passed on as it is."""


#: What an enumerated setting may be, and what the proto calls it.
ENCODINGS: dict[values.Encoding, Any] = {
    "adaptive": _Spec.ENCODING_ADAPTIVE,
    "amendments": _Spec.ENCODING_AMENDMENTS,
    "in_place": _Spec.ENCODING_IN_PLACE,
}
OPERATIONS: dict[values.Operations, Any] = {
    "add_and_update": _Spec.OPERATIONS_ADD_AND_UPDATE,
    "add_only": _Spec.OPERATIONS_ADD_ONLY,
}
COERCIONS: dict[values.Coercion, Any] = {
    "refuse": _Spec.COERCION_REFUSE,
    "lossless": _Spec.COERCION_LOSSLESS,
}
REPLY_FORMATS: dict[values.ReplyFormat, Any] = {
    "auto": _Spec.REPLY_FORMAT_UNSPECIFIED,
    "text": _Spec.REPLY_FORMAT_TEXT,
    "structured": _Spec.REPLY_FORMAT_STRUCTURED,
}
STEPS: dict[values.Steps, Any] = {
    "whole": _Spec.STEPS_WHOLE,
    "focused": _Spec.STEPS_FOCUSED,
}
WORKING_MEMORIES: dict[WorkingMemory, Any] = {
    "cut": _Tree.WORKING_MEMORY_CUT,
    "off": _Tree.WORKING_MEMORY_OFF,
    "summarized": _Tree.WORKING_MEMORY_SUMMARIZED,
}
PERIODS: dict[Period, Any] = {
    "fixed": _State.PERIOD_FIXED,
    "adaptive": _State.PERIOD_ADAPTIVE,
}
FRESHNESS: dict[Freshness, Any] = {
    "latest": _Context.FRESHNESS_LATEST,
    "wait": _Context.FRESHNESS_WAIT,
}
FORMS: dict[values.ContextForm, Any] = {
    "parts": _Context.FORM_PARTS,
    "text": _Context.FORM_TEXT,
    "messages": _Context.FORM_MESSAGES,
}


_TABLES: dict[str, Mapping[Any, Any]] = {
    "encoding": ENCODINGS,
    "operations": OPERATIONS,
    "coercion": COERCIONS,
    "reply_format": REPLY_FORMATS,
    "steps": STEPS,
    "working_memory": WORKING_MEMORIES,
    "period_kind": PERIODS,
    "freshness": FRESHNESS,
    "form": FORMS,
}


def number_of(setting: str, given: object) -> Any:
    """What the proto calls a setting's value. Raises ValueError."""
    table = _TABLES[setting]
    # Not `given in table`, which fails for what has no hash.
    for name, number in table.items():
        if name == given:
            return number
    allowed = " or ".join(repr(name) for name in table)
    raise ValueError(f"{setting} must be {allowed}, not {given!r}")


def name_of(table: Mapping[Any, Any], number: int) -> Any:
    """The name of what the proto calls `number`; the first one for what it leaves open."""
    return next((name for name, held in table.items() if held == number), next(iter(table)))


def schema_fields(schema: Schema) -> dict[str, str]:
    """The field of a request that says this schema, and its value.

    Raises TypeError or ValueError for what no schema can be.
    """
    if isinstance(schema, JsonText):
        return {"json_schema": schemas.bounded(str(schema), schemas.MAX_JSON_BYTES)}
    return schemas.schema_fields(schema)


def message_of(kind: Callable[..., _Message], **fields: Any) -> _Message:
    """A message of these fields. Raises TypeError and ValueError that name the field.

    Those of protobuf say what is wrong with a value, and not which one it is.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, given in fields.items():
            held = repr(given)
            if len(held) > SHOWN_CHARACTERS:
                held = f"{held[:SHOWN_CHARACTERS]}…"
            try:
                kind(**{name: given})
            except TypeError as error:
                raise TypeError(f"{name} is of another type: {held}") from error
            except UnicodeEncodeError as error:
                why = f"{error.reason} in {name}"
                place = error.start, error.end
                raise UnicodeEncodeError(error.encoding, error.object, *place, why) from error
            except ValueError as error:
                raise ValueError(f"{name} cannot be {held}: {error}") from error
        raise


def milliseconds(given: float | timedelta, setting: str = "linger") -> int:
    """A duration, given in seconds or as a timedelta, in whole milliseconds.

    Raises ValueError for what is no duration; the service bounds it.
    """
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    # False for NaN as well.
    if not 0 <= seconds <= timedelta.max.total_seconds():
        raise ValueError(f"{setting} must be a number of seconds from 0 on, not {given!r}")
    return round(seconds * 1000)


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
        on_failure=_Spec.ON_FAILURE_SKIP if skip_failures else _Spec.ON_FAILURE_STALL,
        **rest,
    )
    if linger is not None:
        message.linger.FromMilliseconds(milliseconds(linger))
    return message


#: Settings of a tree that are the same with the proto.
_PLAIN = (
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
        on_failure=_Spec.ON_FAILURE_SKIP if settings.skip_failures else _Spec.ON_FAILURE_STALL,
        **{name: getattr(settings, name) for name in _PLAIN},
    )


def tree_settings(message: memories_pb2.TreeSpec) -> TreeSettings:
    """The settings of a tree."""
    return TreeSettings(
        reasoning=message.reasoning != _Tree.REASONING_OFF,
        working_memory=name_of(WORKING_MEMORIES, message.working_memory),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == _Spec.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN},
    )


#: Settings of a state memory that are the same with the proto.
_PLAIN_STATE = ("task", "period", "state_tokens", "episode_vectors", "model")


def state_spec(settings: StateSettings) -> memories_pb2.StateSpec:
    """The spec of a state memory. Raises TypeError and ValueError."""
    message = message_of(
        _State,
        period_kind=number_of("period_kind", settings.period_kind),
        period_tokens=settings.period_tokens,
        pinned=settings.pinned,
        reply_format=number_of("reply_format", settings.reply_format),
        on_failure=_Spec.ON_FAILURE_SKIP if settings.skip_failures else _Spec.ON_FAILURE_STALL,
        **{name: getattr(settings, name) for name in _PLAIN_STATE},
    )
    if settings.idle_seconds:
        message.idle.FromMilliseconds(milliseconds(settings.idle_seconds, "idle_seconds"))
    return message


def state_settings(message: memories_pb2.StateSpec) -> StateSettings:
    """The settings of a state memory."""
    return StateSettings(
        period_kind=name_of(PERIODS, message.period_kind),
        period_tokens=message.period_tokens if message.HasField("period_tokens") else None,
        idle_seconds=message.idle.ToMilliseconds() / 1000,
        pinned=tuple(message.pinned),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == _Spec.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN_STATE},
    )
