"""What the database can do for search, as it is found."""

from dataclasses import dataclass

from storage.engine.database import Transaction

#: An index over the session and the words of chunks; needs btree_gin.
WORDS_INDEX = "chunk_word_by_session"
#: Indexes over vectors, one for each length: the length stands behind it. Need pgvector.
VECTORS_INDEX = "chunk_vector_nearest_"

#: Why vectors cannot be searched, where nothing more is known.
NO_PGVECTOR = "the database has no pgvector (the extension vector)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What search can do on this database."""

    #: Why vectors cannot be searched, in a sentence; empty: they can be.
    vectors_unavailable: str
    #: Whether words are found by an index; else those of a session are looked through.
    session_words: bool
    #: Lengths of vectors that have an index for many of them, in ascending order.
    indexed_dimensions: tuple[int, ...] = ()
    #: What could not be made when it was set up, in sentences.
    problems: tuple[str, ...] = ()


#: Indexes count when they are whole.
SUPPORT = f"""
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector') AS vectors,
    coalesce(array_agg(made.relname::text), '{{}}') AS indexes
FROM pg_index i
JOIN pg_class made ON made.oid = i.indexrelid
JOIN pg_class of ON of.oid = i.indrelid
WHERE i.indisvalid AND of.relname IN ('chunk_word', 'chunk_vector')
    AND of.relnamespace = 'public'::regnamespace
    AND (made.relname = '{WORDS_INDEX}' OR starts_with(made.relname, '{VECTORS_INDEX}'))
"""  # noqa: S608 - both are above


async def read_support(tx: Transaction) -> Support:
    """What search can do, as of this transaction."""
    row = (await tx.fetch(SUPPORT, prepare=None))[0]
    return support_of(row.vectors, row.indexes)


def support_of(has_vectors: bool, indexes: list[str]) -> Support:
    """From a row of SUPPORT."""
    lengths = (name.removeprefix(VECTORS_INDEX) for name in indexes if name != WORDS_INDEX)
    return Support(
        vectors_unavailable="" if has_vectors else NO_PGVECTOR,
        session_words=WORDS_INDEX in indexes,
        indexed_dimensions=tuple(sorted(map(int, lengths))),
    )
