"""Specs of memories."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from palimpsest.v1 import common_pb2, memories_pb2
from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.limits import bounded
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, render
from service.domain.prism.spec import (
    MEMORY_TOKENS,
    SERVICE_LINGER_MS,
    Coercion,
    Encoding,
    Operations,
    PrismSpec,
    StepScope,
    default_fold_tokens,
)
from service.domain.state.spec import DEFAULT_PERIOD_TOKENS, Period, StateSpec
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.values.errors import InvalidInput
from service.domain.values.memory_specs import MemorySpec, OnFailure, ReplyFormat
from service.rpc.convert.common import choices_of, message_of, numbers_of

#: What an unset number of a PrismSpec means; the proto's comments say the same.
DEFAULT_CHUNK_TOKENS = 2000

_Message = memories_pb2.PrismSpec

_ON_FAILURE = choices_of(
    numbers_of(OnFailure, common_pb2.OnFailure, "ON_FAILURE_"), OnFailure.STALL
)
_ENCODINGS = choices_of(numbers_of(Encoding, _Message.Encoding, "ENCODING_"), Encoding.ADAPTIVE)
_ALLOWED_OPS = choices_of(
    numbers_of(Operations, _Message.AllowedOps, "ALLOWED_OPS_"), Operations.ADD_AND_UPDATE
)
_COERCIONS = choices_of(numbers_of(Coercion, _Message.Coercion, "COERCION_"), Coercion.REFUSE)
_Tree = memories_pb2.TreeSpec
_REASONING = {
    _Tree.REASONING_UNSPECIFIED: True,
    _Tree.REASONING_ON: True,
    _Tree.REASONING_OFF: False,
}
_WORKING_MEMORIES = choices_of(
    numbers_of(WorkingMemory, _Tree.WorkingMemory, "WORKING_MEMORY_"), WorkingMemory.CUT
)
_State = memories_pb2.StateSpec
_PERIODS = choices_of(numbers_of(Period, _State.Period, "PERIOD_"), Period.FIXED)
_REPLY_FORMATS = choices_of(
    numbers_of(ReplyFormat, common_pb2.ReplyFormat, "REPLY_FORMAT_", ReplyFormat.AUTO),
    ReplyFormat.AUTO,
)
_STEPS = choices_of(numbers_of(StepScope, _Message.Steps, "STEPS_"), StepScope.WHOLE)


@contextmanager
def fields_within(name: str) -> Iterator[None]:
    """Has refusals of a spec name its fields by where the request has the memory."""
    try:
        yield
    except InvalidInput as error:
        if error.field.partition(".")[0] in SPECS:
            error.field = f"{name}.{error.field}"
        raise


def schema_of(schema_source: str, json_schema: str) -> Schema:
    """Returns the schema, in whichever of the two ways it is given. Raises SchemaInvalid."""
    return parse_json_schema(json_schema) if json_schema else parse_source(bounded(schema_source))


def memory_spec(message: memories_pb2.Memory) -> MemorySpec:
    """Returns the spec of a memory, with its defaults filled in. Raises SchemaInvalid."""
    kind = message.WhichOneof("spec") or PrismSpec.kind
    return SPECS[kind].read(getattr(message, kind))


def write_spec(spec: MemorySpec, message: memories_pb2.Memory) -> None:
    """Writes a spec into a memory, with the schema as models are shown it."""
    getattr(message, spec.kind).CopyFrom(SPECS[spec.kind].write(spec))


def tree_spec(message: memories_pb2.TreeSpec) -> TreeSpec:
    """Returns a spec with its defaults filled in."""
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
    """Returns a spec as the proto has it."""
    return message_of(
        _Tree,
        spec,
        reasoning=_named(_REASONING, spec.reasoning),
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
    )


def state_spec(message: memories_pb2.StateSpec) -> StateSpec:
    """Returns a spec with its defaults filled in."""
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
    """Returns a spec as the proto has it."""
    message = message_of(
        _State,
        spec,
        idle=None,
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
    )
    message.idle.FromMilliseconds(spec.idle_ms)
    return message


def prism_spec(message: memories_pb2.PrismSpec) -> PrismSpec:
    """Returns a spec with its defaults filled in. Raises SchemaInvalid."""
    source = bounded(message.schema_source)
    if message.json_schema:
        source = render(schema_of("", message.json_schema))
    encoding = _ENCODINGS[message.encoding]
    return PrismSpec(
        schema_source=source,
        task=message.task,
        question=message.question,
        encoding=encoding,
        chunk_tokens=message.chunk_tokens or DEFAULT_CHUNK_TOKENS,
        model=message.model,
        on_failure=_ON_FAILURE[message.on_failure],
        fold_tokens=message.fold_tokens or default_fold_tokens(encoding),
        operations=_ALLOWED_OPS[message.allowed_ops],
        coercion=_COERCIONS[message.coercion],
        reply_format=_REPLY_FORMATS[message.reply_format],
        memory_tokens=message.memory_tokens or MEMORY_TOKENS,
        linger_ms=message.linger.ToMilliseconds()
        if message.HasField("linger")
        else SERVICE_LINGER_MS,
        final_task=message.final_task,
        steps=_STEPS[message.steps],
    )


def prism_message(spec: PrismSpec) -> memories_pb2.PrismSpec:
    """Returns a spec as the proto has it, with the schema as models are shown it."""
    message = message_of(
        _Message,
        spec,
        schema_source=spec.shown_schema(),
        json_schema=None,
        allowed_ops=_named(_ALLOWED_OPS, spec.operations),
        reply_format=_named(_REPLY_FORMATS, spec.reply_format),
        linger=None,
    )
    if spec.linger_ms != SERVICE_LINGER_MS:
        message.linger.FromMilliseconds(spec.linger_ms)
    return message


def _named(table: dict[Any, Any], value: object) -> Any:
    """Returns the proto's name of a value: the last, since the first may be UNSPECIFIED."""
    return [key for key, held in table.items() if held is value][-1]


@dataclass(frozen=True, slots=True)
class _Converter:
    """Reads and writes the specs of one kind of memory, whose name its field has."""

    read: Callable[[Any], MemorySpec]
    write: Callable[[Any], Any]


#: By the names of the kinds.
SPECS = {
    PrismSpec.kind: _Converter(prism_spec, prism_message),
    TreeSpec.kind: _Converter(tree_spec, tree_message),
    StateSpec.kind: _Converter(state_spec, state_message),
}
