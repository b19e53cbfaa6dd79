"""Traces an answer from a working context back to the chunks that it rests on."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.answers.citations import best_excerpt, best_position
from service.domain.answers.drafting import AnswerDraft
from service.domain.state.spec import StateSpec
from service.domain.state.tracing import linked, origin, source, statements
from service.domain.state.vectors import STEPS_LEVEL, TASK_REVISION, StateVector, first_state
from service.domain.state.working_context import WorkingContext
from service.usecases.answers.readers.answering import EXCERPT_CHARACTERS
from service.usecases.answers.readers.spans import spanned
from storage.answers.answers import StoredCitation
from storage.engine.database import Transaction
from storage.log import chunks
from storage.memories import history
from storage.state import vectors, views

#: Vectors that the first query of the way back reads; each further one reads as many as there are
#: so far. At most: what was written before that many compressions is not found.
FIRST_VECTORS = 64
MAX_VECTORS = 1024
#: Bytes of the chunks that a vector was made from, among which the cited one is looked for.
MAX_BYTES = 4 * 1024 * 1024


class AnswerTracer:
    """Traces what one answer says, as of one revision of a memory (session_key, memory_id)."""

    def __init__(
        self, tx: Transaction, key: tuple[UUID, UUID], spec: StateSpec, revision: int
    ) -> None:
        self._tx = tx
        self._key = key
        self._task = first_state(spec).current
        self._revision = revision
        self._lineage: views.Lineage = ()
        #: The ways back that were read, by the revision that they begin at.
        self._ways: dict[int, tuple[Sequence[StateVector], bool]] = {}

    async def cite(
        self, context: WorkingContext, draft: AnswerDraft[int], query: str
    ) -> Sequence[StoredCitation]:
        """Cites the recent steps that the answer names, and the sources of the rest."""
        self._lineage = await history.lineage(self._tx, *self._key, self._revision)
        named = frozenset(draft.sources)
        texts = {step.position: step.text for step in context.recent}
        found = {
            position: spanned(
                StoredCitation(
                    position=position,
                    revision=self._revision,
                    excerpt=_excerpt(draft.text, texts[position], query),
                    from_position=position,
                    to_position=position,
                ),
                texts[position],
            )
            for position in draft.sources
        }
        for statement in statements(draft.text):
            vector = source(statement, context, named, around=query)
            brought = await self._origin(statement, vector, query) if vector else None
            cited = await self._chunk(statement, brought, query) if brought else None
            if cited is not None:
                found.setdefault(cited.position, cited)
        return list(found.values())

    async def _origin(self, statement: str, vector: StateVector, query: str) -> StateVector | None:
        """Returns the vector of steps that first has a statement.

        None for the task, and for what was first written too long ago.
        """
        found = await self._first(statement, vector, query)
        while found is not None and found.level > STEPS_LEVEL:
            children = await vectors.read_vectors(self._tx, *self._key, found.children)
            way = self._whole(children[::-1])
            found = way[origin(statement, way, around=query, from_first=False)]
        return None if found is None or found.revision == TASK_REVISION else found

    async def _first(self, statement: str, vector: StateVector, query: str) -> StateVector | None:
        """Returns the vector of its level that first has what this one says."""
        if vector.revision == TASK_REVISION:
            return vector
        way, is_all = self._ways.get(vector.revision, ((), False))
        while True:
            if way:
                at = origin(statement, way, around=query)
                if at + 1 < len(way) or is_all:
                    return way[at]
            if len(way) >= MAX_VECTORS:
                return None
            way, is_all = await self._further(vector, way)
            self._ways[vector.revision] = way, is_all

    async def _further(
        self, vector: StateVector, way: Sequence[StateVector]
    ) -> tuple[Sequence[StateVector], bool]:
        """Returns the way back from a vector, twice as long, and whether that is all of it."""
        upto = way[-1].revision - 1 if way else vector.revision
        limit = len(way) or FIRST_VECTORS
        page = await views.list_back(
            self._tx, self._key, self._lineage, level=vector.level, upto=upto, limit=limit
        )
        longer, is_all = linked([*way, *page])
        is_all = is_all or len(page) < limit
        return (self._whole(longer) if is_all else longer), is_all

    def _whole(self, way: Sequence[StateVector]) -> Sequence[StateVector]:
        """Completes a way: that of vectors of steps begins at the task prompt."""
        return [*way, self._task] if way[-1].level == STEPS_LEVEL else way

    async def _chunk(
        self, statement: str, vector: StateVector, query: str
    ) -> StoredCitation | None:
        """Cites the chunk of a vector's own positions whose words fit a statement best."""
        after = vector.from_position
        found = await chunks.read_ranges(
            self._tx, self._key[0], [(after, vector.to_position)], MAX_BYTES
        )
        texts = {one.position: one.chunk.as_text() for one in found.get(after, ())}
        if not texts:
            return None
        position = best_position(statement, list(texts.items()), around=query)
        citation = StoredCitation(
            position=position,
            revision=vector.revision,
            excerpt=_excerpt(statement, texts[position], query),
            node_id=f"{vector.level}.{vector.revision}",
            from_position=vector.from_position + 1,
            to_position=vector.to_position,
        )
        return spanned(citation, texts[position])


def _excerpt(said: str, text: str, query: str) -> str:
    return best_excerpt(said, text, EXCERPT_CHARACTERS, around=query)
