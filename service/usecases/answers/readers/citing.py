"""Cites the chunks that say what a place of a memory has."""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from uuid import UUID

from service.domain.answers.citations import best_position
from service.domain.prism.amendments import Op
from service.domain.prism.memory import PrismMemory
from service.domain.prism.provenance import Touch, origin
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path
from service.usecases.answers.readers.answering import EXCERPT_CHARACTERS
from service.usecases.answers.readers.spans import spanned
from service.usecases.memories.history import ORIGIN_AMENDMENTS, traced
from storage.answers.answers import StoredCitation
from storage.engine.database import Transaction
from storage.log import chunks
from storage.prism import amendment_log
from storage.prism.amendment_log import LoggedAmendment

#: Places of a memory that are cited.
MAX_CITATIONS = 20
#: Amendments that are compared with a value that a consolidation merged from them.
MAX_SOURCES = 20


async def cite(
    tx: Transaction,
    key: tuple[UUID, UUID],
    memory: PrismMemory,
    paths: Sequence[Path],
    at_revision: int,
) -> Sequence[StoredCitation]:
    """Follows each path back to the chunk that says its value.

    What was written by hand has no chunk, and no citation.
    """
    values = {path: memory.value_at(path) for path in paths[:MAX_CITATIONS]}
    cited = [
        (path, value, await _sources(tx, key, path, value, at_revision))
        for path, value in values.items()
    ]
    ranges = {(s.from_position, s.to_position) for *_, sources in cited for s in sources}
    texts = await chunks.read_texts(tx, key[0], sorted(ranges))
    found: dict[tuple[int, str], StoredCitation] = {}
    for path, value, sources in cited:
        excerpt = value if isinstance(value, str) else canonical(value)
        shown = {p: texts[p] for s in sources for p in _positions(s)}
        if not shown:
            continue
        position = best_position(excerpt, sorted(shown.items()))
        citation = StoredCitation(
            position=position,
            path=str(path),
            revision=next(s.revision for s in sources if position in _positions(s)),
            excerpt=excerpt[:EXCERPT_CHARACTERS],
        )
        found[(position, str(path))] = spanned(citation, shown[position])
    return list(found.values())


def _positions(logged: LoggedAmendment) -> range:
    return range(logged.from_position + 1, logged.to_position + 1)


async def _sources(
    tx: Transaction, key: tuple[UUID, UUID], path: Path, value: Json, at_revision: int
) -> Sequence[LoggedAmendment]:
    """Returns the amendment of a step that first wrote the value.

    After a consolidation: those of the values that were there before, at this place and
    at those that it removed; one of them says it.
    """
    touched = await _touched(tx, key, path, at_revision)
    first = origin(value, [touch for _, touch in touched])
    if first is None:
        return []
    number = next(n for n, (_, touch) in enumerate(touched) if touch.write == first)
    written = touched[number][0]
    if written.kind != "consolidation":
        return [written] if _positions(written) else []
    before = [logged for logged, _ in touched[number + 1 :]]
    made = await amendment_log.list_amendments(
        tx, *key, after=(first.revision - 1, 2**31 - 1), limit=ORIGIN_AMENDMENTS
    )
    for one in made:
        # Each costs a look at the log; no more of them would be shown.
        if one.revision != first.revision or len(list(_of_steps(before))) >= MAX_SOURCES:
            break
        if one.op is Op.REMOVE:
            gone = await _touched(tx, key, Path.parse(one.path), first.revision - 1)
            before += [logged for logged, _ in gone]
    return list(_of_steps(before))[:MAX_SOURCES]


def _of_steps(logged: Sequence[LoggedAmendment]) -> Iterator[LoggedAmendment]:
    seen: set[int] = set()
    for one in logged:
        if _positions(one) and one.revision not in seen:
            seen.add(one.revision)
            yield one


async def _touched(
    tx: Transaction, key: tuple[UUID, UUID], path: Path, at_revision: int
) -> Sequence[tuple[LoggedAmendment, Touch]]:
    """Returns the newest amendments of a place that has a value, newest first."""
    found: list[tuple[LoggedAmendment, Touch]] = []
    touches = traced(tx, key, path, exists=True, at_revision=at_revision)
    async with aclosing(touches):
        async for logged, touch in touches:
            found.append((logged, touch))
            if len(found) >= ORIGIN_AMENDMENTS:
                break
    return found
