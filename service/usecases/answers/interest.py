"""Records which answers the clients of a server process wait for, so that no others cost.

Each answer's row has the time until which it is wanted. It is written with the question, and
again only for answers that take long, and for those whose clients leave: all of a tenant at once,
without a flush. So the interest of a process that dies expires by itself.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import uuid4

import structlog

from service.domain.values.work_items import WorkItem
from storage.answers import interest
from storage.answers.trajectories import AnswerKey
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.interest")

#: Departures of clients within so long are written together.
LEAVE_SECONDS = 0.1
#: How often the interest in an answer is renewed within the time that it lasts.
RENEWALS = 3


@dataclass(kw_only=True, slots=True)
class Wait:
    """A call that waits for an answer."""

    #: Whether the answer has ended, so that nothing is written when the call ends.
    ended: bool = False


class Interest:
    """The answers that the clients of one server process wait for."""

    def __init__(
        self,
        database: Database,
        *,
        seconds: float,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """Answers stay wanted for `seconds` after the last renewal of their clients' interest.

        After `stopping` no departure is written: clients go on at another process.
        """
        self._database = database
        self.seconds = seconds
        #: What answers have as their waiter.
        self.waiter = uuid4()
        self._stopping = stopping or asyncio.Event()
        self._waiting: Counter[WorkItem] = Counter()
        self._left: set[WorkItem] = set()
        self._some_left = asyncio.Event()

    @contextmanager
    def wait(self, item: WorkItem) -> Iterator[Wait]:
        """Surrounds a call that waits for an answer."""
        call = Wait()
        self._waiting[item] += 1
        self._left.discard(item)
        try:
            yield call
        finally:
            self._waiting[item] -= 1
            if not self._waiting[item]:
                del self._waiting[item]
                if not call.ended and not self._stopping.is_set():
                    self._left.add(item)
                    self._some_left.set()

    async def want(self, tx: Transaction, key: AnswerKey, *, resumes: bool) -> None:
        """Has an answer that is pending made for a while; `resumes`: a client waits for it."""
        await interest.want(tx, key, waiter=self.waiter, seconds=self.seconds, resumes=resumes)

    async def run(self) -> None:
        """Writes departures, and renews the interest of calls that wait, until it is cancelled."""
        loop = asyncio.get_running_loop()
        every = self.seconds / RENEWALS
        renew_at = loop.time() + every
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(renew_at):
                    await self._some_left.wait()
                    await asyncio.sleep(LEAVE_SECONDS)
            left, self._left = self._left, set()
            self._some_left.clear()
            await self._write(left, interest.leave)
            # A client that returned meanwhile was recorded as gone.
            await self._write(left & self._waiting.keys(), interest.renew)
            if loop.time() >= renew_at:
                renew_at = loop.time() + every
                await self._write(self._waiting, interest.renew)

    async def _write(self, items: Collection[WorkItem], write: Callable[..., Any]) -> None:
        ordered = sorted(items, key=lambda item: str(item.tenant_id))
        for tenant_id, of_tenant in groupby(ordered, key=lambda item: item.tenant_id):
            keys = [(item.session_key, item.item_id) for item in of_tenant]
            try:
                async with self._database.direct(tenant_id, name="answer") as tx:
                    await write(tx, keys, waiter=self.waiter, seconds=self.seconds)
            except StorageError as error:
                # What was not renewed yet is wanted long enough for another try or two.
                _log.warning("interest in answers not written", cause=str(error))
            except Exception:
                # The loop must outlive a defect: else all answers would be abandoned.
                _log.exception("interest in answers not written")
