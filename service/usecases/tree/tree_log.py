"""Reads the log for a tree: in order, up to a seal, and segmented ahead of the calls."""

from collections import deque

from service.domain.log.chunks import LoggedChunk
from service.domain.tree.planning import TreePlan
from service.domain.tree.segmenting import Cut, Segmenter, piece_of
from service.llm.offloading import beside
from service.usecases.tree.pipeline import LogRead
from storage.engine.claims import Claim
from storage.engine.database import Database
from storage.log import chunks

#: Chunks that one query of the log reads.
READ_CHUNKS = 64


class TreeLog:
    """Reads a session's log into the plan of one tree, from the end of its last leaf on."""

    def __init__(
        self,
        database: Database,
        held: Claim,
        segmenter: Segmenter,
        plan: TreePlan,
        *,
        window: int,
    ) -> None:
        """`window`: it segments no further while so many leaves are planned and not stored."""
        self._database = database
        self._tenant_id = held.tenant_id
        self._session_key = held.session_key
        self._seal_position = held.seal_position
        self._segmenter = segmenter
        self._plan = plan
        self._window = window
        self._first = segmenter.start
        #: The last position whose segments are planned, and the last one that was cut.
        self.position = self._fed = self._first.position - 1
        self._unfed: deque[LoggedChunk] = deque()
        #: What is cut and not planned; the rest of a log that is sealed.
        self._cuts: list[Cut] = []
        self._rest: list[Cut] | None = None
        self._is_closed = False

    async def read(self) -> LogRead:
        """Plans the leaves of the next segments; at the seal's position those of the rest."""
        came, is_all = bool(self._unfed or self._cuts), False
        if not self._unfed:
            found = await self._chunks()
            came, is_all = came or bool(found), len(found) < READ_CHUNKS
            self._unfed.extend(found)
        # Segments are looked for in texts, which takes long.
        await beside(self._feed, self._window - self._plan.leaves)
        self._plan.add(self._cuts)
        self._cuts, self.position = [], self._fed
        if self.position == self._seal_position and not self._is_closed:
            if self._rest is None:
                await beside(self._finish)
            assert self._rest is not None, "it was cut just now"
            self._is_closed = True
            self._plan.add(self._rest, together=True)
            self._plan.close()
        return LogRead(came=came, is_all=is_all and not self._unfed)

    def _feed(self, leaves: int) -> None:
        """Cuts so many segments, or all there are; keeps them in case the caller is cancelled."""
        while self._unfed and len(self._cuts) < leaves:
            logged = self._unfed.popleft()
            offset = self._first.offset if logged.position == self._first.position else 0
            self._cuts += self._segmenter.feed([piece_of(logged, offset)])
            self._fed = logged.position

    def _finish(self) -> None:
        self._rest = self._segmenter.finish()

    async def _chunks(self) -> list[LoggedChunk]:
        limit = READ_CHUNKS
        if self._seal_position is not None:
            limit = min(limit, self._seal_position - self._fed)
        if limit <= 0:
            return []
        async with self._database.transaction(self._tenant_id, name="step") as tx:
            return list(await chunks.read(tx, self._session_key, self._fed, limit))
