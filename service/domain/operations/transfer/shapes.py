"""Bounds the JSON of a line before it is parsed: a value takes far more memory than its text."""

import re
from itertools import accumulate

#: Values of a line: a field has 200,000 at most.
MAX_LINE_VALUES = 250_000
#: Values of the lines of a block.
MAX_BLOCK_VALUES = 500_000
#: Levels of a line: a field has 32 at most.
MAX_LINE_LEVELS = 64

# Possessive, and ended by the end of the line too: it never backtracks.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_OPENS, _CLOSES = b"[{", b"]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_OPENS + _CLOSES))
_STEP = {**dict.fromkeys(_OPENS, 1), **dict.fromkeys(_CLOSES, -1)}


class ShapeRefused(ValueError):
    """A line with more values or levels than any record has."""


def count_values(line: bytes) -> int:
    """Returns how many values a line of JSON has, or some more. Raises ShapeRefused."""
    bare = _STRING.sub(b"", line)
    opened = bare.count(b"[") + bare.count(b"{")
    values = opened + bare.count(b",") + 1
    if values > MAX_LINE_VALUES:
        raise ShapeRefused(f"it has more than {MAX_LINE_VALUES:,} values")
    if opened > MAX_LINE_LEVELS:
        brackets = bare.translate(None, _NO_BRACKETS)
        if max(accumulate(_STEP[one] for one in brackets)) > MAX_LINE_LEVELS:
            raise ShapeRefused("its JSON is nested too deeply")
    return values
