"""SQL of PostgreSQL's text search that several tables need."""


def length_of(words: str) -> str:
    """Returns SQL for the number of words, each counted as often as it occurs.

    By the positions that the text search keeps: at most 255 of one word, and none after the
    16,383rd word of a text.
    """
    return f"""(SELECT coalesce(sum(cardinality(kept.positions)), 0)::integer
        FROM unnest({words}) AS kept)"""  # noqa: S608 - as the caller says
