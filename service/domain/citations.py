"""Citations: which of several chunks says something, and with what words."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")
#: A sentence, or a line, with the blanks behind it.
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?。！？]+['\"”’)\]]*\s*|\n+|$)")


def best_position(value: str, chunks: Sequence[tuple[int, str]]) -> int:
    """The position of the chunk whose words cover `value` best.

    `chunks` are position and text of a step's chunks, at least one. A word weighs more
    the fewer of them have it; the earliest wins a tie.
    """
    return chunks[_best(value, [text for _, text in chunks])][0]


def best_excerpt(value: str, text: str, characters: int) -> str:
    """The sentence of `text` whose words cover `value` best, and what is around it.

    At most `characters`: whole sentences behind it and before it as long as they fit, in
    turn; a longer sentence is cut.
    """
    sentences = [match[0] for match in _SENTENCE.finditer(text) if match[0]]
    if not sentences:
        return ""
    first = last = _best(value, sentences)
    length = len(sentences[first])
    grew = True
    while grew:
        grew = False
        for at in (last + 1, first - 1):
            if 0 <= at < len(sentences) and length + len(sentences[at]) <= characters:
                length += len(sentences[at])
                first, last = min(first, at), max(last, at)
                grew = True
    return "".join(sentences[first : last + 1]).strip()[:characters]


def _best(value: str, texts: Sequence[str]) -> int:
    """The index of the text whose words cover `value` best."""
    if len(texts) == 1:
        return 0
    wanted = set(_words(value))
    words = [set(_words(text)) for text in texts]
    holders = Counter(word for held in words for word in held & wanted)
    weights = {word: math.log(1 + len(texts) / count) for word, count in holders.items()}
    scores = [sum(weights[word] for word in held & wanted) for held in words]
    return scores.index(max(scores))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
