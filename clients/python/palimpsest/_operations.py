"""Operations, to and from the proto's messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask

from palimpsest._convert import message_of, value_of
from palimpsest._errors import Cancelled, DeadlineExceeded, NotFound, PalimpsestError
from palimpsest._history import RevisionKind
from palimpsest._memories import Blocked, MemoryInfo, MemoryKind
from palimpsest._memories import memory as memory_info
from palimpsest._schemas import schema_fields
from palimpsest._specs import state_spec, tree_spec
from palimpsest._spend import Usage
from palimpsest._values_common import OperationState, PositionRange
from palimpsest._values_log import Redaction
from palimpsest.v1 import (
    memories_pb2,
    memory_service_pb2,
    operation_service_pb2,
    operations_pb2,
    session_service_pb2,
)

#: What an operation does; "unknown" only where the service is newer.
OperationKind = Literal["rebuild", "consolidation", "schema", "seal", "redaction", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedSchema:
    """A schema that a model wrote."""

    #: Class source, for `Session.create_memory`.
    schema_source: str
    #: What the texts are.
    domain: str
    #: An example of the questions that will be asked.
    example_query: str
    #: The model that wrote it. "offline/extractive" is no language model.
    model: str
    #: Replies of the model, invalid ones included.
    attempts: int


#: What an operation results in.
OperationResult = MemoryInfo | GeneratedSchema | Redaction
Result = TypeVar("Result", bound=OperationResult)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationProgress:
    """The progress of an operation that has not ended."""

    #: Positions of the log that are read, of `total`; 0 for a schema.
    completed: int
    #: Positions to be read.
    total: int
    #: Why it does not advance; None while it does.
    blocked: Blocked | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationInfo(Generic[Result]):
    """An operation as it was when it was read."""

    #: Unique within the tenant.
    id: str
    kind: OperationKind
    state: OperationState
    #: The session that it belongs to.
    session: str
    #: The memory that it changes or builds; empty for a schema.
    memory: str
    #: None once it has ended.
    progress: OperationProgress | None
    #: Why it failed; None unless it did.
    error: PalimpsestError | None
    #: None before it is done, after its result was deleted, and in lists.
    result: Result | None
    #: The cost of a schema by now; None for other kinds, and in lists.
    usage: Usage | None
    created_at: datetime
    #: When its end was first reported; None before.
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgottenImport:
    """Which chunks were redacted in an imported session, or would be."""

    session: str
    chunks: int
    #: In order.
    positions: tuple[PositionRange, ...]
    #: The id of the operation there; empty where nothing was done.
    operation: str
    #: Changes by hand that are undone there, or would be.
    undone_edit_count: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoneEdit:
    """A change of a memory by hand that a redaction undoes, without its content."""

    memory: str
    #: The revision that it was.
    revision: int
    #: `edit` or `rollback`.
    kind: RevisionKind
    edited_at: datetime
    #: Fields of the schema that it changed; `[*]` is for a free key or a place in a list.
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """Which chunks were redacted, or would be."""

    chunks: int
    #: In order.
    positions: tuple[PositionRange, ...]
    #: The removal of what was derived from them; None of a dry run, and when nothing is done.
    operation: OperationInfo[Redaction] | None
    #: Texts that are kept out of the session from now on, and were not before.
    kept_out: int
    #: With `include_imports`: sessions that were imported from this one.
    imports: tuple[ForgottenImport, ...] = ()
    #: Changes by hand that are undone, or would be: the newest 100, oldest first.
    undone_edits: tuple[UndoneEdit, ...] = ()
    #: How many there are, with earlier ones.
    undone_edit_count: int = 0


def forgotten(message: session_service_pb2.RedactChunksResponse) -> Forgotten:
    """Returns which chunks were redacted."""
    has_operation = message.HasField("operation")
    return value_of(
        Forgotten, message, operation=operation(message.operation) if has_operation else None
    )


def operation(message: operations_pb2.Operation) -> OperationInfo[Any]:
    """Returns an operation."""
    return value_of(OperationInfo, message, result=_result(message))


def _result(message: operations_pb2.Operation) -> Any:
    match message.WhichOneof("result"):
        case "memory_result":
            return memory_info(message.memory_result)
        case "schema_result":
            return value_of(GeneratedSchema, message.schema_result)
        case "redaction_result":
            return value_of(Redaction, message.redaction_result)
    return None


class OperationView(Generic[Result]):
    """An operation as it was last read."""

    def __init__(self, message: operations_pb2.Operation) -> None:
        #: All of it, as a plain value.
        self.info: OperationInfo[Result] = operation(message)

    @property
    def id(self) -> str:
        """For `Client.operation`; unique within the tenant."""
        return self.info.id

    @property
    def kind(self) -> OperationKind:
        """What it does."""
        return self.info.kind

    @property
    def state(self) -> OperationState:
        """How far it is."""
        return self.info.state

    @property
    def progress(self) -> OperationProgress | None:
        """How much of the log is read; None once it has ended."""
        return self.info.progress

    @property
    def error(self) -> PalimpsestError | None:
        """Why it failed; None unless it did."""
        return self.info.error

    @property
    def result(self) -> Result | None:
        """The memory, or the schema, once it is done; None before."""
        return self.info.result

    @property
    def usage(self) -> Usage | None:
        """The cost of a schema by now; None for other kinds."""
        return self.info.usage

    @property
    def has_ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state not in ("pending", "running")

    def _take(self, message: operations_pb2.Operation) -> OperationInfo[Result]:
        """Replaces what is known of the operation."""
        self.info = operation(message)
        return self.info

    def _ended(self) -> Result:
        """Returns the result. Raises the error that replaced it."""
        if self.error is not None:
            raise self.error
        if self.state == "cancelled":
            raise Cancelled(f"operation {self.id} was cancelled", metadata={"operation": self.id})
        if self.result is None:
            raise NotFound(
                f"the result of operation {self.id} was deleted", metadata={"operation": self.id}
            )
        return self.result

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"operation {self.id} has not ended in time; it goes on: wait for it again",
            reason="OPERATION_NOT_ENDED_IN_TIME",
            metadata={"operation": self.id},
        )


def list_request(
    session: str, memory: str, kind: OperationKind | None, state: OperationState | None
) -> operation_service_pb2.ListOperationsRequest:
    """Returns the request of a list. Raises ValueError."""
    return message_of(
        operation_service_pb2.ListOperationsRequest,
        session=session,
        memory=memory,
        kind=kind,
        state=state,
        page_size=1000,
    )


def rebuild_request(
    named: Mapping[str, str],
    new_id: str,
    kind: MemoryKind,
    changes: Mapping[str, Any],
    request_id: str,
    *,
    allow_expired_log: bool = False,
) -> memory_service_pb2.RebuildMemoryRequest:
    """Returns the request; None among `changes` keeps the setting of the old memory.

    `settings` replaces all settings of a tree or a state memory. Raises TypeError and ValueError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    settings = given.pop("settings", None)
    if "schema" in given:
        given |= schema_fields(given.pop("schema"))
    new = memories_pb2.Memory(session=named["session"], id=new_id)
    spec = getattr(new, kind)
    changed = message_of(type(spec), **given)
    paths = [f"{kind}.{name}" for name in given]
    if settings is not None:
        spec.CopyFrom(tree_spec(settings) if kind == "tree" else state_spec(settings))
        paths = [kind]
    for name in given:
        setattr(spec, name, getattr(changed, name))
    return memory_service_pb2.RebuildMemoryRequest(
        **named,
        new_memory=new,
        update_mask=FieldMask(paths=paths),
        request_id=request_id,
        allow_expired_log=allow_expired_log,
    )
