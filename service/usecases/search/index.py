"""Indexes the words and the vectors of a session's chunks, after their appends.

After these it writes the entries of memories that are missing, and vectors of entries.

Words are the database's own work and come first; vectors take a model, which may be slow, or
away, or refused by a budget. Then they are tried again later, and words go on meanwhile.
What fails is tried again ever later, each of the two for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import structlog
from opentelemetry import metrics

from service.domain.calls.ledger import CallScope, Gone
from service.domain.log.chunks import LoggedChunk
from service.domain.values.errors import BudgetExhausted
from service.domain.values.pausing import MAX_SECONDS, pause_seconds, spread
from service.domain.values.work_items import WorkItem
from service.llm.embeddings.embedding import Embedder, EmbeddingFailed, TextVector
from service.settings.config import Config
from service.telemetry.names import Metric
from service.usecases.memories.step_failures import cause_of
from service.usecases.search.entry_index import EntryIndexer
from storage.engine.database import Database, Transaction
from storage.engine.errors import Unreachable
from storage.engine.tasks import begin_part
from storage.log import sessions
from storage.memories import work
from storage.search import chunk_index, posting_lists
from storage.search.chunk_index import OF_LISTS, IndexPlace, NewVector, Overtaken, Words

_log = structlog.get_logger("palimpsest.index")

#: Batches of words, or of vectors, after which others get their turn.
MAX_BATCHES = 20
#: Chunks of a batch of vectors, and bytes of their content.
EMBED_CHUNKS = 64
EMBED_BYTES = 512 * 1024
#: Sessions whose chunks one process embeds at once: memories need the worker as well.
EMBED_AT_ONCE = 4
#: A worker that already embeds so many retries another session after this long.
BUSY_SECONDS = 1.0
#: Sessions that are noted at once for another model.
NOTE_ITEMS = 500

_meter = metrics.get_meter("palimpsest.index")
_INDEXED = _meter.create_counter(Metric.INDEX_WORDS, description="Chunks whose words were written")
_EMBEDDED = _meter.create_counter(
    Metric.INDEX_VECTORS, description="Chunks whose vectors were written"
)
_FAILED = _meter.create_counter(
    Metric.INDEX_FAILURES, description="Tries to embed chunks that failed"
)
_WORDS_FAILED = _meter.create_counter(
    Metric.INDEX_WORDS_FAILURES, description="Tries to write words of chunks that failed"
)


#: Finds sessions that lack something: up to a number after a key, as the sweeper.
Lacking = Callable[[Transaction, UUID, int], Awaitable[Sequence[WorkItem]]]


class Indexer:
    """Indexes sessions in one worker process."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder | None,
        config: Config,
        entries: EntryIndexer | None = None,
    ) -> None:
        """`entries` indexes entries of memories; None: only chunks are indexed."""
        self._database = database
        self._embedder = embedder
        self._entries = entries
        #: Wait before the second try.
        self._first = config.step_backoff_seconds
        self._embedding = asyncio.Semaphore(EMBED_AT_ONCE)

    async def index(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Indexes what a session has; returns the seconds after which a worker retries.

        None when there is no more to do now, or when `stop` is set, which ends it between
        two batches. Raises StorageError.
        """
        for _ in range(MAX_BATCHES):
            if stop is not None and stop.is_set():
                return None
            begin_part(stop)
            async with self._database.transaction(item.tenant_id, name="index.position") as tx:
                place = await chunk_index.read_place(tx, item.session_key)
            if place is None:
                return None
            if place.indexed_position < place.head and place.may_write_words:
                words = await self._write_words(item, place)
                if words is None or words.finished:
                    return None
            elif place.may_write_lists and _lists_due(place):
                listed = place.listed_position
                if await self._write_lists(item, place, listed, place.indexed_position) is None:
                    return None
            elif self._entries is not None and place.lacks_entries and place.may_embed:
                if not await self._write_entries(item, self._entries, place):
                    return None
            elif self._embedder is not None and place.may_embed and self._lacks_vectors(place):
                if not await self._write_vectors(item, self._embedder, place):
                    return None
            else:
                await self._settle(item, place)
                return None
        return 0.0

    async def note_all(self) -> int:
        """Notes the sessions that lack vectors of the configured model, or entries of memories.

        Returns how many. Those that get chunks are noted anyway; the others would wait for one.
        Raises StorageError.
        """
        noted = 0
        if self._entries is not None:
            noted += await self._note(work.without_entries)
        if self._embedder is not None:
            model = self._embedder.model
            noted += await self._note(lambda sweep, *rest: work.unembedded(sweep, model, *rest))
        return noted

    async def note_entries(self) -> int:
        """Notes the sessions with entries that have no vector; returns how many.

        What writes these does not note them: it would hold up appends. Raises StorageError.
        """
        if self._entries is None or self._embedder is None:
            return 0
        return await self._note(work.unembedded_entries)

    async def _note(self, lacking: Lacking) -> int:
        noted, after = 0, UUID(int=0)
        while True:
            async with self._database.sweeping(name="index") as sweep:
                items = await lacking(sweep, after, NOTE_ITEMS)
            if not items:
                return noted
            by_tenant: dict[UUID, list[UUID]] = {}
            for item in items:
                by_tenant.setdefault(item.tenant_id, []).append(item.session_key)
            for tenant_id, keys in by_tenant.items():
                async with self._database.transaction(tenant_id, name="index") as tx:
                    await chunk_index.note_unembedded(tx, keys)
            noted += len(items)
            after = items[-1].session_key

    def _lacks_vectors(self, place: IndexPlace) -> bool:
        assert self._embedder is not None, "vectors are missing only where there is one"
        if self._lacks_chunk_vectors(place):
            return True
        # Of a session without chunks those of entries may all be of another model.
        is_former = place.embedding_model not in ("", self._embedder.model)
        return self._entries is not None and (place.lacks_entry_vectors or is_former)

    def _lacks_chunk_vectors(self, place: IndexPlace) -> bool:
        assert self._embedder is not None, "vectors are missing only where there is one"
        is_whole = place.embedded_position == place.head
        return place.head > 0 and not (is_whole and place.embedding_model == self._embedder.model)

    async def _settle(self, item: WorkItem, place: IndexPlace) -> None:
        # Where something is missing, the session stays noted, and workers find it again.
        model = None if self._embedder is None else self._embedder.model
        async with self._database.transaction(item.tenant_id, name="index.complete") as tx:
            if _lists_due(place):
                await chunk_index.rest_from_lists(tx, item.session_key)
            elif not await chunk_index.finish(tx, item.session_key, model):
                await chunk_index.rest(tx, item.session_key)

    async def _write_words(self, item: WorkItem, place: IndexPlace) -> Words | None:
        """Writes a batch; returns None when another worker is at it."""
        after = place.indexed_position
        # Lists are written after the words, so that a session with some to come is not done.
        lists = posting_lists.is_due(place.listed_position, place.head)
        more = lists or self._embedder is not None
        more = more or (self._entries is not None and place.lacks_entries)
        try:
            async with self._writing_words(item, place) as tx:
                words = await chunk_index.write_words(
                    tx, item.session_key, after, finishes=not more
                )
        except Overtaken:
            return None
        if words is None:
            return None
        _INDEXED.add(words.position - after)
        listed: int | None = place.listed_position
        # One that has its words before its chunks; the others come after all words.
        if (
            place.may_write_lists
            and not posting_lists.is_due(place.listed_position, words.position)
            and posting_lists.is_due(place.listed_position, words.position, before=after)
        ):
            while listed is not None:
                listed = await self._write_lists(item, place, listed, words.position)
        return words

    async def _write_lists(
        self, item: WorkItem, place: IndexPlace, after: int, indexed: int
    ) -> int | None:
        """Lists a block of a long session; None when there is none, or another worker is at it."""
        async with self._writing_words(item, place, lists=True) as tx:
            if await sessions.keep(tx, item.session_key) is None:
                return None
            listed = await posting_lists.write_block(tx, item.session_key, after, indexed)
            if listed is not None and place.words_attempts:
                await chunk_index.forget_words_failure(tx, item.session_key)
        return listed

    @asynccontextmanager
    async def _writing_words(
        self, item: WorkItem, place: IndexPlace, *, lists: bool = False
    ) -> AsyncIterator[Transaction]:
        # Words that are lost are written again, with the position that they reached.
        try:
            async with self._database.transaction(
                item.tenant_id, lazily=True, name="index.words"
            ) as tx:
                yield tx
        except Overtaken:
            raise
        except Exception as error:
            # A statement that takes too long, or that the database refuses: it goes on as it
            # is, but the same is not tried again at once, for ever.
            if not isinstance(error, Unreachable):
                await self._back_off_words(item, place, error, lists=lists)
            raise

    async def _write_vectors(self, item: WorkItem, embedder: Embedder, place: IndexPlace) -> bool:
        """Writes a batch; returns False when it is not due, or another worker is at it."""
        if self._embedding.locked():
            async with self._database.transaction(item.tenant_id, name="index") as tx:
                await chunk_index.back_off(tx, item.session_key, BUSY_SECONDS)
            return False
        async with self._embedding:
            try:
                if self._lacks_chunk_vectors(place):
                    await self._embed(item, embedder, place)
                else:
                    await self._embed_entries(item, embedder, place)
            except (Overtaken, Gone):
                return False
            except (EmbeddingFailed, BudgetExhausted) as error:
                await self._back_off(item, place, error)
                # Words of what came meanwhile are not to wait.
                return True
            except Exception as error:
                # As with words; and here each try costs a call.
                if not isinstance(error, Unreachable):
                    await self._back_off(item, place, error)
                raise
        return True

    async def _embed(self, item: WorkItem, embedder: Embedder, place: IndexPlace) -> None:
        after = place.embedded_position
        async with self._database.transaction(item.tenant_id, name="index.chunks") as tx:
            if place.embedding_model != embedder.model:
                await chunk_index.begin_model(
                    tx, item.session_key, embedder.model, before=place.embedding_model
                )
                after = 0
            chunks = await chunk_index.read_to_embed(
                tx, item.session_key, after, chunks=EMBED_CHUNKS, max_bytes=EMBED_BYTES
            )
        last = chunks[-1].position
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=item.session_key,
            memory_id=None,
            occasion=f"embed:{after + 1}-{last}",
            incarnation=place.incarnation,
        )
        chunks = [one for one in chunks if not one.chunk.is_redacted]
        texts = [one.chunk.as_text() for one in chunks]
        made = await embedder.embed_chunks(texts, scope=scope)
        async with self._database.transaction(item.tenant_id, name="index.vectors") as tx:
            await chunk_index.write_vectors(
                tx,
                item.session_key,
                embedder.model,
                _rows(chunks, made),
                after_position=after,
                to_position=last,
            )
        _EMBEDDED.add(len(chunks))

    async def _embed_entries(self, item: WorkItem, embedder: Embedder, place: IndexPlace) -> None:
        assert self._entries is not None, "else no vectors of entries are wanted"
        if place.embedding_model != embedder.model:
            async with self._database.transaction(item.tenant_id, name="index") as tx:
                await chunk_index.begin_model(
                    tx, item.session_key, embedder.model, before=place.embedding_model
                )
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=item.session_key,
            memory_id=None,
            occasion="embed:entries",
            incarnation=place.incarnation,
        )
        await self._entries.embed(embedder, scope)

    async def _write_entries(
        self, item: WorkItem, entries: EntryIndexer, place: IndexPlace
    ) -> bool:
        """Writes the entries of a memory; returns False when it moved on meanwhile."""
        try:
            return await entries.catch_up(item.tenant_id, item.session_key)
        except Exception as error:
            # Of a memory that cannot be read: words and other sessions go on.
            if not isinstance(error, Unreachable):
                await self._back_off(item, place, error)
            raise

    async def _back_off(self, item: WorkItem, place: IndexPlace, error: Exception) -> None:
        """Counts a failed try; the next one is later, and never before a refusal allows it."""
        _FAILED.add(1)
        if isinstance(error, BudgetExhausted):
            # One that is raised is seen at the next look, and looking costs nothing.
            seconds = min(error.resume_seconds or MAX_SECONDS, MAX_SECONDS)
        elif isinstance(error, EmbeddingFailed) and not error.retryable:
            seconds = spread(MAX_SECONDS)
        else:
            # An unexpected error may pass, as with steps.
            asked = error.retry_seconds if isinstance(error, EmbeddingFailed) else None
            seconds = pause_seconds(self._first, place.attempts, asked_seconds=asked or 0.0)
        cause = cause_of(error)
        _log.warning(
            "chunks not embedded",
            session=str(item.session_key),
            attempt=place.attempts + 1,
            seconds=round(seconds, 1),
            cause=cause,
        )
        async with self._database.transaction(item.tenant_id, name="index") as tx:
            await chunk_index.back_off(tx, item.session_key, seconds, cause)

    async def _back_off_words(
        self, item: WorkItem, place: IndexPlace, error: Exception, *, lists: bool
    ) -> None:
        """Counts a failed try; the next one is later."""
        _WORDS_FAILED.add(1)
        before = place.words_attempts if place.lists_failed == lists else 0
        seconds = pause_seconds(self._first, before)
        cause = (OF_LISTS if lists else "") + cause_of(error)
        _log.warning(
            "words not written",
            session=str(item.session_key),
            after_position=place.indexed_position,
            attempt=before + 1,
            seconds=round(seconds, 1),
            cause=cause,
        )
        async with self._database.transaction(item.tenant_id, name="index") as tx:
            await chunk_index.back_off_words(tx, item.session_key, seconds, cause, before + 1)


def _lists_due(place: IndexPlace) -> bool:
    return posting_lists.is_due(place.listed_position, place.indexed_position)


def _rows(chunks: Sequence[LoggedChunk], made: Sequence[Sequence[TextVector]]) -> list[NewVector]:
    return [
        NewVector(
            position=chunk.position,
            part=part,
            from_character=one.from_character,
            to_character=one.to_character,
            values=one.values,
        )
        for chunk, vectors in zip(chunks, made, strict=True)
        for part, one in enumerate(vectors)
    ]
