"""Operations, and what they are requested with."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import grpc

from palimpsest.v1 import common_pb2, errors_pb2, memory_service_pb2, operation_service_pb2
from palimpsest.v1.operations_pb2 import Operation as OperationMessage
from service.domain.log.redactions import Redaction
from service.domain.memories.long_operations import (
    ENDED,
    Operation,
    OperationKind,
    OperationState,
    OperationTarget,
    RedactionFacts,
)
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.convert import memories, specs
from service.rpc.convert.chunks import write_redaction
from service.rpc.convert.common import numbers_of, usage, write_timestamp
from service.usecases.memories.long_operations import FoundOperation, OperationFilter
from storage.memories.memories import StoredMemory
from storage.prism.schema_drafts import StoredSchemaDraft

_KINDS = numbers_of(OperationKind, OperationMessage.Kind, "KIND_")
_STATES = numbers_of(OperationState, common_pb2.OperationState, "OPERATION_STATE_")


def operation(found: FoundOperation) -> OperationMessage:
    """Returns an operation with its result."""
    known = found.operation
    message = OperationMessage(
        id=str(known.id),
        kind=_KINDS[known.kind],
        state=_STATES[known.state],
        session=known.session,
        memory=known.memory,
    )
    write_timestamp(known.created_at, message.created_at)
    if known.ended_at is not None:
        write_timestamp(known.ended_at, message.ended_at)
    if known.state not in ENDED:
        message.progress.CopyFrom(_progress(known))
    if (error := known.failure()) is not None:
        # FAILED_PRECONDITION is all that operations fail with.
        message.error.code = grpc.StatusCode.FAILED_PRECONDITION.value[0]
        message.error.reason = errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason}")
        message.error.message = error.message
        message.error.metadata.update(error.metadata)
    if found.usage:
        message.usage.CopyFrom(usage(found.usage))
    match found.result:
        case StoredMemory():
            message.memory_result.CopyFrom(memories.memory(found.result))
        case StoredSchemaDraft():
            message.schema_result.CopyFrom(_schema(found.result))
        case Redaction():
            write_redaction(found.result, message.redaction_result)
            message.redaction_result.removed.update(found.result.removed)
    return message


def _schema(draft: StoredSchemaDraft) -> OperationMessage.Schema:
    return OperationMessage.Schema(
        schema_source=draft.source,
        domain=draft.domain,
        example_query=draft.example_query,
        model=draft.model,
        attempts=draft.replies,
    )


def _progress(known: Operation) -> OperationMessage.Progress:
    message = OperationMessage.Progress()
    if known.facts is None:
        return message
    if isinstance(known.facts, OperationTarget):
        message.completed = min(known.facts.applied_position, known.goal)
        message.total = known.goal
    if isinstance(known.facts, RedactionFacts):
        # Their content is gone from the beginning; what was derived from them follows.
        message.total = known.facts.chunks
        return message
    if known.facts.blocked:
        message.blocked.cause = known.facts.blocked
    return message


def operation_filter(request: operation_service_pb2.ListOperationsRequest) -> OperationFilter:
    """Returns which operations are listed."""
    return OperationFilter(
        session=request.session,
        memory=request.memory,
        kind=next((one for one, number in _KINDS.items() if number == request.kind), None),
        state=next((one for one, number in _STATES.items() if number == request.state), None),
    )


#: Fields of specs that have another name here.
_NAMES = {
    "json_schema": "schema_source",
    "allowed_ops": "operations",
    "linger": "linger_ms",
    "idle": "idle_ms",
}


def spec_changes(
    request: memory_service_pb2.RebuildMemoryRequest,
) -> Mapping[str, Mapping[str, Any]]:
    """Returns what a rebuilt memory has otherwise. Raises InvalidInput, SchemaInvalid."""
    changes: dict[str, dict[str, Any]] = {}
    for path in request.update_mask.paths:
        kind, _, field = path.partition(".")
        changes.setdefault(kind, {}).update(
            _changed(kind, field, getattr(request.new_memory, kind))
        )
    return changes


def _changed(kind: str, field: str, message: Any) -> Mapping[str, Any]:
    """Returns a field of a new spec, or all of it where `field` is empty."""
    if field and field not in message.DESCRIPTOR.fields_by_name:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"update_mask: {kind}.{field} is no field of a spec",
            field="update_mask",
        )
    spec = specs.SPECS[kind].read(message)
    if not field:
        return {one.name: getattr(spec, one.name) for one in fields(spec)}
    if field == "fold_tokens":
        # 0 is the default of an encoding that the old spec may have.
        return {field: message.fold_tokens}
    name = _NAMES.get(field, field)
    return {name: getattr(spec, name)}
