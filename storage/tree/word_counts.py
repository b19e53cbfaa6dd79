"""Counts words of leaves, for ranking them by a question.

Words are lexemes of PostgreSQL's configuration 'simple', in leaves, questions and pieces of the
tail alike. `service.domain.search.ranking` ranks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from storage.engine.database import Transaction
from storage.tree.trees import indexed


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A leaf with words of a question."""

    #: Its number.
    number: int
    text_tokens: int
    #: Indexes of its words.
    words: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Totals of all leaves."""

    leaves: int
    text_tokens: int


_WORDS = "SELECT lexeme FROM unnest(to_tsvector('simple', %(text)s)) ORDER BY lexeme"


async def words_of(tx: Transaction, text: str) -> Sequence[str]:
    """Returns the distinct words of a text."""
    rows = await tx.fetch(_WORDS, {"text": text}, prepare=None)
    return [row.lexeme for row in rows]


_TOTALS = """
SELECT count(*) AS leaves, coalesce(sum(text_tokens), 0)::bigint AS text_tokens
FROM tree_node
WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = 0
    AND revision <= %(revision)s
"""


async def read_totals(tx: Transaction, key: tuple[UUID, UUID], revision: int) -> Totals:
    """Returns the totals of a memory's (session_key, memory_id) leaves as of a revision."""
    values = {"session": key[0], "memory": key[1], "revision": revision}
    row = (await tx.fetch(_TOTALS, values, prepare=None))[0]
    return Totals(leaves=row.leaves, text_tokens=row.text_tokens)


#: Words that `read_holders` looks for at once: the bits of a number.
MAX_WORDS = 62

#: A word is looked up in the sorted words of a leaf, which costs little after reading them once:
#: `strip` leaves an unpacked copy. Counting occurrences would unpack all words of a leaf, which is
#: expensive.
_HOLDERS = """
SELECT number, text_tokens, {bits} AS bits
FROM (
    SELECT number, text_tokens, strip(words) AS held
    FROM tree_node
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = 0
        AND revision <= %(revision)s
    OFFSET 0
) AS leaf
WHERE {bits} > 0
ORDER BY number
"""


async def read_holders(
    tx: Transaction, key: tuple[UUID, UUID], revision: int, words: Sequence[str]
) -> Sequence[Holder]:
    """Returns the leaves of a memory as of a revision that have one of the words, by number.

    At most MAX_WORDS words.
    """
    if not words:
        return []
    values: dict[str, object] = {"session": key[0], "memory": key[1], "revision": revision}
    values |= {f"word{at}": quoted(word) for at, word in enumerate(words)}
    bits = " | ".join(
        f"((held @@ %(word{at})s::tsquery)::int::bigint << {at})" for at in range(len(words))
    )
    rows = await tx.fetch(_HOLDERS.format(bits=f"({bits})"), values, prepare=None)
    return [
        Holder(
            number=row.number,
            text_tokens=row.text_tokens,
            words=tuple(at for at in range(len(words)) if row.bits >> at & 1),
        )
        for row in rows
    ]


def quoted(word: str) -> str:
    """Returns a tsquery of one word, quoted as its input function reads it."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


_OCCURRENCES = """
SELECT number, lexeme, cardinality(positions) AS occurrences
FROM tree_node, unnest(words)
WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = 0
    AND number = ANY(%(numbers)s) AND lexeme = ANY(%(wanted)s)
"""


async def count_in_leaves(
    tx: Transaction, key: tuple[UUID, UUID], numbers: Sequence[int], words: Sequence[str]
) -> Mapping[int, Mapping[str, int]]:
    """Returns how often each leaf, by its number, has each of its words."""
    values = {
        "session": key[0],
        "memory": key[1],
        "numbers": list(numbers),
        "wanted": list(words),
    }
    found: dict[int, dict[str, int]] = {}
    for row in await tx.fetch(_OCCURRENCES, values, prepare=None):
        found.setdefault(row.number, {})[row.lexeme] = row.occurrences
    return found


_IN_TEXTS = """
SELECT said.at - 1 AS at, lexeme, cardinality(positions) AS occurrences
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS said (text, at),
    unnest(to_tsvector('simple', said.text))
WHERE lexeme = ANY(%(wanted)s)
"""


async def count_in_texts(
    tx: Transaction, texts: Sequence[str], words: Sequence[str]
) -> Sequence[Mapping[str, int]]:
    """Returns how often each text has each of its words, counted as in leaves."""
    found: list[dict[str, int]] = [{} for _ in texts]
    values = {"texts": [indexed(text) for text in texts], "wanted": list(words)}
    for row in await tx.fetch(_IN_TEXTS, values, prepare=None):
        found[row.at][row.lexeme] = row.occurrences
    return found
