"""Checks the consistency of reads, and words the errors of reads that cannot have it."""

from dataclasses import dataclass
from uuid import UUID

from service.domain.log.read_tokens import ReadToken, TokenInvalid
from service.domain.values.errors import (
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidInput,
)
from service.domain.values.reasons import Reason
from service.usecases.log import metrics
from storage.memories.memories import StoredMemory
from storage.memories.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """How fresh a read must be: by neither it reads what is there, by both it waits for both."""

    #: A token from an ack or a write; empty or None: none.
    at_least: str | None = None
    #: Everything in the log when the read arrives.
    fully_applied: bool = False

    def wanted_position(
        self, token_key: bytes, session_key: UUID, *, head: int, incarnation: int
    ) -> int:
        """Returns the position that must be applied. Raises InvalidInput for a wrong token."""
        if not self.at_least:
            return head if self.fully_applied else 0
        try:
            token = ReadToken.verify(token_key, self.at_least)
        except TokenInvalid as error:
            raise _token_invalid(_NOT_OURS) from error
        if token.session_key != session_key:
            # In the same words: another tenant's session is as one that never existed.
            raise _token_invalid(_NOT_OURS)
        if token.incarnation != incarnation or token.position > head:
            raise _token_invalid("it is of a history that this session does not have")
        return head if self.fully_applied else token.position


_NOT_OURS = "it was not issued by this service for this session, or was altered"


def _token_invalid(why: str) -> InvalidInput:
    invalid = InvalidInput(
        Reason.TOKEN_INVALID,
        f"the consistency token cannot be used: {why}. Read without it, or with"
        " one of a later reply",
        field="consistency.at_least",
    )
    metrics.refused(invalid)
    return invalid


def progress_of(stored: StoredMemory) -> Progress:
    """Returns how far a memory was when its row was read."""
    return Progress(
        revision=stored.revision,
        applied_position=stored.applied_position,
        stall_cause=None if stored.stall is None else stored.stall.cause,
        stall_position=0 if stored.stall is None else stored.stall.position,
        held_reason=stored.held_reason,
        seal_position=stored.seal_position,
        is_idle=stored.is_idle,
        waiting_cause=stored.waiting_cause,
        created_at=stored.created_at,
    )


def refuse_stopped(memory: str, wanted: int, progress: Progress) -> None:
    """Raises FailedPrecondition when the memory gave up before `wanted`, or is a tree that
    is closed before it, Exhausted when a budget holds it there."""
    if progress.applied_position >= wanted:
        return
    if progress.seal_position is not None and progress.seal_position < wanted:
        raise FailedPrecondition(
            Reason.MEMORY_SEALED,
            f"tree {memory!r} is closed at position {progress.seal_position}:"
            f" it will never have position {wanted}. Read it as it is",
            {
                "memory": memory,
                "position": wanted,
                "applied_position": progress.applied_position,
            },
        )
    if progress.held_reason is not None:
        raise Exhausted(
            Reason.BUDGET_EXHAUSTED,
            f"memory {memory!r} is held: {progress.held_reason}",
            {"memory": memory, "cause": progress.held_reason},
            retry_seconds=0,
        )
    if progress.stall_cause is None:
        return
    raise FailedPrecondition(
        Reason.MEMORY_STALLED,
        f"memory {memory!r} stalled at position {progress.stall_position}: {progress.stall_cause}",
        {
            "memory": memory,
            "position": progress.stall_position,
            "cause": progress.stall_cause,
        },
    )


def not_applied_in_time(memory: str, wanted: int, progress: Progress) -> DeadlineExceeded:
    """Returns the error of a read whose deadline came first."""
    applied, waits_for = progress.applied_position, progress.waiting_cause
    why = "" if waits_for is None else f"; it waits for its model: {waits_for}"
    cause = {} if waits_for is None else {"cause": waits_for}
    late = DeadlineExceeded(
        Reason.NOT_APPLIED_IN_TIME,
        f"memory {memory!r} is applied up to position {applied}, not yet {wanted}{why}."
        " Read again with a longer deadline, or as it is",
        {"position": wanted, "applied_position": applied, "revision": progress.revision, **cause},
    )
    metrics.refused(late)
    return late
