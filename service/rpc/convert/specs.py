"""Specs of memories."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

from palimpsest.v1 import memories_pb2
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
from service.domain.values.reasons import Reason
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert.common import member_of, message_of
from service.rpc.interceptors.validation import validate

#: What an unset number of a PrismSpec means; the proto's comments say the same.
DEFAULT_CHUNK_TOKENS = 2000

_Tree = memories_pb2.TreeSpec


@contextmanager
def fields_within(name: str) -> Iterator[None]:
    """Makes refusals of a spec name its fields by their path in the request."""
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


def check_spec(models: AllowedModels, spec: MemorySpec) -> None:
    """Raises InvalidInput for a spec that is not from CreateMemory, and that it would refuse."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        # In a message 0 is the default: a spec has 0 itself only where that is allowed.
        is_zero = value == 0 and type(field.default) is int and field.default
        if field.default is not MISSING and (type(value) is not type(field.default) or is_zero):
            said = f"{field.name}: it has a value that no spec can have"
            raise InvalidInput(Reason.FIELD_INVALID, said, field=f"{spec.kind}.{field.name}")
    message = memories_pb2.Memory()
    try:
        write_spec(spec, message)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        said = "a field has a value of another type or range"
        raise InvalidInput(Reason.FIELD_INVALID, said, field=spec.kind) from error
    validate(getattr(message, spec.kind))
    models.check_spec(spec, f"{spec.kind}.")


def tree_spec(message: memories_pb2.TreeSpec) -> TreeSpec:
    """Returns a spec with its defaults filled in."""
    default = TreeSpec()
    return TreeSpec(
        segment_tokens=message.segment_tokens or default.segment_tokens,
        max_children=message.max_children or default.max_children,
        summary_tokens=message.summary_tokens or default.summary_tokens,
        reasoning=message.reasoning != _Tree.REASONING_OFF,
        working_memory=member_of(message, "working_memory", WorkingMemory.CUT),
        working_memory_tokens=message.working_memory_tokens or default.working_memory_tokens,
        model=message.model,
        navigation_model=message.navigation_model,
        reply_format=member_of(message, "reply_format", ReplyFormat.AUTO),
        on_failure=member_of(message, "on_failure", OnFailure.STALL),
    )


def tree_message(spec: TreeSpec) -> memories_pb2.TreeSpec:
    """Returns a spec as the proto has it."""
    return message_of(
        _Tree,
        spec,
        reasoning=_Tree.REASONING_ON if spec.reasoning else _Tree.REASONING_OFF,
    )


def state_spec(message: memories_pb2.StateSpec) -> StateSpec:
    """Returns a spec with its defaults filled in."""
    default = StateSpec()
    has_bound = message.HasField("period_tokens")
    return StateSpec(
        task=message.task,
        period=message.period or default.period,
        period_kind=member_of(message, "period_kind", Period.FIXED),
        period_tokens=message.period_tokens if has_bound else DEFAULT_PERIOD_TOKENS,
        idle_ms=message.idle.ToMilliseconds(),
        state_tokens=message.state_tokens or default.state_tokens,
        pinned=tuple(message.pinned),
        episode_vectors=message.episode_vectors,
        model=message.model,
        reply_format=member_of(message, "reply_format", ReplyFormat.AUTO),
        on_failure=member_of(message, "on_failure", OnFailure.STALL),
    )


def state_message(spec: StateSpec) -> memories_pb2.StateSpec:
    """Returns a spec as the proto has it."""
    message = message_of(memories_pb2.StateSpec, spec, idle=None)
    message.idle.FromMilliseconds(spec.idle_ms)
    return message


def prism_spec(message: memories_pb2.PrismSpec) -> PrismSpec:
    """Returns a spec with its defaults filled in. Raises SchemaInvalid."""
    source = bounded(message.schema_source)
    if message.json_schema:
        source = render(schema_of("", message.json_schema))
    encoding = member_of(message, "encoding", Encoding.ADAPTIVE)
    return PrismSpec(
        schema_source=source,
        task=message.task,
        question=message.question,
        encoding=encoding,
        chunk_tokens=message.chunk_tokens or DEFAULT_CHUNK_TOKENS,
        model=message.model,
        on_failure=member_of(message, "on_failure", OnFailure.STALL),
        fold_tokens=message.fold_tokens or default_fold_tokens(encoding),
        operations=member_of(message, "allowed_ops", Operations.ADD_AND_UPDATE),
        coercion=member_of(message, "coercion", Coercion.REFUSE),
        reply_format=member_of(message, "reply_format", ReplyFormat.AUTO),
        memory_tokens=message.memory_tokens or MEMORY_TOKENS,
        linger_ms=message.linger.ToMilliseconds()
        if message.HasField("linger")
        else SERVICE_LINGER_MS,
        final_task=message.final_task,
        steps=member_of(message, "steps", StepScope.WHOLE),
    )


def prism_message(spec: PrismSpec) -> memories_pb2.PrismSpec:
    """Returns a spec as the proto has it, with the schema as models are shown it."""
    message = message_of(
        memories_pb2.PrismSpec,
        spec,
        schema_source=spec.shown_schema(),
        json_schema=None,
        allowed_ops=spec.operations,
        linger=None,
    )
    if spec.linger_ms != SERVICE_LINGER_MS:
        message.linger.FromMilliseconds(spec.linger_ms)
    return message


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
