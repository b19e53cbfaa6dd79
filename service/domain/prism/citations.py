"""Citations: which chunk of a step a value was taken from."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def best_position(value: str, chunks: Sequence[tuple[int, str]]) -> int:
    """The position of the chunk whose words cover `value` best.

    `chunks` are position and text of a step's chunks, at least one. A word weighs more
    the fewer of them have it; the earliest wins a tie.
    """
    if len(chunks) == 1:
        return chunks[0][0]
    wanted = set(_words(value))
    words = [set(_words(text)) for _, text in chunks]
    holders = Counter(word for held in words for word in held & wanted)
    weights = {word: math.log(1 + len(chunks) / count) for word, count in holders.items()}
    scores = [sum(weights[word] for word in held & wanted) for held in words]
    return chunks[scores.index(max(scores))][0]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
