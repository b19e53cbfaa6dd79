"""The log as a tree reads it: in order, up to a seal, and segmented ahead of the calls."""

from collections import deque
from uuid import UUID

from service.domain.chunks import LoggedChunk
from service.domain.tree.planning import Plan
from service.domain.tree.segmenting import Segmenter, piece_of
from service.usecases.pipeline import Look
from storage import log
from storage.database import Database
from storage.revisions import Claim

#: Chunks that one look at the log brings.
READ_CHUNKS = 64


class TreeLog:
    """Reads a session's log into the plan of one tree, from the end of its last leaf on."""

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        held: Claim,
        segmenter: Segmenter,
        plan: Plan,
        *,
        window: int,
    ) -> None:
        """`window`: it segments no further while so many leaves are planned and not stored."""
        self._database = database
        self._tenant_id = tenant_id
        self._session_key = held.session_key
        self._seal_position = held.seal_position
        self._segmenter = segmenter
        self._plan = plan
        self._window = window
        self._first = segmenter.start
        #: The last position that was read.
        self.position = self._first.position - 1
        self._unfed: deque[LoggedChunk] = deque()
        self._is_closed = False

    async def read(self) -> Look:
        """Plans the leaves of the next segments; at the seal's position those of the rest."""
        came, is_all = bool(self._unfed), False
        if not self._unfed:
            found = await self._chunks()
            came, is_all = bool(found), len(found) < READ_CHUNKS
            self._unfed.extend(found)
        while self._unfed and self._plan.leaves < self._window:
            logged = self._unfed.popleft()
            offset = self._first.offset if logged.position == self._first.position else 0
            self._plan.add(self._segmenter.feed([piece_of(logged, offset)]))
            self.position = logged.position
        if self.position == self._seal_position and not self._is_closed:
            self._is_closed = True
            self._plan.add(self._segmenter.finish(), together=True)
            self._plan.close()
        return Look(came=came, is_all=is_all and not self._unfed)

    async def _chunks(self) -> list[LoggedChunk]:
        limit = READ_CHUNKS
        if self._seal_position is not None:
            limit = min(limit, self._seal_position - self.position)
        if limit <= 0:
            return []
        async with self._database.transaction(self._tenant_id) as tx:
            return list(await log.read(tx, self._session_key, self.position, limit))
