"""Marks about text from outside, so that a prompt says what is data and what is not."""

import hmac


def marked(text: str, key: bytes) -> str:
    """Returns `text` between two marks that it cannot contain by chance or by design.

    They are derived from the text with a secret key: outsiders cannot imitate them, and
    the same text has the same marks when a step is replayed.
    """
    mark = hmac.digest(key, text.encode(), "sha256").hex()[:24]
    return f"<<<data {mark}\n{text}\n>>>data {mark}\n"
