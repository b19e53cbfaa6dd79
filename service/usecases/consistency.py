"""Consistency of reads: what a caller must see, and waiting until it is there."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

import structlog

from service.config import Limits
from service.domain.errors import (
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidInput,
    Unavailable,
)
from service.domain.read_tokens import ReadToken, TokenInvalid
from service.domain.reasons import Reason
from service.domain.work import WorkItem
from service.usecases import guard_meters
from service.usecases.listening import Found, Listener, Told, look
from service.usecases.waiting import WaitingRoom
from storage import settling, work
from storage.database import Database
from storage.errors import StorageError
from storage.memories import StoredMemory
from storage.work import Progress

_log = structlog.get_logger("palimpsest.consistency")

#: How often all waiting reads of a process are looked after, with one query each
#: for memories and for each kind of what is made on demand.
WATCH_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """How fresh a read must be; neither set means as it is."""

    #: A token from an ack or a write.
    at_least: str | None = None
    #: Everything in the log when the read arrives.
    fully_applied: bool = False

    def wanted_position(
        self, token_key: bytes, session_key: UUID, *, head: int, incarnation: int
    ) -> int:
        """The position that must be applied. Raises InvalidInput for a wrong token."""
        if self.fully_applied:
            return head
        if self.at_least is None:
            return 0
        try:
            token = ReadToken.verify(token_key, self.at_least)
        except TokenInvalid as error:
            raise _token_invalid("it was not issued by this service, or altered") from error
        if token.session_key != session_key:
            raise _token_invalid("it belongs to another session")
        if token.incarnation != incarnation or token.position > head:
            raise _token_invalid("it is of a history that this session does not have")
        return token.position


def _token_invalid(why: str) -> InvalidInput:
    invalid = InvalidInput(
        Reason.TOKEN_INVALID,
        f"the consistency token cannot be used: {why}",
        field="consistency.at_least",
    )
    guard_meters.refused(invalid)
    return invalid


def progress_of(stored: StoredMemory) -> Progress:
    """How far a memory was when its row was read."""
    return Progress(
        revision=stored.revision,
        applied_position=stored.applied_position,
        head=stored.head,
        stall_cause=None if stored.stall is None else stored.stall.cause,
        stall_position=0 if stored.stall is None else stored.stall.position,
        held_reason=stored.held_reason,
        seal_position=stored.seal_position,
        rests=stored.rests,
        waiting_cause=stored.waiting_cause,
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
            f" it will never have position {wanted}",
            {
                "memory": memory,
                "wanted": wanted,
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


def not_applied_in_time(
    memory: str,
    wanted: int,
    applied_position: int,
    revision: int,
    waiting_cause: str | None = None,
) -> DeadlineExceeded:
    """The error of a read whose deadline came first."""
    why = "" if waiting_cause is None else f"; it waits for its model: {waiting_cause}"
    cause = {} if waiting_cause is None else {"cause": waiting_cause}
    late = DeadlineExceeded(
        Reason.NOT_APPLIED_IN_TIME,
        f"memory {memory!r} is applied up to position {applied_position}, not yet {wanted}{why}",
        {"wanted": wanted, "applied_position": applied_position, "revision": revision, **cause},
    )
    guard_meters.refused(late)
    return late


_Key = tuple[UUID, UUID]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What one look found."""

    progress: dict[_Key, Progress] = field(default_factory=dict)
    settled: set[WorkItem] = field(default_factory=set)
    #: What there is for those who listen to answers.
    told: dict[Listener, Found] = field(default_factory=dict)


class Watcher:
    """Waits for memories, answers and schemas on behalf of all calls of a process.

    Every wait raises Unavailable once the process stops.
    """

    def __init__(self, database: Database, *, reads: int = Limits().max_waiting_reads) -> None:
        """At most `reads` reads wait at once; asks and watches have bounds of their own."""
        self._database = database
        #: Where reads wait that are to see what a memory does not have yet.
        self._reads = WaitingRoom(reads, reason=Reason.TOO_MANY_READS, who="reads")
        #: How many wait, by tenant and key.
        self._memories: dict[tuple[UUID, _Key], int] = {}
        #: How many wait for an answer or a schema.
        self._made: dict[WorkItem, int] = {}
        #: Those who hear answers as they are made.
        self._listeners: set[Listener] = set()
        self._seen = _Seen()
        self._somebody = asyncio.Event()
        self._looked = asyncio.Condition()
        self._stopped = False

    async def stop(self) -> None:
        """Ends all that wait, and whoever begins to: another server is to be asked."""
        async with self._looked:
            self._stopped = True
            self._looked.notify_all()

    async def progress(
        self, tenant_id: UUID, key: _Key, *, deadline: float | None
    ) -> AsyncGenerator[Progress]:
        """How far the memory is, now and at each change, until the deadline.

        `deadline` is in the event loop's time; None never ends.
        """
        last: Progress | None = None
        with _Registered(self._memories, (tenant_id, key), self._somebody):
            async for _ in self._looks(deadline):
                seen = self._seen.progress.get(key)
                if seen is not None and seen != last:
                    last = seen
                    yield seen

    async def progress_of_read(
        self, tenant_id: UUID, key: _Key, *, deadline: float | None
    ) -> AsyncGenerator[Progress]:
        """As `progress`, for a read that waits. Raises Exhausted where too many do."""
        with self._reads.place():
            async with aclosing(self.progress(tenant_id, key, deadline=deadline)) as seen:
                async for progress in seen:
                    yield progress

    async def settled(self, item: WorkItem, *, deadline: float | None) -> bool:
        """Waits until the item is settled; False when the deadline came first."""
        with _Registered(self._made, item, self._somebody):
            async for _ in self._looks(deadline):
                if item in self._seen.settled:
                    return True
        return False

    async def told(self, listener: Listener, *, deadline: float | None) -> AsyncGenerator[Told]:
        """The events of an answer, and its text if wanted, as they are written.

        The last one says that the answer has ended; without that the deadline came first.
        Any number of listeners may hear the same answer, each at its own pace.
        """
        item = listener.item
        self._listeners.add(listener)
        try:
            with _Registered(self._made, item, self._somebody):
                async for _ in self._looks(deadline):
                    seen = self._seen
                    told = listener.take(seen.told, settled=item in seen.settled)
                    if told.events or told.pieces or told.settled:
                        # Nobody looks for more before this was taken: a caller that does not
                        # read its stream would have all that it has not heard read for it,
                        # at every look that the others wait for.
                        self._listeners.discard(listener)
                        yield told
                        self._listeners.add(listener)
                    if told.settled:
                        return
        finally:
            self._listeners.discard(listener)

    async def _looks(self, deadline: float | None) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        while deadline is None or loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline), self._looked:
                    if not self._stopped:
                        await self._looked.wait()
            except TimeoutError:
                return
            if self._stopped:
                raise Unavailable(Reason.SERVER_STOPPING, "this server is stopping")
            yield

    async def run(self) -> None:
        """Looks after those who wait until it is cancelled."""
        while True:
            await self._somebody.wait()
            try:
                self._seen = await self._look()
            except StorageError as error:
                # Those who wait go on until their deadlines.
                self._seen = _Seen()
                _log.warning("cannot look after waiting reads", cause=str(error))
            except Exception:
                # The loop must outlive a defect: else nobody who waits would be looked after
                # any more, in this process.
                self._seen = _Seen()
                _log.exception("cannot look after waiting reads")
            async with self._looked:
                self._looked.notify_all()
            if not self._memories and not self._made:
                self._somebody.clear()
            await asyncio.sleep(WATCH_SECONDS)

    async def _look(self) -> "_Seen":
        seen = _Seen()
        tenants = {tenant for tenant, _ in self._memories} | {i.tenant_id for i in self._made}
        for tenant_id in tenants:
            memories = [key for tenant, key in self._memories if tenant == tenant_id]
            made = [item for item in self._made if item.tenant_id == tenant_id]
            async with self._database.transaction(tenant_id) as tx:
                if memories:
                    seen.progress.update(await work.read_progress(tx, memories))
                if made:
                    seen.settled.update(await settling.settled(tx, made))
                listening = [one for one in self._listeners if one.item.tenant_id == tenant_id]
                if listening:
                    # Behind that look, so that no event is missed of what is settled.
                    seen.told.update(await look(tx, listening))
        return seen


_Awaited = TypeVar("_Awaited")


class _Registered(Generic[_Awaited]):
    """Counts a waiting call for as long as it waits."""

    def __init__(
        self,
        counts: dict[_Awaited, int],
        key: _Awaited,
        somebody: asyncio.Event,
    ) -> None:
        self._counts = counts
        self._key = key
        self._somebody = somebody

    def __enter__(self) -> None:
        self._counts[self._key] = self._counts.get(self._key, 0) + 1
        self._somebody.set()

    def __exit__(self, *_: object) -> None:
        self._counts[self._key] -= 1
        if not self._counts[self._key]:
            del self._counts[self._key]
