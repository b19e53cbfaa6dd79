"""SQL for a chunk's text and its words, for indexing and searching.

The text is that of `Chunk.as_text`, to the character. Words are the lexemes of PostgreSQL's text
search in the language of the session.
"""

from storage.tree.trees import INDEXED_BYTES

#: The most bytes of a character in UTF-8.
_CHARACTER_BYTES = 4

_SEEN = "'Observation: ' || nullif(c.observation, '')"
# As `Chunk.heading`, NULL where it is empty; to_json quotes as Python's json does where there are
# no control characters. Not within a CASE, since Citus accepts no to_char there.
_HEADING = """'[' || nullif(concat_ws(', ',
        'occurred at '
            || to_char(c.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        'source ' || to_json(c.source)::text,
        'thread ' || to_json(c.thread)::text), '') || ']' || chr(10)"""
#: The text of a chunk whose table is called c. Each condition is written out, since Citus accepts
#: no `CASE c.kind WHEN` within INSERT … SELECT.
AS_TEXT = f"""(concat_ws('', {_HEADING}, CASE
    WHEN c.redaction_id IS NOT NULL THEN ''
    WHEN c.kind = 'message' THEN c.role || ': ' || c.text
    WHEN c.kind = 'step' THEN concat_ws(chr(10),
        CASE WHEN c.observed_first IS NOT FALSE THEN {_SEEN} END,
        'Thought: ' || nullif(c.thought, ''),
        'Action: ' || nullif(c.action, ''),
        CASE WHEN c.observed_first IS FALSE THEN {_SEEN} END)
    ELSE c.text END))"""


def words_of(text: str, language: str) -> str:
    """Returns SQL for a text's words (tsvector), from SQL of the text and of the language's name.

    It repeats `text`, which is best the name of a column. Of a text that exceeds PostgreSQL's
    limits only the beginning counts: as many characters as have INDEXED_BYTES for certain.
    """
    least = INDEXED_BYTES // _CHARACTER_BYTES
    fitting = f"{INDEXED_BYTES} - octet_length({text}) + char_length({text})"
    cut = f"left({text}, greatest({least}, {fitting}))"
    whole = f"octet_length({text}) <= {INDEXED_BYTES}"
    return f"to_tsvector({language}::regconfig, CASE WHEN {whole} THEN {text} ELSE {cut} END)"
