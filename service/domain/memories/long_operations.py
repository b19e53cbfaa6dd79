"""Derives how far long work is from what it works on.

An operation that has not ended has no state of its own: workers know nothing of it, so none can
die between its work and its state. The first report of an end is stored, and stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from service.domain.values.errors import FailedPrecondition, PalimpsestError
from service.domain.values.reasons import Reason


class OperationKind(StrEnum):
    """What an operation does."""

    REBUILD = "rebuild"
    CONSOLIDATION = "consolidation"
    SCHEMA = "schema"
    SEAL = "seal"
    REDACTION = "redaction"


class OperationState(StrEnum):
    """How far an operation is."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: The states that never change.
ENDED = (OperationState.DONE, OperationState.FAILED, OperationState.CANCELLED)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationId:
    """An operation, as its tenant names it."""

    session_key: UUID
    #: For a schema the id of its draft.
    operation_id: UUID

    def __str__(self) -> str:
        return self.session_key.hex + self.operation_id.hex

    @classmethod
    def parse(cls, text: str) -> "OperationId | None":
        """Returns the id that `text` is; None when it is none."""
        try:
            parsed = cls(session_key=UUID(hex=text[:32]), operation_id=UUID(hex=text[32:]))
        except ValueError:
            return None
        return parsed if str(parsed) == text else None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationError:
    """Why an operation failed."""

    reason: str
    message: str
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, error: PalimpsestError) -> "OperationError":
        """Returns what a call would have been refused with."""
        return cls(reason=error.reason.value, message=error.message, metadata=error.metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationTarget:
    """How far a memory is."""

    #: As MemorySpec has it.
    has_whole_log: bool
    revision: int
    applied_position: int
    #: There is nothing to do with what is in the log.
    is_idle: bool
    consolidate_position: int | None
    #: A tree that is sealed.
    is_sealed: bool
    #: Why it waits for its model, or for a budget.
    blocked: str | None
    #: First position that it is stuck at, and why; None while it is active.
    stall: tuple[int, str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftFacts:
    """How far the generation of a schema is."""

    status: str
    failure: str
    #: A try has failed, or it waits for its model.
    has_begun: bool
    blocked: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionFacts:
    """How far the removal of what was derived from redacted chunks is."""

    #: The number of tombstones, which have no content from the beginning.
    chunks: int
    is_done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation as it is stored, and what it works on."""

    id: OperationId
    session: str
    kind: OperationKind
    memory_id: UUID | None
    memory: str
    goal: int
    created_at: datetime
    #: How it ended; None until that was reported.
    ended: OperationState | None
    error: OperationError | None
    ended_at: datetime | None
    #: None when it is deleted.
    facts: OperationTarget | DraftFacts | RedactionFacts | None

    @property
    def state(self) -> OperationState:
        """How far it is."""
        if self.ended is not None:
            return self.ended
        match self.facts:
            case None:
                return OperationState.CANCELLED
            case DraftFacts():
                return _state_of_draft(self.facts)
            case RedactionFacts():
                return OperationState.DONE if self.facts.is_done else OperationState.RUNNING
            case OperationTarget():
                return self._state_of_memory(self.facts)

    def _state_of_memory(self, facts: OperationTarget) -> OperationState:
        if self.kind is OperationKind.CONSOLIDATION:
            is_done = facts.consolidate_position is None
            has_begun = facts.applied_position >= self.goal
        elif self.kind is OperationKind.SEAL:
            is_done = facts.is_sealed
            has_begun = facts.applied_position > 0
        elif facts.has_whole_log:
            # What is recent stays out of its vectors, so being idle counts, or later chunks.
            is_done = facts.is_idle or facts.applied_position > self.goal
            has_begun = facts.revision > 0
        else:
            is_done = facts.applied_position >= self.goal
            has_begun = facts.applied_position > 0
        if is_done:
            return OperationState.DONE
        if facts.stall is not None:
            return OperationState.FAILED
        # One that waits for its model or for a budget has been tried.
        has_begun = has_begun or facts.blocked is not None
        return OperationState.RUNNING if has_begun else OperationState.PENDING

    def failure(self) -> OperationError | None:
        """Returns why it failed; None when it did not."""
        if self.error is not None or self.state is not OperationState.FAILED:
            return self.error
        if isinstance(self.facts, OperationTarget) and self.facts.stall is not None:
            position, cause = self.facts.stall
            error = FailedPrecondition(
                Reason.MEMORY_STALLED,
                f"memory {self.memory!r} stalled at position {position}: {cause};"
                " RetryMemory continues it",
                {"memory": self.memory, "position": position, "cause": cause},
            )
        else:
            cause = self.facts.failure if isinstance(self.facts, DraftFacts) else ""
            error = FailedPrecondition(
                Reason.SCHEMA_NOT_GENERATED,
                f"no schema was generated: {cause}",
                {"cause": cause},
            )
        return OperationError.of(error)


def _state_of_draft(facts: DraftFacts) -> OperationState:
    match facts.status:
        case "complete":
            return OperationState.DONE
        case "failed":
            return OperationState.FAILED
    return OperationState.RUNNING if facts.has_begun else OperationState.PENDING
