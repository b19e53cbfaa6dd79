"""Citations: which of several chunks says something, and with what words."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")
#: A sentence, or a line, with the blanks after it.
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?。！？]+['\"”’)\]]*\s*|\n+|$)")


#: What a word weighs that is only said around a value.
_AROUND = 0.5


def best_position(value: str, chunks: Sequence[tuple[int, str]], *, around: str = "") -> int:
    """Returns the position of the chunk whose words cover `value` best.

    `chunks` are position and text of a step's chunks, at least one. A word weighs more
    the fewer of them have it; the words of `around` count less. The earliest wins a tie.
    """
    return chunks[_best(value, around, [text for _, text in chunks])][0]


def best_excerpt(value: str, text: str, characters: int, *, around: str = "") -> str:
    """Returns the sentence of `text` whose words cover `value` best, and what stands beside it.

    The words of `around` count less. At most `characters`: whole sentences after it and
    before it as long as they fit, in turn; a longer sentence is cut.
    """
    sentences = [match[0] for match in _SENTENCE.finditer(text) if match[0]]
    if not sentences:
        return ""
    first = last = _best(value, around, sentences)
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


def best_span(value: str, text: str) -> tuple[int, int] | None:
    """Finds the sentence of `text` whose words cover `value` best: its start and end.

    None when no sentence has any of its words.
    """
    found = [match for match in _SENTENCE.finditer(text) if match[0].strip()]
    wanted = set(_words(value))
    if not any(wanted.intersection(_words(match[0])) for match in found):
        return None
    match = found[_best(value, "", [match[0] for match in found])]
    start = match.start() + len(match[0]) - len(match[0].lstrip())
    return start, start + len(match[0].strip())


def _best(value: str, around: str, texts: Sequence[str]) -> int:
    """Returns the index of the text whose words cover `value` best."""
    if len(texts) == 1:
        return 0
    wanted = dict.fromkeys(_words(around), _AROUND) | dict.fromkeys(_words(value), 1.0)
    words = [wanted.keys() & _words(text) for text in texts]
    holders = Counter(word for held in words for word in held)
    weights = {
        word: wanted[word] * math.log(1 + len(texts) / count) for word, count in holders.items()
    }
    # In one order, or the same sums might differ in their last digit.
    scores = [sum(weights[word] for word in sorted(held)) for held in words]
    return scores.index(max(scores))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
