"""Collects what one transaction of a group commit writes: submissions, and states after them."""

from asyncio import Future
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from service.domain.log.appending import (
    APPEND,
    DoneRequest,
    PlacedChunk,
    ProducerState,
    SessionState,
    check_repeated,
    check_request,
    plan,
)
from service.domain.log.chunks import Chunk
from service.domain.log.keeping_out import KeepOutRules
from service.domain.values.errors import PalimpsestError
from service.llm.offloading import beside
from service.usecases.log import metrics
from service.usecases.log.metrics import Guard
from service.usecases.log.submissions import Appended, QueuedSubmission
from storage.engine.database import Transaction
from storage.engine.trace_contexts import Traced
from storage.log import chunks as log
from storage.log import keeping_out
from storage.log.chunks import StoredDigest
from storage.log.redacting import Keyed
from storage.log.requests import RequestKey

#: A group of one producer up to this size is written in one round trip, unless another one
#: has written to its session since.
FAST_PATH_CHUNKS = 8
FAST_PATH_BYTES = 32 * 1024

#: Session, producer and sequence of a chunk.
_Place = tuple[UUID, str, int]


@dataclass(slots=True)
class AppendGroup:
    """What one transaction is about to write: the states as they will be after it."""

    sessions: dict[UUID, SessionState]
    producers: dict[log.ProducerKey, ProducerState]
    #: Position and digest of the chunks that were sent before, or are written now.
    stored: dict[_Place, StoredDigest]
    #: Returns the keyed digest of a digest, by which repeats of redacted chunks are recognised.
    keyed: Keyed
    #: The redactions of chunks that are kept out of their sessions, by session and digest.
    kept_out: Mapping[tuple[UUID, bytes], UUID] = field(default_factory=dict)
    #: Requests that were done before, or are done now; the latter are in `new_requests`, too.
    requests: dict[RequestKey, DoneRequest] = field(default_factory=dict)
    new_requests: dict[RequestKey, DoneRequest] = field(default_factory=dict)
    #: First and last position of each submission that is in it, by its future.
    accepted: dict[Future[Appended], tuple[int, int]] = field(default_factory=dict)
    refused: dict[Future[Appended], PalimpsestError] = field(default_factory=dict)
    chunks: list[log.NewChunk] = field(default_factory=list)
    #: Where the chunks of sampled appends are.
    traced: list[Traced] = field(default_factory=list)
    #: Producers whose epoch is raised, with chunks or without.
    raised: dict[log.ProducerKey, None] = field(default_factory=dict)

    def add(self, entry: QueuedSubmission, backlog_chunks: int) -> None:
        """Adds a submission, or raises why it is refused and stays as it was."""
        submission = entry.submission
        key = submission.session_key
        if self._was_done(entry):
            return
        planned = plan(
            submission,
            self.sessions.get(key),
            self.producers.get(entry.producer),
            backlog_chunks=backlog_chunks,
        )
        for sent in planned.repeated:
            stored = self.stored[(*entry.producer, sent.sequence)]
            digest = self.keyed(sent.digest) if stored.is_redacted else sent.digest
            check_repeated(submission.producer_id, sent, stored.digest == digest, stored.position)
            metrics.kept(Guard.APPEND_REPEAT)
        known = self.producers.get(entry.producer)
        if known is not None and planned.producer.epoch > known.epoch:
            self.raised[entry.producer] = None
        for new in [self._new(entry, placed) for placed in planned.placed]:
            place = (*entry.producer, new.placed.submitted.sequence)
            self.stored[place] = StoredDigest(
                position=new.placed.position,
                digest=new.placed.submitted.digest,
                is_redacted=new.redaction_id is not None,
            )
            self.chunks.append(new)
        if entry.trace is not None and planned.placed:
            self.traced.append(
                Traced(
                    session_key=key,
                    from_position=planned.placed[0].position,
                    to_position=planned.placed[-1].position,
                    context=entry.trace,
                )
            )
        self.sessions[key] = planned.session
        self.producers[entry.producer] = planned.producer
        sent_all = (*planned.repeated, *(placed.submitted for placed in planned.placed))
        first = self.stored[(*entry.producer, sent_all[0].sequence)].position
        last = self.stored[(*entry.producer, sent_all[-1].sequence)].position
        self.accepted[entry.done] = (first, last)
        if entry.request and submission.request:
            digest = submission.request.digest
            if any(self.stored[(*entry.producer, one.sequence)].is_redacted for one in sent_all):
                digest = self.keyed(digest)
            self.requests[entry.request] = self.new_requests[entry.request] = DoneRequest(
                method=APPEND,
                digest=digest,
                first_position=first,
                last_position=last,
            )

    def _new(self, entry: QueuedSubmission, placed: PlacedChunk) -> log.NewChunk:
        """Returns a chunk to be written: a tombstone where it is kept out of the session."""
        sent = placed.submitted
        redaction_id = self.kept_out.get((entry.submission.session_key, sent.digest))
        if redaction_id is not None:
            empty = Chunk(kind=sent.chunk.kind, observed_first=None, is_redacted=True)
            sent = replace(sent, chunk=empty, digest=self.keyed(sent.digest), size_bytes=0)
            placed = replace(placed, submitted=sent)
        return log.NewChunk(producer=entry.producer, placed=placed, redaction_id=redaction_id)

    def _was_done(self, entry: QueuedSubmission) -> bool:
        """Accepts a submission whose request was done before; returns whether it was.

        Raises AlreadyExists when that was another request.
        """
        request = entry.submission.request
        done = self.requests.get(entry.request) if entry.request else None
        if request is None or done is None:
            return False
        # With redacted chunks among its own, it is stored with a keyed digest.
        is_keyed = done.digest == self.keyed(request.digest)
        check_request(request, replace(done, digest=request.digest) if is_keyed else done)
        metrics.kept(Guard.APPEND_REQUEST)
        self.accepted[entry.done] = (done.first_position, done.last_position)
        return True

    def is_small(self) -> bool:
        """Returns whether it fits one round trip."""
        size = sum(chunk.placed.submitted.size_bytes for chunk in self.chunks)
        return 0 < len(self.chunks) <= FAST_PATH_CHUNKS and size <= FAST_PATH_BYTES

    def has_writes(self) -> bool:
        """Returns whether there is anything new in it, be it only an epoch."""
        return bool(self.chunks or self.raised)

    def appended_to(self, sessions: Collection[UUID]) -> Sequence[UUID]:
        """Returns those of `sessions` that get chunks."""
        if not sessions:
            return ()
        keys = {new.producer[0] for new in self.chunks}
        return [key for key in sessions if key in keys]

    def writes(
        self,
    ) -> tuple[
        list[log.NewChunk],
        dict[UUID, int],
        dict[log.ProducerKey, ProducerState],
        dict[RequestKey, DoneRequest],
        list[Traced],
    ]:
        """Returns the chunks, heads, producers, requests and contexts for `log.write`."""
        grown = dict.fromkeys(chunk.producer for chunk in self.chunks)
        return (
            self.chunks,
            {key: self.sessions[key].head for key, _ in grown},
            {producer: self.producers[producer] for producer in {**grown, **self.raised}},
            self.new_requests,
            self.traced,
        )


async def read_repeated(
    tx: Transaction, entries: Sequence[QueuedSubmission], locked: log.Locked
) -> dict[_Place, StoredDigest]:
    """Returns the position and digest of the chunks in `entries` that were stored before."""
    unknown = ProducerState(epoch=0, last_sequence=0)
    wanted = [
        (*entry.producer, chunk.sequence)
        for entry in entries
        if entry.submission.has_producer
        for chunk in entry.submission.chunks
        if chunk.sequence <= locked.producers.get(entry.producer, unknown).last_sequence
    ]
    return dict(await log.read_repeated(tx, wanted)) if wanted else {}


async def find_kept_out(
    tx: Transaction, entries: Sequence[QueuedSubmission], sessions: Collection[UUID], keyed: Keyed
) -> Mapping[tuple[UUID, bytes], UUID]:
    """Returns which chunks of `entries` are kept out of these sessions, as in AppendGroup."""
    if not sessions:
        return {}
    rules = await keeping_out.read(tx, sessions)
    return await beside(_kept_out, entries, rules, keyed)


def _kept_out(
    entries: Sequence[QueuedSubmission], rules: Mapping[UUID, KeepOutRules], keyed: Keyed
) -> Mapping[tuple[UUID, bytes], UUID]:
    """Compares chunks with rules, which takes long where both are many."""
    found = {}
    for submission in (one.submission for one in entries if one.submission.session_key in rules):
        key = submission.session_key
        for sent in submission.chunks:
            if (redaction := rules[key].find(sent.chunk, keyed)) is not None:
                found[key, sent.digest] = redaction
    return found
