"""An estimate of token counts, for sizes that need no tokenizer.

Exact counts come from the model's own usage report. Limits such as
`chunk_tokens` are checked with this estimate, so that the same log is grouped
the same way wherever it is read.
"""


def estimate_tokens(text: str) -> int:
    """Tokens of `text`: one for every four bytes of UTF-8, rounded up.

    English prose and code average about four bytes a token with the common
    byte-pair vocabularies; other scripts have more bytes a character and more
    tokens a character, which the byte count follows.
    """
    return (len(text.encode()) + 3) // 4
