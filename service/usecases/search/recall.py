"""Recalls what fits a query: memories, chunks and what no memory has read, as one text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.log.chunks import LoggedChunk
from service.domain.log.read_tokens import ReadToken
from service.domain.prism import default_memory
from service.domain.prompting.tokens import TOKEN_BYTES
from service.domain.search.recall import (
    RecalledText,
    RecallEntry,
    RecallHit,
    RecallKind,
    RecallMaterial,
    compose,
    fit_whole,
    neighbours,
)
from service.domain.values.json_values import restore
from service.domain.values.tenancy import session_key
from service.llm.offloading import beside
from service.settings.config import Config
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.lookup import memory_not_found, session_not_found
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memories import Memories
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.meanwhile import meanwhile
from service.usecases.search.memories import EntryHit, catch_up, search_entries
from service.usecases.search.search import (
    FoundPage,
    SearchHit,
    SearchMode,
    SearchQuery,
    note_for_index,
)
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.log.sessions import StoredSession
from storage.search.entry_search import (
    EntryRange,
    FoundEntry,
    SearchedMemory,
    read_newest_entries,
    read_searched,
    with_trust,
)
from storage.search.finding import read_chunks, with_positions
from storage.search.recalling import read_newest

#: Tokens of a text that names no budget.
DEFAULT_TOKENS = 1000
#: Tokens of the chunks that a budget is expected to hold, at least: so many are searched for.
TOKENS_PER_HIT = 12
MIN_HITS, MAX_HITS = 10, 100
#: Entries that a search of the memories returns at most.
MAX_ENTRIES = 500
#: Chunks and neighbours are read up to this many times the bytes of the budget, or LEAST_BYTES.
READ_SHARE = 8
LEAST_BYTES = 256 * 1024
#: A chunk with more than this share of them counts by itself.
LARGE_SHARE = 1 / 8
#: What of the newest messages is the query where there is none, and how much of them is read.
QUERY_CHUNKS = 4
QUERY_BYTES = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallQuery:
    """What is recalled."""

    #: Empty: the newest messages.
    query: str = ""
    #: The budget, by `estimate_tokens`.
    max_tokens: int = DEFAULT_TOKENS
    #: Names; empty: `default`, or all of them where none has that name.
    memories: Sequence[str] = ()
    #: Filters the chunks, and not the entries of memories.
    filter: ChunkFilter | None = None
    mode: SearchMode = SearchMode.DEFAULT
    #: The sections that are wanted; empty: all.
    kinds: frozenset[RecallKind] = frozenset()

    def wants(self, kind: RecallKind) -> bool:
        """Returns whether a section is wanted."""
        return not self.kinds or kind in self.kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class RecalledMemory:
    """How far a memory was that was recalled."""

    memory: str
    revision: int
    applied_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """What was recalled."""

    recalled: RecalledText
    memories: Sequence[RecalledMemory]
    #: The search of the chunks; None without one.
    page: FoundPage | None
    #: The position of the newest chunk, and a token of the log up to there.
    head: int
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """What a recall is about."""

    session: StoredSession
    memories: Sequence[SearchedMemory]
    query: str

    @property
    def applied_position(self) -> int:
        """All of the memories have read the log up to here; 0 without one.

        Without closed trees, which read no more, unless there are no others.
        """
        reading = [one for one in self.memories if not one.is_closed] or self.memories
        return min((one.applied_position for one in reading), default=0)

    @property
    def names(self) -> Mapping[UUID, str]:
        """The names of the memories by their ids."""
        return {one.memory_id: one.name for one in self.memories}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Newest:
    """What a recall reads whatever is searched for."""

    #: The newest entries of the memories.
    entries: Sequence[RecallEntry]
    #: Whether these are all, and have room.
    are_whole: bool
    #: The newest chunks that no memory has read.
    unread: Sequence[LoggedChunk]


class Recaller:
    """Recalls, in one server process."""

    def __init__(
        self,
        database: Database,
        search: ConsistentSearch,
        memories: Memories,
        token_key: bytes,
        config: Config,
    ) -> None:
        self._database = database
        self._search = search
        self._memories = memories
        self._token_key = token_key
        self._embedding_seconds = config.recall_embedding_seconds

    async def recall(
        self,
        tenant_id: UUID,
        session: str,
        query: RecallQuery,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> Recalled:
        """Recalls from a session once memories and index are as far as `consistency` says.

        `deadline` is in the event loop's time. Raises NotFound, and as `Memories.read` and
        `ConsistentSearch.find`.
        """
        (query.filter or ChunkFilter()).check()
        subject = await self._subject(tenant_id, session, query)
        if consistency.at_least or consistency.fully_applied:
            names = [one.name for one in subject.memories]
            await catch_up(
                *(self._memories, tenant_id, session, names, consistency),
                deadline=deadline,
                are_named=bool(query.memories),
            )
            subject = await self._subject(tenant_id, session, query)
        async with meanwhile(self._newest(tenant_id, query, subject)) as reading:
            page = await self._found(tenant_id, session, query, subject, consistency, deadline)
            newest = await reading
        material = await self._material(tenant_id, query, subject, newest, page)
        recalled = await beside(compose, material, query.max_tokens)
        if any(one.is_behind for one in subject.memories):
            await note_for_index(self._database, tenant_id, subject.session.session_key)
        head = subject.session.head
        token = ReadToken(
            session_key=subject.session.session_key,
            incarnation=subject.session.incarnation,
            position=head,
        )
        return Recalled(
            recalled=recalled,
            memories=[
                RecalledMemory(
                    memory=one.name, revision=one.revision, applied_position=one.applied_position
                )
                for one in subject.memories
            ],
            page=page,
            head=head,
            token=token.sign(self._token_key),
        )

    async def _subject(self, tenant_id: UUID, session: str, query: RecallQuery) -> _Subject:
        """Reads the session, its memories, and without a query its newest messages."""
        key = session_key(tenant_id, session)
        async with self._database.direct(tenant_id, name="recall") as tx:
            stored = await sessions.get(tx, key)
            if stored is None:
                raise session_not_found(session)
            found: Sequence[SearchedMemory] = ()
            is_read = query.wants(RecallKind.MEMORY) or query.wants(RecallKind.UNREAD)
            if is_read or query.memories:
                wanted = _wanted(session, query, await read_searched(tx, key))
                found = wanted if is_read else ()
            asked = query.query
            if not asked.strip() and query.wants(RecallKind.CHUNK):
                asked = await _newest_texts(tx, stored, query.filter or ChunkFilter())
        return _Subject(session=stored, memories=found, query=asked)

    async def _found(
        self,
        tenant_id: UUID,
        session: str,
        query: RecallQuery,
        subject: _Subject,
        consistency: Consistency,
        deadline: float | None,
    ) -> FoundPage | None:
        wanted = query.wants(RecallKind.CHUNK) or query.wants(RecallKind.MEMORY)
        if not wanted or not subject.query.strip():
            return None
        hits = min(max(query.max_tokens // TOKENS_PER_HIT, MIN_HITS), MAX_HITS)
        reading = await self._search.find(
            tenant_id,
            session,
            SearchQuery(
                query=subject.query,
                limit=hits,
                mode=query.mode,
                filter=query.filter,
                up_to=subject.session.head,
                with_chunks=False,
                with_entries=query.wants(RecallKind.MEMORY),
                embedding_seconds=self._embedding_seconds,
            ),
            consistency,
            deadline=deadline,
        )
        return reading.page

    async def _newest(self, tenant_id: UUID, query: RecallQuery, subject: _Subject) -> _Newest:
        """Reads what needs no search: the newest entries, and the newest chunks."""
        key, head = subject.session.session_key, subject.session.head
        max_bytes = query.max_tokens * TOKEN_BYTES
        within = (query.filter or ChunkFilter()).range(head)
        within = replace(
            within, from_position=max(within.from_position, subject.applied_position + 1)
        )
        rows: Sequence[FoundEntry] = ()
        are_all = True
        unread: Sequence[LoggedChunk] = ()
        async with self._database.direct(tenant_id, name="recall") as tx:
            if query.wants(RecallKind.MEMORY):
                ids = [one.memory_id for one in subject.memories]
                rows, are_all = await read_newest_entries(tx, key, ids, max_bytes)
                rows = _trusted(await with_trust(tx, key, rows), within.min_trust)
            if query.wants(RecallKind.UNREAD) and within.from_position <= within.to_position:
                within = await with_positions(tx, key, within)
                unread = await read_newest(tx, key, within, max_bytes)
                unread = [one for one in unread if one.is_read]
        entries, fit = await beside(_recalled_entries, rows, subject.names, query.max_tokens)
        return _Newest(entries=entries, are_whole=are_all and fit, unread=unread)

    async def _material(
        self,
        tenant_id: UUID,
        query: RecallQuery,
        subject: _Subject,
        newest: _Newest,
        page: FoundPage | None,
    ) -> RecallMaterial:
        entries = newest.entries
        hits: Sequence[RecallHit] = ()
        if page is not None and query.wants(RecallKind.CHUNK):
            hits = [_hit(one) for one in page.found]
        positions = _shown_positions(query, subject, hits)
        most = max(READ_SHARE * query.max_tokens * TOKEN_BYTES, LEAST_BYTES)
        chunks: Mapping[int, LoggedChunk] = {}
        best: Sequence[EntryHit] = ()
        async with self._database.direct(tenant_id, name="recall") as tx:
            if page is not None and not newest.are_whole:
                best = await _best_entries(
                    tx, subject, page, (query.filter or ChunkFilter()).min_trust
                )
            if positions:
                chunks = await read_chunks(
                    *(tx, subject.session.session_key, positions, most), int(most * LARGE_SHARE)
                )
                chunks = {at: one for at, one in chunks.items() if one.is_read}
        if best:
            entries = await beside(_with_newest, best, newest.entries, subject.names)
        return RecallMaterial(
            query=subject.query,
            entries=entries,
            hits=hits,
            chunks=chunks,
            unread=newest.unread,
            has_memory=bool(subject.memories),
        )


def _shown_positions(
    query: RecallQuery, subject: _Subject, hits: Sequence[RecallHit]
) -> Sequence[int]:
    """Returns the positions of hits, and of those neighbours that the filter lets through."""
    wanted = query.filter or ChunkFilter()
    found = {one.position for one in hits}
    if not _keeps_neighbours(wanted):
        return [one for one in neighbours(hits) if one in found]
    within = wanted.range(subject.session.head)
    return [
        one
        for one in neighbours(hits)
        if one in found or within.from_position <= one <= within.to_position
    ]


def _hit(found: SearchHit) -> RecallHit:
    """Returns a hit whose best part is the one that vectors found, unless words found the chunk."""
    hit = RecallHit(position=found.position, score=found.score)
    if found.words_rank:
        return hit
    return replace(hit, from_character=found.from_character, to_character=found.to_character)


def _wanted(
    session: str, query: RecallQuery, stored: Sequence[SearchedMemory]
) -> Sequence[SearchedMemory]:
    """Returns the memories that are recalled, by name. Raises NotFound."""
    by_name = {one.name: one for one in stored}
    if query.memories:
        for name in query.memories:
            if name not in by_name:
                raise memory_not_found(session, name)
        return [by_name[name] for name in dict.fromkeys(query.memories)]
    default = by_name.get(default_memory.NAME)
    return stored if default is None else [default]


async def _newest_texts(tx: Transaction, stored: StoredSession, wanted: ChunkFilter) -> str:
    """Returns the newest messages, which are the query where there is none."""
    if not stored.head:
        return ""
    within = await with_positions(tx, stored.session_key, wanted.range(stored.head))
    newest = await read_newest(tx, stored.session_key, within, QUERY_BYTES)
    texts = [one.chunk.as_text() for one in newest[-QUERY_CHUNKS:]]
    return "\n".join(texts)[-QUERY_BYTES:]


def _keeps_neighbours(wanted: ChunkFilter) -> bool:
    """Returns whether what stands beside a chunk in its thread fits the filter as well."""
    others = replace(wanted, from_position=0, to_position=0, threads=(), excluded_threads=())
    return not others.conditions()


async def _best_entries(
    tx: Transaction, subject: _Subject, page: FoundPage, min_trust: Trust | None
) -> Sequence[EntryHit]:
    key = subject.session.session_key
    hits = await search_entries(
        *(tx, key, page.index, page.vector),
        EntryRange(memory_ids=list(subject.names), min_trust=min_trust),
        MAX_ENTRIES,
        by_words=page.mode is not SearchMode.VECTORS,
    )
    if not page.index.has_rules:
        return hits
    found = await with_trust(tx, key, [one.found for one in hits])
    return [replace(one, found=entry) for one, entry in zip(hits, found, strict=True)]


def _trusted(rows: Sequence[FoundEntry], least: Trust | None) -> Sequence[FoundEntry]:
    return rows if least is None else [one for one in rows if one.trust.suffices(least)]


def _with_newest(
    best: Sequence[EntryHit], newest: Sequence[RecallEntry], names: Mapping[UUID, str]
) -> Sequence[RecallEntry]:
    """Returns the entries that a search found, best first, then the newest others."""
    found = [replace(_entry(one.found, names), score=one.score) for one in best]
    ranked = {(one.memory, one.path, one.number) for one in found}
    others = (one for one in newest if (one.memory, one.path, one.number) not in ranked)
    return [*found, *others]


def _recalled_entries(
    rows: Sequence[FoundEntry], names: Mapping[UUID, str], max_tokens: int
) -> tuple[Sequence[RecallEntry], bool]:
    """Returns stored entries as they are recalled, and whether all have room."""
    entries = [_entry(one, names) for one in rows]
    return entries, fit_whole(entries, max_tokens)


def _entry(found: FoundEntry, names: Mapping[UUID, str]) -> RecallEntry:
    value = restore(found.entry.value)
    return RecallEntry(
        memory=names[found.memory_id],
        path=found.entry.path,
        number=found.entry.part,
        text=found.entry.text,
        said=value if isinstance(value, str) else "",
        revision=found.revision,
        first_position=found.first_position,
        last_position=found.last_position,
        trust=found.trust,
    )
