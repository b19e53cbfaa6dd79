"""Refuses appends to sessions that do not exist, before they are queued.

An append to a session that is known to exist passes at once. One query answers for all others
that wait, beside the queues: appends to sessions that exist do not wait for it. That a session
does not exist is never remembered, since another process may have created it a moment ago: a
refusal rests on a query that began after its append had arrived.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from uuid import UUID

import structlog

from service.usecases.log import metrics
from service.usecases.log.database_words import unavailable
from service.usecases.log.group_commit import refuse
from service.usecases.log.lookup import session_not_found
from service.usecases.log.submissions import QueuedSubmission
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.append")

#: Sessions that a server process knows to exist.
KNOWN_SESSIONS = 50_000
#: Sessions that one query looks for.
LOOK_SESSIONS = 1000
#: Refusals that a server process gives at once, and how many a second after these. A single
#: mistake is refused at once. A flood is slowed down, since a refusal takes as much of the
#: server's time as an append of another client.
REFUSALS = 50
REFUSALS_A_SECOND = 50.0
#: A refusal waits for so many seconds at most …
REFUSAL_SECONDS = 5.0
#: … and only while the appends whose refusals wait have no more bytes than this.
REFUSED_BYTES = 32 * 1024 * 1024

#: Returns which of these sessions of a tenant exist. Raises StorageError.
Existing = Callable[[UUID, Sequence[UUID]], Awaitable[Collection[UUID]]]


class Door:
    """The door of one server process."""

    def __init__(
        self,
        existing: Existing,
        let_in: Callable[[QueuedSubmission], None],
        turned_away: Callable[[QueuedSubmission], None],
    ) -> None:
        """Each entry is either `let_in`, to be committed, or `turned_away`, and refused."""
        self._existing = existing
        self._let_in = let_in
        self._turned_away = turned_away
        #: Sessions that exist, those with the latest appends last.
        self._known: OrderedDict[UUID, None] = OrderedDict()
        #: What waits for a query, by session, in the order of arrival.
        self._waiting: OrderedDict[UUID, list[QueuedSubmission]] = OrderedDict()
        #: Sessions that are looked for now.
        self._looking: set[UUID] = set()
        self._some = asyncio.Event()
        self._pace = _Pace()
        #: Bytes of entries whose refusals wait to be sent.
        self._refused_bytes = 0

    def come(self, entry: QueuedSubmission) -> None:
        """Accepts an entry. The entries of a session pass in the order in which they arrive."""
        key = entry.submission.session_key
        # Not before those of the session that wait, though another call has found it meanwhile.
        if key in self._known and key not in self._waiting and key not in self._looking:
            self.know(key)
            self._let_in(entry)
            return
        self._waiting.setdefault(key, []).append(entry)
        self._some.set()

    def know(self, session_key: UUID) -> None:
        """Remembers that a session exists.

        If it was deleted meanwhile, the write finds that out under the session's lock.
        """
        self._known[session_key] = None
        self._known.move_to_end(session_key)
        if len(self._known) > KNOWN_SESSIONS:
            self._known.popitem(last=False)

    def forget(self, session_key: UUID) -> None:
        """Has a session queried again before another append to it passes."""
        self._known.pop(session_key, None)

    async def slow_down(self) -> None:
        """Waits for as long as the next refusal has to wait."""
        await asyncio.sleep(self._pace.wait_seconds())

    async def run(self) -> None:
        """Queries the sessions of the appends that wait, until it is cancelled."""
        while True:
            await self._some.wait()
            # By tenant: a query sees the sessions of one.
            wanted: dict[UUID, list[UUID]] = {}
            for key, entries in list(self._waiting.items())[:LOOK_SESSIONS]:
                wanted.setdefault(entries[0].tenant_id, []).append(key)
            for tenant_id, keys in wanted.items():
                await self._look(tenant_id, keys)
            if not self._waiting:
                self._some.clear()

    async def _look(self, tenant_id: UUID, keys: Sequence[UUID]) -> None:
        # What arrives during this query waits for the next one.
        taken = {key: self._waiting.pop(key) for key in keys}
        self._looking = set(keys)
        try:
            await self._judge(tenant_id, keys, taken)
        finally:
            self._looking = set()

    async def _judge(
        self, tenant_id: UUID, keys: Sequence[UUID], taken: dict[UUID, list[QueuedSubmission]]
    ) -> None:
        try:
            existing = await self._existing(tenant_id, keys)
        except StorageError as error:
            _log.warning("sessions not queried", cause=str(error), sessions=len(keys))
            self._fail(taken, unavailable(error))
            return
        except Exception as error:
            # The door must outlive a defect; the appends that wait are refused with it.
            _log.exception("querying sessions failed")
            self._fail(taken, error)
            return
        for key in existing:
            self.know(key)
            # With what arrived meanwhile, which would be overtaken otherwise.
            for entry in [*taken.pop(key), *self._waiting.pop(key, [])]:
                self._let_in(entry)
        for entry in (one for entries in taken.values() for one in entries):
            self._turned_away(entry)
            self._refuse(entry)

    def _fail(self, taken: Mapping[UUID, Sequence[QueuedSubmission]], error: Exception) -> None:
        for entry in (one for entries in taken.values() for one in entries):
            self._turned_away(entry)
            refuse(entry.done, error)

    def _refuse(self, entry: QueuedSubmission) -> None:
        refusal = session_not_found(entry.submission.session)
        metrics.refused(refusal)
        wait = self._pace.wait_seconds()
        if not wait or self._refused_bytes + entry.size > REFUSED_BYTES:
            refuse(entry.done, refusal)
            return
        self._refused_bytes += entry.size

        def report() -> None:
            self._refused_bytes -= entry.size
            refuse(entry.done, refusal)

        asyncio.get_running_loop().call_later(wait, report)


class _Pace:
    """Paces refusals: REFUSALS at once, then REFUSALS_A_SECOND."""

    def __init__(self) -> None:
        #: When all that were given or promised are paid for, in the event loop's time.
        self._paid_at = 0.0

    def wait_seconds(self) -> float:
        """Counts a refusal; returns how long it has to wait, REFUSAL_SECONDS at most."""
        now = asyncio.get_running_loop().time()
        ahead = REFUSALS / REFUSALS_A_SECOND
        # Bounded, so that no client waits for long after a flood.
        latest = now + ahead + REFUSAL_SECONDS
        self._paid_at = min(max(self._paid_at, now) + 1 / REFUSALS_A_SECOND, latest)
        return max(self._paid_at - now - ahead, 0.0)
