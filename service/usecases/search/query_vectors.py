"""Embeds the queries of searches, and keeps the vectors of the last ones."""

import asyncio
from collections.abc import Sequence
from functools import partial
from uuid import UUID

import structlog

from service.domain.calls.ledger import CallScope
from service.llm.embeddings.embedding import CannotEmbed, Embedder, EmbeddingFailed
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest.search")

#: Queries whose vectors are kept.
KEPT_QUERIES = 256
#: Queries that are embedded on after their searches, at most: an embedder that is away would
#: otherwise gather them.
EMBEDDED_ON = 64


class QueryVectors:
    """The vectors of queries, in one process."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        #: By tenant and query, the latest last: paging and browsing search for the same several
        #: times, and each vector may cost.
        self._kept: dict[tuple[UUID, str], Sequence[float]] = {}
        #: Those that are embedded whether or not a search still waits, by session and query.
        self._on: dict[tuple[UUID, UUID, str], asyncio.Task[tuple[float, ...]]] = {}

    async def embed(
        self, query: str, scope: CallScope, *, until: float | None, goes_on: bool
    ) -> Sequence[float]:
        """Returns the vector of a query by `until`, in the event loop's time.

        With `goes_on` it is embedded on when that comes first, and is there for the next search.
        Raises EmbeddingFailed, BudgetExhausted, Gone.
        """
        key = (scope.tenant_id, query)
        vector = self._kept.pop(key, None)
        if vector is None:
            waiting = asyncio.timeout_at(until)
            try:
                async with waiting:
                    vector = await self._embed(query, scope, goes_on)
            except CannotEmbed as error:
                raise EmbeddingFailed(str(error), retryable=False) from error
            except TimeoutError as error:
                if not waiting.expired():
                    raise
                raise EmbeddingFailed(
                    "it took longer than the deadline, or its own limit, allows", retryable=True
                ) from error
        self._keep(key, vector)
        return vector

    async def close(self) -> None:
        """Ends what is embedded on."""
        await cancel(list(self._on.values()))

    async def _embed(self, query: str, scope: CallScope, goes_on: bool) -> Sequence[float]:
        key = (scope.tenant_id, scope.session_key, query)
        task = self._on.get(key)
        if task is None and (not goes_on or len(self._on) >= EMBEDDED_ON):
            return await self._embedder.embed_query(query, scope=scope)
        if task is None:
            task = asyncio.create_task(self._embedder.embed_query(query, scope=scope))
            self._on[key] = task
            task.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(task)

    def _ended(self, key: tuple[UUID, UUID, str], task: asyncio.Task[tuple[float, ...]]) -> None:
        del self._on[key]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # A search that still waits has it as well.
            _log.info("query not embedded", session=str(key[1]), cause=str(error))
            return
        self._keep((key[0], key[2]), task.result())

    def _keep(self, key: tuple[UUID, str], vector: Sequence[float]) -> None:
        self._kept[key] = vector
        if len(self._kept) > KEPT_QUERIES:
            del self._kept[next(iter(self._kept))]
