"""Writes entries by group commit: those that wait during one commit share the next.

A group has entries of one tenant. When nothing is under way an entry is written at once, alone.
When a group fails, each key of it is written by itself, so that one bad entry does not fail the
others. A commit that takes long steps aside: others begin meanwhile, without its keys.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from opentelemetry.trace import SpanContext

from service.telemetry import tracing
from storage.engine.errors import StorageError, Unreachable
from storage.engine.tasks import cancel

Entry = TypeVar("Entry")
Result = TypeVar("Result")

#: Entries of one group at the most, unless they have sizes.
GROUP_ENTRIES = 64
#: Commits of a lane under way at once: while one waits for a lock, the other goes on.
GROUPS = 2
#: How long a commit may take before it steps aside.
ASIDE_SECONDS = 0.25
#: Keys of a lane whose commits may go on aside: each has a connection.
MAX_ASIDE = 4


class Later(Enum):
    """The result of an entry that is not written yet: a lock of another transaction is in its way.

    Its key is written by itself next.
    """

    LATER = "later"


@dataclass(slots=True)
class _QueuedEntry(Generic[Entry, Result]):
    key: tuple[UUID, Hashable]
    entry: Entry
    done: "asyncio.Future[Result]"
    #: The span that it was put in, if that is sampled.
    trace: SpanContext | None


@dataclass(slots=True)
class _Lane(Generic[Entry, Result]):
    """What waits, and what is under way, of all whose commits wait for each other."""

    #: By tenant and key, in the order of the first one of each.
    waiting: dict[tuple[UUID, Hashable], "deque[_QueuedEntry[Entry, Result]]"] = field(
        default_factory=dict
    )
    #: Keys that are written by themselves.
    alone: set[tuple[UUID, Hashable]] = field(default_factory=set)
    #: Keys of commits that are under way.
    busy: set[tuple[UUID, Hashable]] = field(default_factory=set)
    running: int = 0
    #: Keys of commits that stepped aside.
    aside: int = 0


class GroupCommit(Generic[Entry, Result]):
    """Writes entries in groups, one transaction each."""

    def __init__(
        self,
        write: Callable[[UUID, Sequence[Entry]], Awaitable[Sequence[Result | Exception | Later]]],
        *,
        key: Callable[[Entry], Hashable] = lambda _: object(),
        size: Callable[[Entry], int] = lambda _: 1,
        max_size: int = GROUP_ENTRIES,
        is_shared: bool = False,
        left: Callable[[Entry], None] = lambda _: None,
        abandoned: Callable[[UUID, Sequence[tuple[Entry, Result]]], Awaitable[None]] | None = None,
    ) -> None:
        """`write` writes a group, in one transaction, and returns its results in its order.

        An error among them is raised for its entry alone. Entries of one `key` are written in
        the order in which they came. A group has `max_size` at most. All tenants share a lane if
        it `is_shared`, else each has its own. `left` learns of each entry that waits no more, and
        `abandoned` of what was written of entries for which no caller waits any more.
        """
        self._write = write
        self._key = key
        self._size = size
        self._max_size = max_size
        self._is_shared = is_shared
        self._left = left
        self._abandoned = abandoned
        self._lanes: dict[UUID | None, _Lane[Entry, Result]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def put(self, tenant_id: UUID, entry: Entry) -> Result:
        """Returns the result of `entry`, once it is written. Raises what writing it raises."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.add(tenant_id, entry, done, tracing.sampled())
        return await done

    def add(
        self,
        tenant_id: UUID,
        entry: Entry,
        done: "asyncio.Future[Result]",
        trace: SpanContext | None,
    ) -> None:
        """As `put`, for a future of the caller."""
        lane = self._lanes.setdefault(None if self._is_shared else tenant_id, _Lane())
        key = (tenant_id, self._key(entry))
        lane.waiting.setdefault(key, deque()).append(_QueuedEntry(key, entry, done, trace))
        if key not in lane.busy:
            self._start(lane)

    async def close(self) -> None:
        """Cancels what is under way, and begins nothing more."""
        self._is_closed = True
        await cancel(list(self._tasks))

    def _start(self, lane: _Lane[Entry, Result]) -> None:
        if lane.running < GROUPS and not self._is_closed:
            lane.running += 1
            # It writes what others put as well: nothing of it is about the caller's entry.
            self._spawn(self._serve(lane), context=Context())

    def _spawn(
        self, work: Coroutine[Any, Any, None], context: Context | None = None
    ) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, lane: _Lane[Entry, Result]) -> None:
        try:
            while group := self._take(lane):
                keys = {one.key for one in group}
                seconds: float | None = 0.0 if keys & lane.alone else ASIDE_SECONDS
                lane.busy |= keys
                lane.alone -= keys
                if lane.aside + len(keys) > MAX_ASIDE:
                    seconds = None
                commit = self._spawn(self._commit(lane, keys, group))
                await asyncio.wait((commit,), timeout=seconds)
                if not commit.done():
                    lane.aside += len(keys)
                    commit.add_done_callback(partial(self._come_back, lane, len(keys)))
        finally:
            lane.running -= 1
            self._forget(lane)

    def _come_back(self, lane: _Lane[Entry, Result], keys: int, _: "asyncio.Task[None]") -> None:
        lane.aside -= keys
        self._start(lane)

    def _forget(self, lane: _Lane[Entry, Result]) -> None:
        if not (lane.running or lane.waiting or lane.busy):
            self._lanes = {key: one for key, one in self._lanes.items() if one is not lane}

    def _take(self, lane: _Lane[Entry, Result]) -> list[_QueuedEntry[Entry, Result]]:
        """Returns the next group, of keys that are not under way; without the cancelled ones."""
        taken: list[_QueuedEntry[Entry, Result]] = []
        size = 0
        for key, waiting in list(lane.waiting.items()):
            if key in lane.busy or (taken and (key[0] != taken[0].key[0] or key in lane.alone)):
                continue
            while waiting and (not taken or size + self._size(waiting[0].entry) <= self._max_size):
                one = waiting.popleft()
                if one.done.done():
                    self._left(one.entry)
                else:
                    taken.append(one)
                    size += self._size(one.entry)
            if waiting:
                break
            del lane.waiting[key]
            if taken and key in lane.alone:
                break
        return taken

    async def _commit(
        self,
        lane: _Lane[Entry, Result],
        keys: Collection[tuple[UUID, Hashable]],
        group: Sequence[_QueuedEntry[Entry, Result]],
    ) -> None:
        tenant_id = group[0].key[0]
        results: Sequence[Result | Exception | Later]
        try:
            # A transaction for several traces belongs to the first.
            with tracing.within(next((one.trace for one in group if one.trace), None)):
                results = await self._write(tenant_id, [one.entry for one in group])
        except StorageError as error:
            if len(keys) > 1 and not isinstance(error, Unreachable):
                results = [Later.LATER] * len(group)
            else:
                results = [error] * len(group)
        except Exception as error:
            # A defect is reported to all that wait for it.
            results = [error] * len(group)
        except BaseException:
            for one in group:
                one.done.cancel()
                self._left(one.entry)
            raise
        finally:
            lane.busy.difference_update(keys)
        await self._report(lane, tenant_id, list(zip(group, results, strict=True)))

    async def _report(
        self,
        lane: _Lane[Entry, Result],
        tenant_id: UUID,
        results: Sequence[tuple[_QueuedEntry[Entry, Result], Result | Exception | Later]],
    ) -> None:
        later = [one for one, result in results if isinstance(result, Later)]
        for one in reversed(later):
            # Before what came meanwhile.
            lane.waiting.setdefault(one.key, deque()).appendleft(one)
            lane.alone.add(one.key)
        abandoned: list[tuple[Entry, Result]] = []
        for one, result in results:
            if isinstance(result, Later):
                continue
            self._left(one.entry)
            if isinstance(result, Exception):
                refuse(one.done, result)
            elif one.done.done():
                abandoned.append((one.entry, result))
            else:
                one.done.set_result(result)
        if abandoned and self._abandoned is not None:
            await self._abandoned(tenant_id, abandoned)


def refuse(done: "asyncio.Future[Any]", error: Exception) -> None:
    """Fails an entry with the reason why it is not written."""
    if not done.done():
        done.set_exception(error)
        # The caller may be gone before it asks.
        done.exception()
