"""The search index of a session written into the database by hand, and what it is compared with."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from service.domain.calls.ledger import CallScope
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.llm.embeddings.embedding import EmbeddingFailed, TextVector
from storage.engine.database import Database, Transaction, Values
from storage.engine.text_search import length_of
from storage.search.chunk_text import AS_TEXT, words_of
from tests.integration.support.writing import append_texts

KEY = session_key(DEFAULT_TENANT, "s")
MODEL = "test/vectors"


async def make_session(
    database: Database, texts: Sequence[str], *, language: str = "simple"
) -> None:
    """The session `s` with these chunks, none of them in the index."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            """INSERT INTO session (session_key, tenant_id, name, language)
            VALUES (%s, %s, 's', %s)""",
            (KEY, DEFAULT_TENANT, language),
        )
    if texts:
        await append_texts(database, "s", texts)


async def index_words(database: Database, upto: int) -> None:
    """Writes the words of the chunks up to a position."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            f"""INSERT INTO chunk_word (session_key, position, tenant_id, words, length)
            SELECT session_key, position, tenant_id, words, {length_of("words")} FROM (
                SELECT said.*, {words_of("said.text", "said.language")} AS words FROM (
                    SELECT c.session_key, c.position, c.tenant_id, s.language, {AS_TEXT} AS text
                    FROM chunk c JOIN session s USING (session_key)
                    WHERE c.session_key = %(key)s AND c.position > s.indexed_position
                        AND c.position <= %(upto)s OFFSET 0
                ) AS said OFFSET 0
            ) AS made""",
            {"key": KEY, "upto": upto},
        )
        await tx.execute(
            "UPDATE session SET indexed_position = %s WHERE session_key = %s", (upto, KEY)
        )


async def write_vectors(
    database: Database, vectors: Sequence[tuple[int, Sequence[TextVector]]], *, model: str = MODEL
) -> None:
    """Writes vectors of chunks, by their positions; up to the last one all have theirs."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        for position, parts in vectors:
            for number, part in enumerate(parts):
                await tx.execute(
                    """INSERT INTO chunk_vector (session_key, position, part, tenant_id, model,
                        from_character, to_character, embedding)
                    VALUES (%s, %s, %s, %s, %s, %s, %s, %s::real[])""",
                    (
                        *(KEY, position, number, DEFAULT_TENANT, model),
                        *(part.from_character, part.to_character, list(part.values)),
                    ),
                )
        await tx.execute(
            """UPDATE session SET embedded_position = %s, embedding_model = %s
            WHERE session_key = %s""",
            (max(position for position, _ in vectors), model, KEY),
        )


def unit(*values: float) -> tuple[float, ...]:
    """Returns a vector of length 1."""
    length = math.sqrt(sum(one * one for one in values))
    return tuple(one / length for one in values)


def whole(text: str, *values: float) -> list[TextVector]:
    """Returns the one vector of a text."""
    return [TextVector(from_character=0, to_character=len(text), values=unit(*values))]


def can_have_vectors(superuser_url: str) -> bool:
    """Makes pgvector's types in a database, where the server has them."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT FROM pg_available_extensions WHERE name = 'vector'"
        ).fetchone()
        if found is not None:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    return found is not None


def plain_bm25(texts: Sequence[str], query: str) -> list[float]:
    """Returns the formula as the books have it, over all texts; words are what blanks separate."""
    words = [Counter(text.split()) for text in texts]
    lengths = [len(text.split()) for text in texts]
    mean = sum(lengths) / len(lengths)
    scores = []
    for held, length in zip(words, lengths, strict=True):
        score = 0.0
        for word in set(query.split()):
            holders = sum(1 for other in words if word in other)
            weight = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            count = held[word]
            score += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / mean))
        scores.append(score)
    return scores


class Looks:
    """The statements that searches run from now on, and how many rows they look at."""

    def __init__(self, patching: pytest.MonkeyPatch) -> None:
        self._seen: list[tuple[str, Values]] = []
        send = Transaction._sent

        async def seen(
            tx: Transaction, queries: Sequence[str], values: Values, *rest: Any, **how: Any
        ) -> Any:
            self._seen += [(query, values) for query in queries]
            return await send(tx, queries, values, *rest, **how)

        patching.setattr(Transaction, "_sent", seen)

    def forget(self) -> None:
        """Forgets what ran until now."""
        self._seen = []

    async def rows(self, database: Database) -> Counter[str]:
        """Rows that are looked at, by table, when all of them are run again; then it forgets."""
        looked: Counter[str] = Counter()
        seen, self._seen = self._seen, []
        for query, values in seen:
            async with database.transaction(DEFAULT_TENANT) as tx:
                explaining = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"
                ((plan,),) = await tx.fetch(explaining, values, prepare=False)
            _count(plan[0]["Plan"], looked)
        return looked


def _count(plan: Mapping[str, Any], looked: Counter[str]) -> None:
    """Rows that a plan takes from tables: those it gives on, and those it then leaves out."""
    if "Relation Name" in plan:
        removed = sum(rows for name, rows in plan.items() if name.startswith("Rows Removed"))
        rows = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
        looked[plan["Relation Name"]] += round(rows)
    for part in plan.get("Plans", ()):
        _count(part, looked)


class FixedEmbedder:
    """Gives every query the same vector, or fails."""

    model = MODEL

    def __init__(self, *values: float, failure: EmbeddingFailed | None = None) -> None:
        self._values = values
        self._failure = failure
        self.queries: list[str] = []

    @property
    def dimensions(self) -> int | None:
        """As many as it was given."""
        return len(self._values)

    async def warm(self) -> None:
        """Does nothing: there is nothing to load."""

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """Fails: these tests embed no chunks."""
        raise NotImplementedError

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """Returns the vector that it was made with."""
        self.queries.append(text)
        if self._failure is not None:
            raise self._failure
        return unit(*self._values)
