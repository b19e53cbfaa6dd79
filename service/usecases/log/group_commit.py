"""Group commit: what waits while a commit is under way is written by the next one.

One tenant a group. When nothing is under way an entry is written at once, so that nobody
waits for company; one that fails does not take the others of its group with it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

from opentelemetry.trace import SpanContext

from service.telemetry import tracing
from storage.engine.errors import StorageError, Unreachable

Entry = TypeVar("Entry")
Result = TypeVar("Result")

#: Entries of one group at the most.
GROUP_ENTRIES = 64
#: GroupCommit of a tenant under way at once: while one waits for a lock, the others go on.
GROUPS = 2


@dataclass(slots=True)
class _QueuedEntry(Generic[Entry, Result]):
    entry: Entry
    done: "asyncio.Future[Result]"
    #: The span that it was put in, if that is sampled.
    trace: SpanContext | None


@dataclass(slots=True)
class _TenantQueue(Generic[Entry, Result]):
    """What waits of one tenant, and how many groups of it are under way."""

    waiting: "deque[_QueuedEntry[Entry, Result]]" = field(default_factory=deque)
    running: int = 0


class GroupCommit(Generic[Entry, Result]):
    """Writes entries in groups, one transaction each."""

    def __init__(
        self,
        write: Callable[[UUID, Sequence[Entry]], Awaitable[Sequence[Result]]],
        *,
        abandoned: Callable[[UUID, Sequence[tuple[Entry, Result]]], Awaitable[None]] | None = None,
    ) -> None:
        """`write` writes a group, in one transaction, and gives its results in its order.

        `abandoned` is told what was written of entries that nobody waits for any more.
        """
        self._write = write
        self._abandoned = abandoned
        self._queues: dict[UUID, _TenantQueue[Entry, Result]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, tenant_id: UUID, entry: Entry) -> Result:
        """The result of `entry`, once it is written. Raises what writing it raises."""
        queue = self._queues.setdefault(tenant_id, _TenantQueue())
        waiting: _QueuedEntry[Entry, Result] = _QueuedEntry(
            entry, asyncio.get_running_loop().create_future(), tracing.sampled()
        )
        queue.waiting.append(waiting)
        if queue.running < GROUPS:
            queue.running += 1
            # It writes what others put as well: nothing of it is about this entry.
            task = asyncio.create_task(self._serve(tenant_id, queue), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiting.done

    async def _serve(self, tenant_id: UUID, queue: _TenantQueue[Entry, Result]) -> None:
        try:
            while group := _take(queue):
                await self._commit(tenant_id, group)
        finally:
            queue.running -= 1
            if not queue.running and not queue.waiting:
                self._queues.pop(tenant_id, None)

    async def _commit(self, tenant_id: UUID, group: Sequence[_QueuedEntry[Entry, Result]]) -> None:
        try:
            # Of a transaction for several traces, the first one's has it.
            with tracing.within(next((one.trace for one in group if one.trace), None)):
                results = await self._write(tenant_id, [one.entry for one in group])
        except StorageError as error:
            if len(group) > 1 and not isinstance(error, Unreachable):
                # One entry's trouble is not the others'; each gets its own transaction.
                await asyncio.gather(*(self._commit(tenant_id, (one,)) for one in group))
                return
            _refuse(group, error)
        except BaseException as error:
            # A defect is told to all who wait for it, and so is the end of the process.
            _refuse(group, error)
            if not isinstance(error, Exception):
                raise
        else:
            await self._tell(tenant_id, group, results)

    async def _tell(
        self,
        tenant_id: UUID,
        group: Sequence[_QueuedEntry[Entry, Result]],
        results: Sequence[Result],
    ) -> None:
        left: list[tuple[Entry, Result]] = []
        for one, result in zip(group, results, strict=True):
            if one.done.done():
                left.append((one.entry, result))
            else:
                one.done.set_result(result)
        if left and self._abandoned is not None:
            await self._abandoned(tenant_id, left)


def _take(queue: _TenantQueue[Entry, Result]) -> list[_QueuedEntry[Entry, Result]]:
    """The next group; nobody waits any more for those that are cancelled."""
    taken: list[_QueuedEntry[Entry, Result]] = []
    while queue.waiting and len(taken) < GROUP_ENTRIES:
        one = queue.waiting.popleft()
        if not one.done.done():
            taken.append(one)
    return taken


def _refuse(group: Sequence[_QueuedEntry[Entry, Result]], error: BaseException) -> None:
    for one in group:
        if not one.done.done():
            if isinstance(error, Exception):
                one.done.set_exception(error)
            else:
                one.done.cancel()
