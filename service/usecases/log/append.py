"""Appends what producers send, by group commit.

What waits while a commit is under way is written by the next one, across sessions
of a tenant; when nothing is under way a chunk is written at once. A session is in one
commit at a time, so that the batches of a producer keep their order. One that another
transaction has locked waits in a commit of its own.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import structlog
from opentelemetry.context import Context

from service.domain.log.appending import (
    ProducerState,
    SessionState,
    Submission,
    check_epoch,
    check_head,
)
from service.domain.log.read_tokens import ReadToken
from service.domain.log.redactions import keyed_digest
from service.domain.values.errors import Conflict, Exhausted, NotFound, PalimpsestError
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.settings.config import Limits
from service.usecases.log import append_traces, metrics
from service.usecases.log.append_group import AppendGroup, find_kept_out, read_repeated
from service.usecases.log.concurrency_limiter import BUSY_RETRY_SECONDS
from service.usecases.log.database_words import unavailable
from service.usecases.log.door import Door
from service.usecases.log.group_commit import GroupCommit, Later
from service.usecases.log.lookup import session_not_found
from service.usecases.log.metrics import Guard
from service.usecases.log.submissions import Appended, Opened, QueuedSubmission
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError, Unreachable, Violated
from storage.log import chunks as log
from storage.log import requests, sessions
from storage.log.redacting import Keyed

_log = structlog.get_logger("palimpsest.append")

#: Chunks that one commit writes at the most.
GROUP_CHUNKS = 1024
#: Sessions whose state a server remembers from its last commit.
REMEMBERED_SESSIONS = 10_000
#: Is called in the transaction of the first append to sessions that want a memory, before it.
FirstAppended = Callable[[Transaction, Sequence[UUID]], Awaitable[None]]
#: How often a group reads its request ids again that calls of other methods keep taking.
REQUEST_REREADS = 3


class Appender:
    """The group commit of one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        token_key: bytes,
        limits: Limits,
        first: FirstAppended | None = None,
    ) -> None:
        """`first` makes the default memories of sessions; None: they get none."""
        self._first = first
        self._database = database
        self._wake_ups = wake_ups
        self._token_key = token_key
        self._limits = limits
        self._commits: GroupCommit[QueuedSubmission, Appended] = GroupCommit(
            self._commit,
            key=lambda entry: entry.submission.session_key,
            size=lambda entry: len(entry.submission.chunks),
            max_size=GROUP_CHUNKS,
            is_shared=True,
            left=self._release,
        )
        self._door = Door(self._existing, self._let_in, self._release)
        #: What was received and is not written yet, in bytes.
        self._unwritten = 0
        #: Set while more may be received.
        self._room = asyncio.Event()
        self._room.set()
        #: Session and producer as our last commit left them: a guess, checked by the write.
        self._last: OrderedDict[log.ProducerKey, tuple[SessionState, ProducerState]] = OrderedDict()

    @property
    def unwritten_bytes(self) -> int:
        """Returns what was received and is not written yet, in bytes."""
        return self._unwritten

    async def open(
        self,
        tenant_id: UUID,
        *,
        session: str,
        producer_id: str,
        epoch: int,
        expected_head: int | None,
    ) -> Opened:
        """Opens a producer: fences off its lower epochs, and returns its last sequence.

        Raises NotFound or Conflict.
        """
        try:
            opened = await self._open(tenant_id, session, producer_id, epoch, expected_head)
        except NotFound:
            await self._door.slow_down()
            raise
        self._door.know(session_key(tenant_id, session))
        return opened

    async def _open(
        self,
        tenant_id: UUID,
        session: str,
        producer_id: str,
        epoch: int,
        expected_head: int | None,
    ) -> Opened:
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="append.open") as tx:
            stored = await sessions.lock_head(tx, key)
            if stored is None:
                raise session_not_found(session)
            seen = SessionState(
                head=stored.head, incarnation=stored.incarnation, applied_position=stored.head
            )
            try:
                check_head(expected_head, seen)
                state = await log.open_producer(tx, key, producer_id, epoch)
                check_epoch(producer_id, epoch, state)
            except Conflict as conflict:
                metrics.refused(conflict)
                raise
        return Opened(
            last_sequence=state.last_sequence, head=stored.head, incarnation=stored.incarnation
        )

    async def room(self) -> None:
        """Applies back-pressure: waits until more may be received."""
        await self._room.wait()

    def refuse_when_full(self) -> None:
        """Raises Exhausted when nothing more may be received."""
        if not self._room.is_set():
            limit = self._limits.max_unwritten_bytes
            raise Exhausted(
                Reason.TOO_MUCH_UNWRITTEN,
                f"this server has {limit} bytes or more that are not written yet: send it"
                " again after the delay",
                {"limit_bytes": limit},
                retry_seconds=BUSY_RETRY_SECONDS,
            )

    def submit(
        self, tenant_id: UUID, submission: Submission, *, parent: Context | None = None
    ) -> "asyncio.Future[Appended]":
        """Queues a submission; the future is done once it is durable or refused.

        Submissions of one producer are written in the order in which they come. One whose
        future is cancelled before its commit begins is not written. Its `send` span is a child
        of `parent`, else of the span under way, and what reads the chunks goes on from there.
        """
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        entry = QueuedSubmission(
            tenant_id, submission, done, append_traces.sent(submission, done, parent)
        )
        self._count(entry.size)
        self._door.come(entry)
        return done

    def _let_in(self, entry: QueuedSubmission) -> None:
        self._commits.add(entry.tenant_id, entry, entry.done, entry.trace)

    def _release(self, entry: QueuedSubmission) -> None:
        self._count(-entry.size)

    async def _existing(self, tenant_id: UUID, keys: Sequence[UUID]) -> Collection[UUID]:
        async with self._database.direct(tenant_id, name="append") as tx:
            return await sessions.existing(tx, keys)

    async def run(self) -> None:
        """Commits until it is cancelled."""
        try:
            await self._door.run()
        finally:
            await self._commits.close()

    def _count(self, size: int) -> None:
        self._unwritten += size
        if self._unwritten < self._limits.max_unwritten_bytes:
            self._room.set()
        else:
            self._room.clear()

    async def _commit(
        self, tenant_id: UUID, entries: Sequence[QueuedSubmission]
    ) -> Sequence[Appended | Exception | Later]:
        """Writes a group; returns the result of each of its entries."""
        rereads = 0
        while True:
            try:
                async with self._database.direct(tenant_id, name="append.group") as tx:
                    group = await self._write(tx, entries)
                return [self._result(entry, group) for entry in entries]
            except StorageError as error:
                if rereads == REQUEST_REREADS or not requests.is_done(error):
                    return self._refused(entries, error)
                # A call of another method took one of these ids after they were read. Read
                # again it refuses that request alone.
                rereads += 1
            except Exception:
                _log.exception("group commit failed")
                raise

    def _refused(
        self, entries: Sequence[QueuedSubmission], error: StorageError
    ) -> Sequence[Exception]:
        """Returns a refusal for each entry. Raises the error where one session may be its cause."""
        sessions_of = {entry.submission.session_key for entry in entries}
        if len(sessions_of) > 1 and not isinstance(error, Unreachable):
            raise error
        _log.warning("append not written", cause=str(error), submissions=len(entries))
        # A key that refuses what the plan allowed is a defect, and is reported as one.
        return [error if isinstance(error, Violated) else unavailable(error)] * len(entries)

    async def _write(self, tx: Transaction, entries: Sequence[QueuedSubmission]) -> AppendGroup:
        group = await self._append_fast_path(tx, entries) or await self._write_locked(tx, entries)
        for producer, state in group.producers.items():
            self._last[producer] = (group.sessions[producer[0]], state)
            self._last.move_to_end(producer)
        while len(self._last) > REMEMBERED_SESSIONS:
            self._last.popitem(last=False)
        return group

    async def _append_fast_path(
        self, tx: Transaction, entries: Sequence[QueuedSubmission]
    ) -> AppendGroup | None:
        """Writes a small group of one producer on a guess; returns None when it cannot."""
        producer = entries[0].producer
        last = self._last.pop(producer, None)
        if last is None or any(entry.producer != producer for entry in entries):
            return None
        session, known = last
        if not session.head or session.keeps_out:
            # The first append may have to make a memory; others are compared with rules.
            return None
        group = AppendGroup(
            sessions={producer[0]: session},
            producers={producer: known},
            stored={},
            keyed=self._keyed(tx.tenant_id),
        )
        try:
            for entry in entries:
                group.add(entry, self._limits.backlog_chunks)
        except (PalimpsestError, KeyError):
            # A resend or a refusal: to be judged by the rows, not by a guess.
            return None
        if not group.is_small() or group.producers[producer].epoch != known.epoch:
            return None
        written = await log.append_fast_path(
            replace(tx, name="append.fast"),
            *(group.chunks, session, known, group.new_requests, group.traced),
        )
        if written is None:
            metrics.kept(Guard.APPEND_GUESS)
            return None
        head = group.sessions[producer[0]].head
        applied = head if written.applied_position is None else written.applied_position
        group.sessions[producer[0]] = replace(group.sessions[producer[0]], applied_position=applied)
        self._wake_ups.add(written.woken)
        return group

    async def _write_locked(
        self, tx: Transaction, entries: Sequence[QueuedSubmission]
    ) -> AppendGroup:
        producers = list(dict.fromkeys(entry.producer for entry in entries))
        wanted = list(dict.fromkeys(one.request for one in entries if one.request))
        # A lock of another transaction on one of several sessions does not delay the others.
        is_one = len({key for key, _ in producers}) == 1
        locked = await log.lock(tx, producers, wanted, waits=is_one)
        if not is_one:
            entries = [one for one in entries if one.producer[0] in locked.sessions]
        keyed = self._keyed(tx.tenant_id)
        group = AppendGroup(
            sessions=dict(locked.sessions),
            producers=dict(locked.producers),
            stored=await read_repeated(tx, entries, locked),
            keyed=keyed,
            kept_out=await find_kept_out(tx, entries, locked.keeping_out, keyed),
            requests=dict(locked.requests),
        )
        for entry in entries:
            try:
                group.add(entry, self._limits.backlog_chunks)
            except PalimpsestError as refusal:
                if isinstance(refusal, NotFound):
                    self._door.forget(entry.submission.session_key)
                metrics.refused(refusal)
                group.refused[entry.done] = refusal
        begun = group.appended_to(locked.unbegun)
        if begun and self._first is not None:
            await self._first(tx, begun)
        woken = await log.write(tx, *group.writes()) if group.has_writes() else ()
        await tx.commit()
        self._wake_ups.add(woken)
        return group

    def _keyed(self, tenant_id: UUID) -> Keyed:
        return partial(keyed_digest, self._token_key, tenant_id)

    def _result(
        self, entry: QueuedSubmission, group: AppendGroup
    ) -> Appended | PalimpsestError | Later:
        if entry.done in group.refused:
            return group.refused[entry.done]
        if entry.done not in group.accepted:
            return Later.LATER
        first_position, position = group.accepted[entry.done]
        submission = entry.submission
        token = ReadToken(
            session_key=submission.session_key,
            incarnation=group.sessions[submission.session_key].incarnation,
            position=position,
        )
        return Appended(
            sequence=submission.chunks[-1].sequence if submission.has_producer else 0,
            first_position=first_position,
            position=position,
            token=token.sign(self._token_key),
        )
