"""Decides what becomes of an appended batch, without a database.

Under the session's row lock the state of session and producer is known; `plan`
says which chunks are new and get which positions, which were sent before, and what
is refused. Storage only carries the plan out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.log.chunks import Chunk
from service.domain.values.errors import (
    AlreadyExists,
    Conflict,
    Exhausted,
    InvalidInput,
    NotFound,
    OutOfRange,
)
from service.domain.values.reasons import Reason

#: When a producer that ran into the backlog limit may try again.
BACKLOG_RETRY_SECONDS = 1.0
#: The producer of what is appended without one. No client can have its name.
SERVER_PRODUCER = ""
#: What requests of `SessionService.Append` are kept as.
APPEND = "Append"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRequest:
    """A request that a client may send again."""

    #: The session that it is about; the key of the empty name for the tenant as a whole.
    session_key: UUID
    #: The client's own name for it, unique within that session.
    request_id: str
    #: Name of the RPC, without its service.
    method: str
    #: SHA-256 of everything else in the request, 32 bytes.
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedChunk:
    """A chunk as a client sent it."""

    #: The producer's own number, 1 or more; 0 without a producer, until `plan` gives it one.
    sequence: int
    chunk: Chunk
    #: SHA-256 of the chunk, 32 bytes.
    digest: bytes
    #: Size of content and metadata, in bytes of UTF-8.
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Identifies an append without a producer, to recognise a repeat."""

    #: The client's own name for it, unique within the session.
    request_id: str
    #: SHA-256 of what is appended, 32 bytes.
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DoneRequest:
    """A request that was done, as it is kept."""

    #: Which method it called.
    method: str
    digest: bytes
    #: Where its chunks are.
    first_position: int
    last_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A batch of one producer: all of it is stored, or nothing."""

    session: str
    session_key: UUID
    #: SERVER_PRODUCER: the server numbers the chunks.
    producer_id: str
    epoch: int
    #: When set, the session's head must be this.
    expected_head: int | None
    #: At least one, with consecutive sequences.
    chunks: tuple[SubmittedChunk, ...]
    #: None: each repeat is stored, or its sequences identify it.
    request: Request | None = None
    #: The incarnation of the session that its stream was opened in; None without a stream.
    incarnation: int | None = None

    @property
    def has_producer(self) -> bool:
        """Whether the chunks have numbers of their sender."""
        return self.producer_id != SERVER_PRODUCER


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionState:
    """A session under its row lock."""

    head: int
    incarnation: int
    #: The least applied_position of its active memories, a tree that is being closed as if
    #: what it will not read were applied; the head when it has none.
    applied_position: int
    #: Whether what is appended is compared with texts that are kept out.
    keeps_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerState:
    """A producer under its session's row lock."""

    #: Highest epoch seen.
    epoch: int
    #: Highest sequence stored; 0 when there is none.
    last_sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedChunk:
    """A new chunk and its position."""

    position: int
    submitted: SubmittedChunk


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendPlan:
    """What becomes of a submission."""

    #: To be written, in order of position.
    placed: tuple[PlacedChunk, ...]
    #: Sent before: to be compared with what is stored, and acked again.
    repeated: tuple[SubmittedChunk, ...]
    #: The states after it.
    session: SessionState
    producer: ProducerState


def plan(
    submission: Submission,
    session: SessionState | None,
    producer: ProducerState | None,
    *,
    backlog_chunks: int,
) -> AppendPlan:
    """Decides what becomes of `submission`.

    Raises NotFound, Conflict (fenced, wrong head), OutOfRange (gap), Exhausted (backlog)
    or InvalidInput (more than any backlog has room for); then nothing of it is written.
    """
    if session is None:
        raise NotFound(
            Reason.SESSION_NOT_FOUND,
            f"there is no session {submission.session!r}",
            {"session": submission.session},
        )
    if submission.incarnation not in (None, session.incarnation):
        raise NotFound(
            Reason.SESSION_NOT_FOUND,
            f"session {submission.session!r} was deleted, and created anew, since this stream was"
            " opened; open another one",
            {"session": submission.session},
        )
    known = producer or ProducerState(epoch=submission.epoch, last_sequence=0)
    check_epoch(submission.producer_id, submission.epoch, known)
    check_head(submission.expected_head, session)
    if submission.has_producer:
        repeated = tuple(c for c in submission.chunks if c.sequence <= known.last_sequence)
        new = submission.chunks[len(repeated) :]
        _check_sequence(submission, known)
    else:
        repeated = ()
        new = _numbered(submission.chunks, known.last_sequence)
    if len(new) > backlog_chunks:
        # Not of the kind that passes: there is no room for it when nothing is behind either.
        raise InvalidInput(
            Reason.BATCH_TOO_LARGE,
            f"{len(new)} new chunks in a batch; memories may be {backlog_chunks} chunks"
            " behind: send smaller batches",
            {"chunks": len(new), "limit_chunks": backlog_chunks},
            field="chunks",
        )
    backlog = session.head - session.applied_position
    if new and backlog + len(new) > backlog_chunks:
        raise Exhausted(
            Reason.BACKLOG_FULL,
            f"the session's memories are {backlog} chunks behind; the limit is {backlog_chunks}:"
            " send it again after the delay",
            {"backlog": backlog, "limit": backlog_chunks},
            retry_seconds=BACKLOG_RETRY_SECONDS,
        )
    return AppendPlan(
        placed=tuple(
            PlacedChunk(position=session.head + offset, submitted=chunk)
            for offset, chunk in enumerate(new, start=1)
        ),
        repeated=repeated,
        session=replace(session, head=session.head + len(new)),
        producer=ProducerState(
            epoch=max(known.epoch, submission.epoch),
            last_sequence=new[-1].sequence if new else known.last_sequence,
        ),
    )


def check_epoch(producer_id: str, epoch: int, producer: ProducerState) -> None:
    """Raises Conflict when a stream with a higher epoch has taken the producer over."""
    if epoch < producer.epoch:
        raise Conflict(
            Reason.PRODUCER_FENCED,
            f"producer {producer_id!r} was taken over by epoch {producer.epoch}:"
            " open a stream of a higher one, or use an id of its own",
            {"producer": producer_id, "epoch": producer.epoch},
        )


def check_head(expected_head: int | None, session: SessionState) -> None:
    """Raises Conflict when the head is not the expected one."""
    if expected_head is not None and expected_head != session.head:
        raise Conflict(
            Reason.HEAD_MISMATCH,
            f"the session's head is {session.head}, not {expected_head}: read what is new,"
            " then decide",
            {"head": session.head, "expected_head": expected_head},
        )


def check_repeated(producer_id: str, sent: SubmittedChunk, is_equal: bool, position: int) -> None:
    """Raises AlreadyExists when a sequence was sent again with other content."""
    if not is_equal:
        raise AlreadyExists(
            Reason.SEQUENCE_CONTENT_CHANGED,
            f"another process uses this producer id, {producer_id!r}, or its numbers began anew:"
            f" sequence {sent.sequence} is stored at position {position} with other content."
            f" {_ONE_PROCESS}",
            {"producer": producer_id, "producer_sequence": sent.sequence, "position": position},
        )


def check_request(request: Request, done: DoneRequest) -> None:
    """Raises AlreadyExists when a request id was used before for something else."""
    refuse_other_content(
        request.request_id, (APPEND, request.digest), done=(done.method, done.digest)
    )


#: What to do where two processes are one producer.
_ONE_PROCESS = (
    "Give each process an id of its own, open the one that is to go on with a higher epoch,"
    " or append without a producer"
)


def _numbered(chunks: Sequence[SubmittedChunk], last: int) -> tuple[SubmittedChunk, ...]:
    """Returns the chunks with the sequences after `last`."""
    return tuple(replace(chunk, sequence=last + n) for n, chunk in enumerate(chunks, start=1))


def _check_sequence(submission: Submission, producer: ProducerState) -> None:
    first = submission.chunks[0].sequence
    expected = first if first <= producer.last_sequence else producer.last_sequence + 1
    for chunk in submission.chunks:
        if chunk.sequence != expected:
            raise OutOfRange(
                Reason.SEQUENCE_GAP,
                f"producer {submission.producer_id!r} sent sequence {chunk.sequence},"
                f" expected is {expected}. Send from {expected} on. If another process uses this"
                f" producer id: {_ONE_PROCESS[0].lower()}{_ONE_PROCESS[1:]}",
                {"expected": expected, "received": chunk.sequence},
            )
        expected += 1


def refuse_other_content(
    request_id: str, content: tuple[str, bytes], *, done: tuple[str, bytes]
) -> None:
    """Raises AlreadyExists when the id was used before for another method or content."""
    if content != done:
        method, _ = done
        raise AlreadyExists(
            Reason.REQUEST_CONTENT_CHANGED,
            f"request id {request_id!r} was used before, for other content."
            " Send a new request with an id of its own; a retry repeats id and content",
            {"request_id": request_id, "method": method},
        )
