"""Queues of appends: what waits for its commit, in the order in which it came."""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from opentelemetry.trace import SpanContext

from service.domain.log.appending import Submission
from storage.log import chunks as log
from storage.log.requests import RequestKey

#: Chunks that one commit writes at the most.
GROUP_CHUNKS = 1024
#: Sessions of a queue that may go on beside it: the commit of each has a connection.
MAX_BESIDE = 2
#: What a chunk counts as, in bytes, besides content and metadata, while it waits for its commit.
CHUNK_BYTES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """Where a producer stands."""

    #: Highest sequence that is durable; 0 when there is none.
    last_sequence: int
    #: The session's head.
    head: int
    #: The session's.
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """A submission that is durable."""

    #: Its last sequence; 0 without a producer.
    sequence: int
    #: Position of its first chunk.
    first_position: int
    #: That of its last chunk.
    position: int
    #: Stands for the log up to `position`.
    token: str


@dataclass(frozen=True, slots=True)
class QueuedSubmission:
    """A submission that waits for its commit."""

    tenant_id: UUID
    submission: Submission
    done: asyncio.Future[Appended]
    #: Of its `send` span, if that is sampled.
    trace: SpanContext | None = None

    @property
    def producer(self) -> log.ProducerKey:
        """Session and producer."""
        return (self.submission.session_key, self.submission.producer_id)

    @property
    def request(self) -> RequestKey | None:
        """Session and request id; None when it came by none."""
        request = self.submission.request
        return None if request is None else (self.submission.session_key, request.request_id)

    @property
    def size(self) -> int:
        """What it counts as while it waits, in bytes."""
        chunks = self.submission.chunks
        return sum(chunk.size_bytes for chunk in chunks) + len(chunks) * CHUNK_BYTES

    def refuse(self, error: BaseException) -> None:
        """Tells whoever waits why it is not written."""
        if not self.done.done():
            self.done.set_exception(error)
            # The stream may be gone before anybody asks.
            self.done.exception()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A submission that is acked once its group is committed, and where its chunks are."""

    entry: QueuedSubmission
    first_position: int
    last_position: int


def by_session(entries: Sequence[QueuedSubmission]) -> list[list[QueuedSubmission]]:
    """The entries of each session, in their order."""
    parts: dict[UUID, list[QueuedSubmission]] = {}
    for entry in entries:
        parts.setdefault(entry.submission.session_key, []).append(entry)
    return list(parts.values())


class AppendQueue:
    """Submissions waiting for their commit."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedSubmission] = deque()
        #: Sessions whose commit goes on beside the queue, and what waits behind that.
        self._beside: dict[UUID, list[QueuedSubmission]] = {}
        self._some = asyncio.Event()

    def put(self, entry: QueuedSubmission) -> None:
        """Queues an entry."""
        self._waiting.append(entry)
        self._some.set()

    def has_room(self, sessions: Collection[UUID]) -> bool:
        """Whether these sessions may go on beside the queue."""
        return len(self._beside) + len(sessions) <= MAX_BESIDE

    def leave(self, sessions: Collection[UUID]) -> None:
        """Keeps what comes for these sessions back, so that its order stays."""
        self._beside.update({key: [] for key in sessions})

    def come_back(self, sessions: Collection[UUID], left: Sequence[QueuedSubmission] = ()) -> None:
        """Takes these sessions into the queue again, with what is left and what came meanwhile."""
        kept = [*left, *(entry for key in sessions for entry in self._beside.pop(key))]
        # In front: what came behind it may wait in the queue already.
        self._waiting.extendleft(reversed(kept))
        if kept:
            self._some.set()

    def free(self, entries: Sequence[QueuedSubmission]) -> list[QueuedSubmission]:
        """Those whose sessions are in the queue; the others wait for theirs."""
        free: list[QueuedSubmission] = []
        for entry in entries:
            self._beside.get(entry.submission.session_key, free).append(entry)
        return free

    async def take(self) -> list[QueuedSubmission]:
        """Everything that waits, up to GROUP_CHUNKS; waits until there is something."""
        await self._some.wait()
        taken = [self._waiting.popleft()]
        chunks = len(taken[0].submission.chunks)
        while self._waiting:
            chunks += len(self._waiting[0].submission.chunks)
            if chunks > GROUP_CHUNKS:
                break
            taken.append(self._waiting.popleft())
        if not self._waiting:
            self._some.clear()
        return taken
