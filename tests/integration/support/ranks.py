"""Retrieval for tests of what reads by it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.usecases.answers.readers.browsed_log import BrowseHit


@dataclass
class Ranked:
    """Retrieval with scripted results."""

    hits: Sequence[BrowseHit] = ()
    #: How it was asked: the query, the limit, and whether with a model.
    asked: list[tuple[str, int, bool]] = field(default_factory=list)

    async def rank(self, query: str, *, limit: int, rerank: bool) -> Sequence[BrowseHit]:
        self.asked.append((query, limit, rerank))
        hits = list(self.hits)
        return (hits[::-1] if rerank else hits)[:limit]
