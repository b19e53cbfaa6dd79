"""Searches that are as fresh as their clients ask for."""

from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from service.domain.log.read_tokens import ReadToken
from service.domain.values.errors import DeadlineExceeded
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.log import metrics
from service.usecases.log.lookup import session_not_found
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.search.search import (
    FoundPage,
    Searcher,
    SearchMode,
    SearchQuery,
)
from storage.engine.database import Database
from storage.search.finding import IndexProgress, SearchPlace, read_index_progress


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchReading:
    """What a search found, and what it read."""

    page: FoundPage
    #: All chunks up to here were indexed, with their vectors where these count.
    applied_position: int
    #: Stands for the log up to there.
    token: str


class ConsistentSearch:
    """Searches for clients, in one server process."""

    def __init__(
        self, database: Database, searcher: Searcher, watcher: ProgressWatcher, token_key: bytes
    ) -> None:
        self._database = database
        self._searcher = searcher
        self._watcher = watcher
        self._token_key = token_key

    async def find(
        self,
        tenant_id: UUID,
        session: str,
        query: SearchQuery,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> SearchReading:
        """Searches a session once its index is as far as `consistency` says.

        `deadline` is in the event loop's time. Raises InvalidInput (token), Exhausted (too many
        reads wait), DeadlineExceeded, and as `Searcher.find`.
        """
        model = ""
        if query.mode is not SearchMode.WORDS:
            model = await self._searcher.vectors_model(tenant_id)
        if consistency.at_least or consistency.fully_applied:
            await self._catch_up(tenant_id, session, consistency, model, deadline)
        page = await self._searcher.find(tenant_id, session, query, deadline=deadline)
        applied = _applied(page.index, model)
        token = ReadToken(
            session_key=session_key(tenant_id, session),
            incarnation=page.index.incarnation,
            position=applied,
        )
        return SearchReading(page=page, applied_position=applied, token=token.sign(self._token_key))

    async def index(self, tenant_id: UUID, session: str) -> SearchPlace:
        """Returns how far the index of a session is. Raises NotFound."""
        return await self._searcher.index(tenant_id, session)

    async def _catch_up(
        self,
        tenant_id: UUID,
        session: str,
        consistency: Consistency,
        model: str,
        deadline: float | None,
    ) -> None:
        """Waits for the words of chunks, and for their vectors where there is a `model`."""
        key = session_key(tenant_id, session)
        async with self._database.direct(tenant_id, name="search") as direct:
            progress = (await read_index_progress(direct, [key])).get(key)
        if progress is None:
            raise session_not_found(session)
        wanted = consistency.wanted_position(
            self._token_key, key, head=progress.head, incarnation=progress.incarnation
        )
        if _applied(progress, model) >= wanted:
            return
        looks = self._watcher.index_of_read(
            tenant_id, key, deleted=session_not_found(session), deadline=deadline
        )
        async with aclosing(looks) as seen:
            async for progress in seen:
                if _applied(progress, model) >= wanted:
                    return
        raise _not_indexed_in_time(session, wanted, progress, model)


def _applied(index: SearchPlace | IndexProgress, model: str) -> int:
    """Returns up to where chunks have words, and vectors of `model` if one is named."""
    if not model:
        return index.indexed_position
    embedded = index.embedded_position if index.embedding_model == model else 0
    return min(index.indexed_position, embedded)


def _not_indexed_in_time(
    session: str, wanted: int, progress: IndexProgress, model: str
) -> DeadlineExceeded:
    """Returns the error of a search whose deadline came first."""
    applied = _applied(progress, model)
    cause = {"cause": progress.failure} if progress.failure else {}
    why = f"; the last try failed: {progress.failure}" if progress.failure else ""
    late = DeadlineExceeded(
        Reason.NOT_APPLIED_IN_TIME,
        f"session {session!r} is indexed up to position {applied}, not yet {wanted}{why}",
        {"position": wanted, "applied_position": applied, **cause},
    )
    metrics.refused(late)
    return late
