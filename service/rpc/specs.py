"""Between the proto's specs of memories and ours."""

from typing import Any

from palimpsest.v1alpha1 import memories_pb2
from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.limits import bounded
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema
from service.domain.prism.spec import (
    SERVICE_LINGER_MS,
    Coercion,
    Encoding,
    Operations,
    PrismSpec,
    StepScope,
)
from service.domain.state.spec import DEFAULT_PERIOD_TOKENS, Period, StateSpec
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.values.memory_choices import OnFailure, ReplyFormat

#: What an unset number of a PrismSpec means; the proto's comments say the same.
DEFAULT_CHUNK_TOKENS = 2000

_Message = memories_pb2.PrismSpec

_ON_FAILURE = {
    _Message.ON_FAILURE_UNSPECIFIED: OnFailure.STALL,
    _Message.ON_FAILURE_STALL: OnFailure.STALL,
    _Message.ON_FAILURE_SKIP: OnFailure.SKIP,
}
_ENCODINGS = {
    _Message.ENCODING_UNSPECIFIED: Encoding.ADAPTIVE,
    _Message.ENCODING_ADAPTIVE: Encoding.ADAPTIVE,
    _Message.ENCODING_AMENDMENTS: Encoding.AMENDMENTS,
    _Message.ENCODING_IN_PLACE: Encoding.IN_PLACE,
}
_OPERATIONS = {
    _Message.OPERATIONS_UNSPECIFIED: Operations.ADD_AND_UPDATE,
    _Message.OPERATIONS_ADD_AND_UPDATE: Operations.ADD_AND_UPDATE,
    _Message.OPERATIONS_ADD_ONLY: Operations.ADD_ONLY,
}
_COERCIONS = {
    _Message.COERCION_UNSPECIFIED: Coercion.REFUSE,
    _Message.COERCION_REFUSE: Coercion.REFUSE,
    _Message.COERCION_LOSSLESS: Coercion.LOSSLESS,
}
_Tree = memories_pb2.TreeSpec

_REASONING = {
    _Tree.REASONING_UNSPECIFIED: True,
    _Tree.REASONING_ON: True,
    _Tree.REASONING_OFF: False,
}
_WORKING_MEMORIES = {
    _Tree.WORKING_MEMORY_UNSPECIFIED: WorkingMemory.CUT,
    _Tree.WORKING_MEMORY_OFF: WorkingMemory.OFF,
    _Tree.WORKING_MEMORY_CUT: WorkingMemory.CUT,
    _Tree.WORKING_MEMORY_SUMMARIZED: WorkingMemory.SUMMARIZED,
}
_State = memories_pb2.StateSpec

_PERIODS = {
    _State.PERIOD_UNSPECIFIED: Period.FIXED,
    _State.PERIOD_FIXED: Period.FIXED,
    _State.PERIOD_ADAPTIVE: Period.ADAPTIVE,
}
_REPLY_FORMATS = {
    _Message.REPLY_FORMAT_UNSPECIFIED: ReplyFormat.AUTO,
    _Message.REPLY_FORMAT_TEXT: ReplyFormat.TEXT,
    _Message.REPLY_FORMAT_STRUCTURED: ReplyFormat.STRUCTURED,
}

_STEPS = {
    _Message.STEPS_UNSPECIFIED: StepScope.WHOLE,
    _Message.STEPS_WHOLE: StepScope.WHOLE,
    _Message.STEPS_FOCUSED: StepScope.FOCUSED,
}


def schema_of(schema_source: str, json_schema: str) -> Schema:
    """The schema, in whichever of the two ways it is given. Raises SchemaInvalid."""
    return parse_json_schema(json_schema) if json_schema else parse_source(bounded(schema_source))


def tree_spec(message: memories_pb2.TreeSpec) -> TreeSpec:
    """A spec with its defaults filled in."""
    default = TreeSpec()
    return TreeSpec(
        segment_tokens=message.segment_tokens or default.segment_tokens,
        max_children=message.max_children or default.max_children,
        summary_tokens=message.summary_tokens or default.summary_tokens,
        reasoning=_REASONING[message.reasoning],
        working_memory=_WORKING_MEMORIES[message.working_memory],
        working_memory_tokens=message.working_memory_tokens or default.working_memory_tokens,
        model=message.model,
        navigation_model=message.navigation_model,
        reply_format=_REPLY_FORMATS[message.reply_format],
        on_failure=_ON_FAILURE[message.on_failure],
    )


def tree_message(spec: TreeSpec) -> memories_pb2.TreeSpec:
    """A spec as the proto has it."""
    return _Tree(
        segment_tokens=spec.segment_tokens,
        max_children=spec.max_children,
        summary_tokens=spec.summary_tokens,
        reasoning=_named(_REASONING, spec.reasoning),
        working_memory=_named(_WORKING_MEMORIES, spec.working_memory),
        working_memory_tokens=spec.working_memory_tokens,
        model=spec.model,
        navigation_model=spec.navigation_model,
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
        on_failure=_named(_ON_FAILURE, spec.on_failure),
    )


def state_spec(message: memories_pb2.StateSpec) -> StateSpec:
    """A spec with its defaults filled in."""
    default = StateSpec()
    has_bound = message.HasField("period_tokens")
    return StateSpec(
        task=message.task,
        period=message.period or default.period,
        period_kind=_PERIODS[message.period_kind],
        period_tokens=message.period_tokens if has_bound else DEFAULT_PERIOD_TOKENS,
        idle_ms=message.idle.ToMilliseconds(),
        state_tokens=message.state_tokens or default.state_tokens,
        pinned=tuple(message.pinned),
        episode_vectors=message.episode_vectors,
        model=message.model,
        reply_format=_REPLY_FORMATS[message.reply_format],
        on_failure=_ON_FAILURE[message.on_failure],
    )


def state_message(spec: StateSpec) -> memories_pb2.StateSpec:
    """A spec as the proto has it."""
    message = _State(
        task=spec.task,
        period=spec.period,
        period_kind=_named(_PERIODS, spec.period_kind),
        period_tokens=spec.period_tokens,
        state_tokens=spec.state_tokens,
        pinned=spec.pinned,
        episode_vectors=spec.episode_vectors,
        model=spec.model,
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
        on_failure=_named(_ON_FAILURE, spec.on_failure),
    )
    message.idle.FromMilliseconds(spec.idle_ms)
    return message


def prism_message(spec: PrismSpec) -> memories_pb2.PrismSpec:
    """A spec as the proto has it, with the schema as the model is shown it."""
    message = _Message(
        schema_source=spec.shown_schema(),
        task=spec.task,
        question=spec.question,
        encoding=_named(_ENCODINGS, spec.encoding),
        chunk_tokens=spec.chunk_tokens,
        model=spec.model,
        on_failure=_named(_ON_FAILURE, spec.on_failure),
        fold_tokens=spec.fold_tokens,
        operations=_named(_OPERATIONS, spec.operations),
        coercion=_named(_COERCIONS, spec.coercion),
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
        memory_tokens=spec.memory_tokens,
        final_task=spec.final_task,
        steps=_named(_STEPS, spec.steps),
    )
    if spec.linger_ms != SERVICE_LINGER_MS:
        message.linger.FromMilliseconds(spec.linger_ms)
    return message


def _named(table: dict[Any, Any], value: object) -> Any:
    """The proto's name of a value: the last, since the first may be UNSPECIFIED."""
    return [key for key, held in table.items() if held is value][-1]
