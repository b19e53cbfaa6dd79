"""Defines what the use cases need of trees."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.log.chunks import LoggedChunk
from service.domain.operations.verifying.tree import TreeCheck
from service.domain.prompting.tokens import TOKEN_BYTES, estimate_tokens
from service.domain.search.entries import WrittenEntry
from service.domain.tree.borders import SegmentPiece
from service.domain.tree.nodes import Node, TextOffset, node_entries
from service.domain.tree.segmenting import joined, piece_of
from service.domain.tree.spec import TreeSpec
from service.usecases.log.lookup import find_memory
from service.usecases.memories.kinds import Findings, KindUseCases
from service.usecases.memories.memories import MemoryReading, ValueReader, reading_of
from service.usecases.memories.verifying import RevisionChain, RowsAhead
from service.usecases.tree.outline import read_outline
from storage.engine.database import Database, Transaction
from storage.log import chunks
from storage.memories.memories import StoredMemory
from storage.operations import chunk_retention, verifying
from storage.tree import trees

#: More than the text of any leaf, in bytes: a segment has 100,000 tokens at most.
MAX_LEAF_BYTES = 200_000 * TOKEN_BYTES


class TreeUseCases(KindUseCases):
    """What is different for trees."""

    async def shown_bytes(
        self, tx: Transaction, stored: Sequence[StoredMemory], upto: int
    ) -> Sequence[int]:
        """Returns the sizes of the summaries of one node's children, at most."""
        specs = [TreeSpec.of(one) for one in stored]
        return [one.max_children * one.summary_tokens * TOKEN_BYTES for one in specs]

    async def entries(self, tx: Transaction, stored: StoredMemory) -> Sequence[WrittenEntry]:
        """Returns the summaries of all nodes."""
        key = (stored.session_key, stored.memory_id)
        return [
            one
            for level in await verifying.levels(tx, *key)
            async for revision, node in verifying.nodes(tx, *key, level)
            for one in node_entries(node, revision)
        ]

    async def verify(self, tx: Transaction, stored: StoredMemory) -> Findings:
        """Yields what differs in a memory. `tx` is a snapshot."""
        key = (stored.session_key, stored.memory_id)
        chain, texts = RevisionChain(tx, stored), LeafTexts(tx, stored.session_key)
        check = TreeCheck(trees.digest, TreeSpec.of(stored).max_children)
        levels = [
            RowsAhead(verifying.nodes(tx, *key, level))
            for level in await verifying.levels(tx, *key)
        ]
        async for row, told in chain.rows():
            for one in told:
                yield one
            nodes = [node for level in levels for node in await level.of(row.revision)]
            for difference in check.revision(row, nodes):
                yield difference
            for node in nodes:
                if node.level == 0:
                    tokens, has_words = await _text_under(texts, key, node)
                    for difference in check.leaf(node, tokens, has_words=has_words):
                        yield difference
        for difference in check.finish(is_sealed=stored.status == "sealed"):
            yield difference
        for one in chain.finish():
            yield one


class _Withheld(Exception):
    """A source within a leaf is blocked."""


class LeafTexts:
    """Reads the texts of leaves, one after another.

    It keeps the last chunk that was read, since a chunk may have thousands of leaves.
    """

    def __init__(self, tx: Transaction, session_key: UUID) -> None:
        self.tx = tx
        self.session_key = session_key
        self._last: LoggedChunk | None = None

    async def words(self, start: TextOffset, end: TextOffset) -> str:
        """Returns the text of an imported leaf whose words are indexed; empty: there is none."""
        try:
            pieces = await _pieces(self, start, end)
        except _Withheld:
            return ""
        return "" if pieces is None else trees.indexed(joined(pieces))

    async def chunks(self, after: int, limit: int) -> Sequence[LoggedChunk]:
        """Returns up to `limit` chunks after a position."""
        if limit == 1 and self._last is not None and self._last.position == after + 1:
            return [self._last]
        page = await chunks.read(self.tx, self.session_key, after, limit)
        self._last = page[-1] if page else None
        return page


async def _text_under(
    texts: LeafTexts, key: tuple[UUID, UUID], leaf: Node
) -> tuple[int | None, bool]:
    """Returns the tokens of a leaf's text, and whether the words that are stored are its own.

    None when the log has no such places.
    """
    try:
        pieces = await _pieces(texts, leaf.start, leaf.end)
    except _Withheld:
        # It was made from what was not withheld then, which is not stored.
        return leaf.text_tokens, True
    if pieces is None:
        return None, False
    # A leaf of version 0.1 has the second one; an import has its tokens, and words of the first.
    known = dict.fromkeys((joined(pieces), joined(pieces, as_written=True)))
    counts = [estimate_tokens(text) for text in known]
    tokens = leaf.text_tokens if leaf.text_tokens in counts else counts[0]
    places = (leaf.start.position, leaf.end.last_position)
    if tokens > leaf.text_tokens and await verifying.has_sources(texts.tx, key[0], *places):
        # One of them was blocked when it was made, and is not any more, or not in this copy.
        return leaf.text_tokens, True
    for text in known:
        if await verifying.has_words(texts.tx, *key, leaf.number, trees.indexed(text)):
            return tokens, True
    return tokens, False


async def _pieces(
    texts: LeafTexts, start: TextOffset, end: TextOffset
) -> list[SegmentPiece] | None:
    """Returns the text from `start` to before `end`; None when the log has no such offsets.

    None also for more than any leaf has, which is not read to its end.
    """
    expired = await chunk_retention.expired_position(texts.tx, texts.session_key) or 0
    if start.position <= expired:
        raise _Withheld
    pieces: list[SegmentPiece] = []
    after, size = start.position - 1, 0
    while after < end.last_position:
        limit = min(verifying.PAGE_CHUNKS, end.last_position - after)
        page = await texts.chunks(after, limit)
        if any(one.trust is Trust.BLOCKED for one in page):
            raise _Withheld
        for logged in page:
            whole = piece_of(logged)
            upto = end.offset if logged.position == end.position else len(whole.text)
            begin = start.offset if logged.position == start.position else 0
            if upto > len(whole.text) or (begin and begin >= len(whole.text)):
                return None
            part = whole.text[begin:upto]
            size += len(part.encode())
            if size > MAX_LEAF_BYTES:
                return None
            pieces.append(
                SegmentPiece(position=whole.position, offset=begin, text=part, whole=whole.whole)
            )
        if len(page) < limit or page[-1].position != after + limit:
            return None
        after += limit
    return pieces


class TreeValues(ValueReader):
    """Reads trees as the values of memories."""

    def __init__(self, database: Database, token_key: bytes) -> None:
        self._database = database
        self._token_key = token_key

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the outline at a revision, or the newest. Raises NotFound, OutOfRange."""
        assert position is None, "a tree has a revision for each position"
        async with self._database.transaction(tenant_id, name="memories") as tx:
            stored = await find_memory(tx, session, name)
            outline = await read_outline(tx, stored, revision)
        return reading_of(
            self._token_key,
            stored,
            outline.value_json(),
            outline.revision,
            outline.applied_position,
        )
