"""Defines what is appended: a submission that waits for its commit, and its results."""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from opentelemetry.trace import SpanContext

from service.domain.log.appending import Submission
from storage.log import chunks as log
from storage.log.requests import RequestKey

#: What a chunk counts as, in bytes, besides content and metadata, while it waits for its commit.
CHUNK_BYTES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The position of a producer."""

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
    #: The context of its `send` span, if that is sampled.
    trace: SpanContext | None = None

    @property
    def producer(self) -> log.ProducerKey:
        """Returns session and producer."""
        return (self.submission.session_key, self.submission.producer_id)

    @property
    def request(self) -> RequestKey | None:
        """Returns session and request id; None without a request id."""
        request = self.submission.request
        return None if request is None else (self.submission.session_key, request.request_id)

    @property
    def size(self) -> int:
        """Returns what it counts as while it waits, in bytes."""
        chunks = self.submission.chunks
        return sum(chunk.size_bytes for chunk in chunks) + len(chunks) * CHUNK_BYTES
