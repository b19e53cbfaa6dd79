"""An estimate of token counts, for sizes that need no tokenizer.

Exact counts come from the model's own usage report. Limits such as
`chunk_tokens` are checked with this estimate, so that the same log is grouped
the same way wherever it is read.
"""

import re

#: Bytes of a token, as `estimate_tokens` has it.
TOKEN_BYTES = 4
#: The lines about a text from outside (`marking.marked`) and what one has in tokens: 14 to
#: 29 by tokenizer, since nothing in a hash is a word. By its bytes it would be 9.
_MARK = re.compile(r"(?:<<<|>>>)data [0-9a-f]{24}\n")
MARK_TOKENS = 20


def estimate_tokens(text: str) -> int:
    """Tokens of `text`: one for every four bytes of UTF-8, rounded up.

    English prose and code average about four bytes a token with the common
    byte-pair vocabularies; other scripts have more bytes a character and more
    tokens a character, which the byte count follows.
    """
    return -(-len(text.encode()) // TOKEN_BYTES)


def marks_in(text: str) -> int:
    """Returns how many marks about texts from outside stand in a part of a prompt."""
    return len(_MARK.findall(text))


def estimate_prompt_tokens(text: str) -> int:
    """Tokens of a part of a prompt, with the marks about texts from outside counted better.

    For predictions and reservations; not for limits, which are checked with texts alone.
    """
    bare, marks = _MARK.subn("", text)
    return estimate_tokens(bare) + MARK_TOKENS * marks
