"""Verifying a memory: its rows, in the order of its revisions, through the check of its kind."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar
from uuid import UUID

from service.domain.operations.verifying.chain import (
    ChainCheck,
    MemoryRow,
    RevisionRow,
)
from service.domain.operations.verifying.differences import Difference
from service.domain.operations.verifying.prism import PrismCheck, PrismRevision
from service.domain.operations.verifying.state import StateCheck, StateRevision
from service.domain.operations.verifying.tree import LeafText, TreeCheck
from service.domain.prism.amendments import Amendment
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.tree import Mismatch
from service.domain.prism.spec import Encoding
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.vectors import StateVector
from service.domain.tree.nodes import Node, TextOffset
from service.domain.tree.segmenting import SegmentPiece, joined, piece_of
from service.domain.values.json_values import Json
from service.domain.values.memory_kinds import MemoryKind
from storage.engine.database import Transaction
from storage.log import chunks
from storage.memories import memories
from storage.memories.memories import StoredMemory
from storage.operations import verifying
from storage.prism import states
from storage.state import vectors
from storage.tree import trees

#: Revisions between two words of progress.
PROGRESS_REVISIONS = 1000

#: A difference, or how many revisions were looked at.
Findings = AsyncGenerator[Difference | int]
_Row = TypeVar("_Row")


async def verify_memory(tx: Transaction, session_key: UUID, memory_id: UUID) -> Findings:
    """What differs in a memory. `tx` is a snapshot."""
    try:
        stored = await memories.get(tx, session_key, memory_id)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # Only of what nobody of the service wrote: then it may be anything.
        yield Difference(name="memory.spec", place="memory", said=f"it cannot be read: {error}")
        return
    if stored is None:
        said = "its id is not that of its name"
        yield Difference(name="memory.name", place="memory", said=said)
        return
    async with aclosing(_BY_KIND[MemoryKind(stored.kind)](tx, stored)) as differences:
        async for one in differences:
            yield one


class _Chain:
    """The revisions of a memory, each told to the check that all kinds share."""

    def __init__(self, tx: Transaction, stored: StoredMemory) -> None:
        self._rows = verifying.revisions(tx, stored.session_key, stored.memory_id)
        self._check = ChainCheck()
        self._stored = stored
        self.count = 0

    async def rows(self) -> AsyncGenerator[tuple[RevisionRow, Iterable[Difference | int]]]:
        """Every revision, with what is to be told before what it brought."""
        async for row in self._rows:
            self.count += 1
            told: list[Difference | int] = list(self._check.revision(row))
            if self.count % PROGRESS_REVISIONS == 0:
                told.append(self.count)
            yield row, told

    def finish(self) -> Iterable[Difference | int]:
        """What the memory's row says of them."""
        stored = self._stored
        row = MemoryRow(
            revision=stored.revision,
            applied_position=stored.applied_position,
            status=stored.status,
            head=stored.head,
            has_open_letter=stored.stall is not None,
        )
        return [*self._check.finish(row), self.count]


class _Ahead(Generic[_Row]):
    """Rows that belong to revisions, in order of these; looks one row ahead."""

    def __init__(self, rows: AsyncIterator[tuple[int, _Row]]) -> None:
        self._rows = rows
        self._next: tuple[int, _Row] | None = None
        self._is_begun = False

    async def of(self, revision: int) -> list[_Row]:
        """Those of a revision; those of earlier ones that nobody asked for are left out."""
        found: list[_Row] = []
        while (one := await self._peek()) is not None and one[0] <= revision:
            if one[0] == revision:
                found.append(one[1])
            self._next = await anext(self._rows, None)
        return found

    async def _peek(self) -> tuple[int, _Row] | None:
        if not self._is_begun:
            self._is_begun = True
            self._next = await anext(self._rows, None)
        return self._next


async def _prism(tx: Transaction, stored: StoredMemory) -> Findings:
    key = (stored.session_key, stored.memory_id)
    chain, check = _Chain(tx, stored), PrismCheck(stored.prism.schema())
    amended = _Ahead(_amended(tx, *key))
    bases = _Ahead(verifying.saved(tx, "prism_base", *key))
    snapshots = _Ahead(verifying.saved(tx, "prism_snapshot", *key))
    async for row, told in chain.rows():
        for one in told:
            yield one
        restored = None
        if row.restored_revision is not None:
            restored = await _restored(tx, stored, row.restored_revision)
        whole = PrismRevision(
            row=row,
            amendments=await amended.of(row.revision),
            base=next(iter(await bases.of(row.revision)), None),
            snapshot=next(iter(await snapshots.of(row.revision)), None),
            restored=restored,
        )
        for difference in check.revision(whole):
            yield difference
    newest = await verifying.newest_value(tx, *key)
    if newest is None:
        yield Difference(name="prism.value", place="newest value", said="there is none")
    else:
        revision, value, unsaved = newest
        for difference in check.finish(
            revision=stored.revision, stored_revision=revision, value=value, unsaved=unsaved
        ):
            yield difference
    for one in chain.finish():
        yield one


async def _amended(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> AsyncGenerator[tuple[int, tuple[int, Amendment | None]]]:
    async for revision, ordinal, one in verifying.amendments(tx, session_key, memory_id):
        yield revision, (ordinal, one)


async def _restored(tx: Transaction, stored: StoredMemory, revision: int) -> Json:
    """The state of an earlier revision, which was compared before; None if it cannot be read."""
    try:
        rows = await states.read_nearest(tx, stored.session_key, stored.memory_id, revision)
        if rows is None:
            return None
        return PrismMemory.load(
            stored.prism.schema(),
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=Encoding.IN_PLACE,
        ).value
    except (Mismatch, ValueError):
        return None


async def _tree(tx: Transaction, stored: StoredMemory) -> Findings:
    key = (stored.session_key, stored.memory_id)
    chain = _Chain(tx, stored)
    check = TreeCheck(trees.digest, stored.tree.max_children)
    levels = [
        _Ahead(verifying.nodes(tx, *key, level)) for level in await verifying.levels(tx, *key)
    ]
    leaves = _LeafTexts(tx, *key)
    async for row, told in chain.rows():
        for one in told:
            yield one
        nodes = [node for level in levels for node in await level.of(row.revision)]
        for difference in check.revision(row, nodes):
            yield difference
        for node in nodes:
            if node.level == 0:
                for difference in check.leaf(node, await leaves.under(node)):
                    yield difference
    for difference in check.finish(is_sealed=stored.status == "sealed"):
        yield difference
    for one in chain.finish():
        yield one


class _LeafTexts:
    """What the log has under leaves that come one after the other."""

    def __init__(self, tx: Transaction, session_key: UUID, memory_id: UUID) -> None:
        self._tx = tx
        self._key = (session_key, memory_id)

    async def under(self, leaf: Node) -> LeafText:
        """The text of a leaf, compared with what is stored of it."""
        text = await self._text(leaf.start, leaf.end)
        if text is None:
            return LeafText(tokens=None, has_words=False)
        kept = trees.indexed(text)
        same = await verifying.has_words(self._tx, *self._key, leaf.number, kept)
        return LeafText(tokens=estimate_tokens(text), has_words=same)

    async def _text(self, start: TextOffset, end: TextOffset) -> str | None:
        """From `start` to before `end`; None when the log has no such places."""
        pieces: list[SegmentPiece] = []
        after = start.position - 1
        while after < end.last_position:
            limit = min(verifying.PAGE_CHUNKS, end.last_position - after)
            page = await chunks.read(self._tx, self._key[0], after, limit)
            for logged in page:
                whole = piece_of(logged)
                upto = end.offset if logged.position == end.position else len(whole.text)
                begin = start.offset if logged.position == start.position else 0
                if upto > len(whole.text) or (begin and begin >= len(whole.text)):
                    return None
                part = whole.text[begin:upto]
                pieces.append(
                    SegmentPiece(
                        position=whole.position, offset=begin, text=part, whole=whole.whole
                    )
                )
            if len(page) < limit or page[-1].position != after + limit:
                return None
            after += limit
        return joined(pieces)


async def _state(tx: Transaction, stored: StoredMemory) -> Findings:
    key = (stored.session_key, stored.memory_id)
    chain, check = _Chain(tx, stored), StateCheck(stored.state)
    known: Mapping[int, StateVector] = {}
    async for row, told in chain.rows():
        for one in told:
            yield one
        levels = await vectors.read_levels(tx, *key, row.revision)
        restored = None
        if row.restored_revision is not None:
            restored = await vectors.read_levels(tx, *key, row.restored_revision)
        wanted = {row.revision, *check.in_use()}
        if restored is not None:
            wanted |= {number for run in restored.runs for number in run}
        missing = sorted(wanted - known.keys())
        read = {one.revision: one for one in await vectors.read_vectors(tx, *key, missing)}
        known = {number: one for number, one in {**known, **read}.items() if number in wanted}
        whole = StateRevision(
            row=row, levels=levels, vector=known.get(row.revision), restored=restored
        )
        for difference in check.revision(whole, known):
            yield difference
    for one in chain.finish():
        yield one


_BY_KIND: dict[MemoryKind, Callable[[Transaction, StoredMemory], Findings]] = {
    MemoryKind.PRISM: _prism,
    MemoryKind.TREE: _tree,
    MemoryKind.STATE: _state,
}
