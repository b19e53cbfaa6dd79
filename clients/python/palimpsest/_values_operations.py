"""Operations: plain values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar

from palimpsest._errors import PalimpsestError
from palimpsest._values_common import OperationState
from palimpsest._values_memories import Blocked, MemoryInfo
from palimpsest._values_spend import Usage

#: What an operation does; "unknown" only where the service is newer.
OperationKind = Literal["rebuild", "consolidation", "schema", "seal", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedSchema:
    """A schema that a model wrote."""

    #: Class source, for `Session.create_memory`.
    schema_source: str
    #: What the texts are.
    domain: str
    #: A question of the kind that will be asked.
    example_query: str
    #: The model that wrote it. "offline/extractive" is no language model.
    model: str
    #: Replies of the model that it took, the invalid ones included.
    attempts: int


#: What an operation results in.
OperationResult = MemoryInfo | GeneratedSchema
Result = TypeVar("Result", bound=OperationResult)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationProgress:
    """How far an operation is that has not ended."""

    #: Positions of the log that are read, of `total`; 0 of a schema.
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
    #: The memory that it changes or builds; empty of a schema.
    memory: str
    #: None once it has ended.
    progress: OperationProgress | None
    #: Why it failed; None unless it did.
    error: PalimpsestError | None
    #: None unless it is done, where the result was deleted, and in lists.
    result: Result | None
    #: What a schema cost by now; None of other kinds, and in lists.
    usage: Usage | None
    created_at: datetime
    #: When its end was first reported; None before.
    ended_at: datetime | None
