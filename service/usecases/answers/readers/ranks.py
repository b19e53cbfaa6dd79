"""Retrieval for answers: the chunks that fit a question, of those that it may read."""

from collections.abc import Sequence

import structlog

from service.domain.calls.ledger import CallScope
from service.domain.search.reranking import NoOrder
from service.domain.values.work_items import WorkItem
from service.usecases.answers.readers.answering import scope_of
from service.usecases.answers.readers.browse import BrowseTerms
from service.usecases.answers.readers.browsed_log import BrowseHit
from service.usecases.answers.readers.log_range import filter_of
from service.usecases.search.search import Searcher, SearchQuery
from storage.answers.answers import StoredAnswer

_log = structlog.get_logger("palimpsest.ranks")


class SearchRanks:
    """Retrieves for one answer, by the search of its session."""

    def __init__(
        self, searcher: Searcher, item: WorkItem, asked: StoredAnswer, terms: BrowseTerms
    ) -> None:
        self._searcher = searcher
        self._asked = asked
        self._terms = terms
        #: Query vectors and reranking are paid for by the answer.
        self._scope: CallScope = scope_of(item, asked)

    async def rank(self, query: str, *, limit: int, rerank: bool) -> Sequence[BrowseHit]:
        """Returns up to `limit` chunks that fit, best first.

        If no reply of the model has an order, they come as the search ranks them.
        Raises ModelFailure, BudgetExhausted.
        """
        try:
            return await self._search(query, limit, rerank=rerank)
        except NoOrder as error:
            _log.warning("not reranked", answer=str(self._asked.answer_id), end=error.end)
            return await self._search(query, limit, rerank=False)

    async def _search(self, query: str, limit: int, *, rerank: bool) -> Sequence[BrowseHit]:
        wanted = SearchQuery(
            query=query,
            limit=limit,
            filter=filter_of(self._asked),
            rerank=rerank,
            up_to=self._asked.applied_position,
            with_chunks=False,
            window_tokens=self._terms.window_tokens,
            rerank_model=self._terms.model,
        )
        page = await self._searcher.search(
            self._scope.tenant_id, self._scope.session_key, wanted, scope=self._scope
        )
        return [
            BrowseHit(
                position=one.position,
                # Words find a chunk as a whole, vectors a part of it.
                from_character=one.from_character if one.to_character else None,
            )
            for one in page.found
        ]
