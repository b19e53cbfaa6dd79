"""Searches the entries of a session's memories that fit a query best."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.calls.ledger import CallScope
from service.domain.log.read_tokens import ReadToken
from service.domain.search.fusing import ScoredChunk, fuse
from service.domain.values.errors import FailedPrecondition, InvalidInput
from service.domain.values.paths import Path, PathError
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key as key_of
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.lookup import memory_not_found, session_not_found
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memories import Memories
from service.usecases.search.search import (
    DEPTH,
    VECTORS_WEIGHT,
    WORDS_WEIGHT,
    PreparedQuery,
    Searcher,
    SearchMode,
    SearchQuery,
    note_for_index,
)
from storage.engine.database import Database, Transaction
from storage.search.entry_search import (
    EntryRange,
    FoundEntry,
    SearchedMemory,
    read_entries,
    read_searched,
    with_trust,
)
from storage.search.finding import SearchPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryHit:
    """An entry that fits."""

    found: FoundEntry
    #: The fusion's; compares entries of one search only.
    score: float
    #: 1, 2, 3 …; 0: not found by them.
    words_rank: int
    vectors_rank: int
    #: BM25, and the cosine of the angle; 0 where it was not found by them.
    words_score: float
    vectors_score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryQuery:
    """What is searched for."""

    query: str
    #: Entries at most; 1 or more.
    limit: int = 10
    mode: SearchMode = SearchMode.DEFAULT
    #: Names; empty: all of the session.
    memories: Sequence[str] = ()
    #: In any notation of paths; else what the path of another memory's entry begins with.
    path_prefix: str = ""
    #: Only what rests on a chunk that fits; None: on any, or none.
    chunks: ChunkFilter | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EntrySearch:
    """What a search found, and what it read."""

    #: Best first.
    hits: Sequence[EntryHit]
    #: By what was searched: WORDS, VECTORS or HYBRID.
    mode: SearchMode
    #: With a token of what was read of each.
    memories: Sequence[tuple[SearchedMemory, str]]
    #: Why the query has no vector; empty where none was wanted, or it has one.
    failure: str


async def search_entries(
    tx: Transaction,
    session_key: UUID,
    place: SearchPlace,
    vector: Sequence[float] | None,
    within: EntryRange,
    limit: int,
    *,
    by_words: bool = True,
) -> Sequence[EntryHit]:
    """Returns the `limit` best entries by a query's words, and by its vector if it has one.

    `place` has the words, and the model of the vector. One round trip.
    """
    words, vectors = await read_entries(
        tx,
        session_key,
        place.words if by_words else (),
        vector,
        place.embedding_model,
        within,
        max(limit, DEPTH),
    )
    both = {one.key: one for one in (*words, *vectors)}
    # In an order that every search has: it decides between equals.
    numbers = {key: number for number, key in enumerate(sorted(both), 1)}
    keys = list(numbers)
    fused = fuse(
        ((WORDS_WEIGHT, _scored(words, numbers)), (VECTORS_WEIGHT, _scored(vectors, numbers)))
    )
    return [
        EntryHit(
            found=both[keys[one.position - 1]],
            score=one.score,
            words_rank=one.ranks[0],
            vectors_rank=one.ranks[1],
            words_score=words[one.ranks[0] - 1].score if one.ranks[0] else 0.0,
            vectors_score=vectors[one.ranks[1] - 1].score if one.ranks[1] else 0.0,
        )
        for one in fused[:limit]
    ]


def _scored(
    found: Sequence[FoundEntry], numbers: Mapping[tuple[UUID, UUID], int]
) -> Sequence[ScoredChunk]:
    return [ScoredChunk(position=numbers[one.key], score=one.score) for one in found]


async def catch_up(
    memories: Memories,
    tenant_id: UUID,
    session: str,
    names: Iterable[str],
    consistency: Consistency,
    *,
    deadline: float | None,
    are_named: bool,
) -> None:
    """Waits until memories are as fresh as a search of them must be. Raises as `Memories.read`.

    A tree that was closed before, and that the request does not name, is searched as it is.
    """
    for name in names:
        try:
            await memories.catch_up(tenant_id, session, name, consistency, deadline=deadline)
        except FailedPrecondition as error:
            if are_named or error.reason is not Reason.MEMORY_SEALED:
                raise


class MemorySearch:
    """Searches memories for clients, in one server process."""

    def __init__(
        self, database: Database, searcher: Searcher, memories: Memories, token_key: bytes
    ) -> None:
        self._database = database
        self._searcher = searcher
        self._memories = memories
        self._token_key = token_key

    async def find(
        self,
        tenant_id: UUID,
        session: str,
        query: EntryQuery,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> EntrySearch:
        """Searches memories of a session once they are as far as `consistency` says.

        `deadline` is in the event loop's time. Raises NotFound, InvalidInput (token, path,
        filter), and as `Memories.read` and `Searcher.find`.
        """
        key = key_of(tenant_id, session)
        prefix = _prefix(query.path_prefix)
        if query.chunks is not None:
            query.chunks.check()
        if consistency.at_least or consistency.fully_applied:
            names = query.memories or [one.name for one in await self._searched(tenant_id, key)]
            await catch_up(
                *(self._memories, tenant_id, session, names, consistency),
                deadline=deadline,
                are_named=bool(query.memories),
            )

        async def searching(scope: CallScope) -> EntrySearch | None:
            wanted = SearchQuery(query=query.query, mode=query.mode, with_entries=True)
            prepared = await self._searcher.prepare(tenant_id, key, wanted, scope, deadline)
            if prepared is None:
                return None
            return await self._search(tenant_id, session, query, prefix, prepared)

        found = await self._searcher.for_client(tenant_id, key, searching)
        if found is None:
            raise session_not_found(session)
        return found

    async def _searched(self, tenant_id: UUID, key: UUID) -> Sequence[SearchedMemory]:
        async with self._database.direct(tenant_id, name="search") as tx:
            return await read_searched(tx, key)

    async def _search(
        self,
        tenant_id: UUID,
        session: str,
        query: EntryQuery,
        prefix: str,
        prepared: PreparedQuery,
    ) -> EntrySearch:
        key, place = key_of(tenant_id, session), prepared.place
        searched = await self._searched(tenant_id, key)
        if query.memories:
            known = {one.name: one for one in searched}
            for name in query.memories:
                if name not in known:
                    raise memory_not_found(session, name)
            searched = [one for one in searched if one.name in query.memories]
        within = EntryRange(
            memory_ids=[one.memory_id for one in searched],
            path_prefix=prefix,
            chunks=None if query.chunks is None else query.chunks.range(place.head),
            min_trust=None if query.chunks is None else query.chunks.min_trust,
        )
        async with self._database.direct(tenant_id, name="search") as tx:
            hits = await search_entries(
                tx,
                key,
                place,
                prepared.vector,
                within,
                query.limit,
                by_words=prepared.mode is not SearchMode.VECTORS,
            )
            if place.has_rules:
                found = await with_trust(tx, key, [one.found for one in hits])
                hits = [replace(one, found=two) for one, two in zip(hits, found, strict=True)]
        if any(one.is_behind for one in searched):
            await note_for_index(self._database, tenant_id, key)
        return EntrySearch(
            hits=hits,
            mode=prepared.mode,
            memories=[(one, self._token(key, place, one)) for one in searched],
            failure=prepared.failure,
        )

    def _token(self, key: UUID, place: SearchPlace, searched: SearchedMemory) -> str:
        token = ReadToken(
            session_key=key, incarnation=place.incarnation, position=searched.applied_position
        )
        return token.sign(self._token_key)


def _prefix(text: str) -> str:
    """Returns a prefix of paths as they are stored. Raises InvalidInput."""
    if not text.startswith(("$", "/")):
        return text
    try:
        return str(Path.parse(text))
    except PathError as error:
        raise InvalidInput(
            Reason.PATH_INVALID,
            f"{text!r}: {error}",
            {"path": text},
            field="filter.path_prefix",
        ) from error
