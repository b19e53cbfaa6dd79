# Generated from palimpsest/_async by `make sync`; do not edit.
"""Searching a session's log."""

from typing import Unpack

from palimpsest import _search as convert
from palimpsest._convert import value_of
from palimpsest._search import SearchIndex, SearchMode, SearchResult
from palimpsest._sync._log import SessionLog
from palimpsest._values_log import ChunkFilterOptions
from palimpsest.v1 import session_service_pb2


class SessionSearch(SessionLog):
    """What `Session` has of searching its log."""

    def search(
        self,
        query: str,
        *,
        limit: int = 0,
        mode: SearchMode = "auto",
        from_position: int = 0,
        to_position: int = 0,
        rerank: bool = False,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> SearchResult:
        """Finds the chunks that match a query best: words, not an expression.

        At most `limit` (0 means 10, 100 are the most), and fewer where they are long. Only
        chunks from `from_position` to `to_position` that match `options`, which are those of
        `palimpsest.ChunkFilterOptions`, such as `threads`, `sources` and `occurred_since`;
        what is not given excludes none. `rerank` lets a model order the best.

        New chunks are indexed in the background. `after` waits until what a token stands for
        is indexed, `fully_applied` until the whole log is: words, and vectors where the search
        uses them. The wait ends with the `timeout`.

        Raises NotFound, InvalidArgument, TypeError and ValueError for what cannot be sent,
        FailedPrecondition (VECTORS_UNAVAILABLE, RERANK_FAILED), Unavailable
        (EMBEDDING_FAILED), DeadlineExceeded (NOT_APPLIED_IN_TIME), ResourceExhausted.
        """
        request = convert.search_request(
            self.id,
            query,
            limit=limit,
            mode=mode,
            from_position=from_position,
            to_position=to_position,
            rerank=rerank,
            after=after,
            fully_applied=fully_applied,
            **options,
        )
        # With a model in it, it costs: not repeated.
        response = self._connection.call(
            self._connection.sessions.SearchChunks, request, timeout=timeout, retry=not rerank
        )
        return convert.search_result(response)

    def search_index(self) -> SearchIndex:
        """Returns how far words and vectors of the session are. Raises NotFound."""
        request = session_service_pb2.GetSearchIndexRequest(session=self.id)
        response = self._connection.call(self._connection.sessions.GetSearchIndex, request)
        return value_of(SearchIndex, response)
