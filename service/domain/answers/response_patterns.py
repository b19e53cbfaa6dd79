"""Patterns of response schemas: how large they are once their counts are written out.

What compiles them writes `(a{99}){99}` out as 9,801 parts, so that a line can ask for more
memory than a machine has.
"""

import re

#: Parts of a pattern with its counts written out.
MAX_PATTERN_PARTS = 10_000

#: What stands for itself, whatever follows: an escape, or a set of characters.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]|.", re.DOTALL)
_COUNT = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")


def check_size(pattern: str) -> None:
    """Raises ValueError, with a sentence, for a pattern that is too large."""
    #: Parts of each group that is open, the innermost last, and of its last element.
    open_parts, last = [0], [0]
    at = 0
    while part := _PART.match(pattern, at):
        count = _COUNT.match(pattern, at)
        at = (count or part).end()
        if count:
            times = max((int(one[:9]) for one in count.groups() if one), default=0)
            last[-1] *= max(times, 1)
        elif part[0] == "(":
            open_parts.append(0)
            last.append(0)
        elif part[0] == ")" and len(open_parts) > 1:
            inner = open_parts.pop() + last.pop()
            open_parts[-1] += last[-1]
            last[-1] = max(inner, 1)
        else:
            open_parts[-1] += last[-1]
            last[-1] = 1
        if sum(open_parts) + sum(last) > MAX_PATTERN_PARTS:
            raise ValueError(
                f"the pattern {pattern!r} has more than {MAX_PATTERN_PARTS:,} parts with its"
                " counts written out"
            )
