"""Ranking: which texts fit a question best, by BM25.

Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009),
section 3.2, with the inverse document frequency that is never negative.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

#: How soon further occurrences of a word stop to count.
K1 = 1.2
#: How much a long text is held back: 0 not at all, 1 in full proportion.
B = 0.75

#: Scripts that put no blanks between words: each character is taken for one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


class Ranking:
    """How well texts fit some words.

    `holders` says of each word how many of the `texts` have it; `tokens` are those of all
    texts together.
    """

    def __init__(self, *, texts: int, tokens: int, holders: Mapping[str, int]) -> None:
        self._weights = {
            word: math.log(1 + (texts - held + 0.5) / (held + 0.5))
            for word, held in holders.items()
        }
        self._mean_tokens = tokens / texts if tokens else 1.0

    def score(self, occurrences: Mapping[str, int], tokens: int) -> float:
        """Returns how well a text of so many tokens fits, by how often it has each word."""
        held_back = self._held_back(tokens)
        return sum(
            self._weights[word] * _saturated(count, held_back)
            for word, count in occurrences.items()
        )

    def bounds(self, words: Iterable[str], tokens: int) -> tuple[float, float]:
        """Returns the least and the most that a text of so many tokens with these words scores."""
        weight = sum(self._weights[word] for word in words)
        return weight * _saturated(1, self._held_back(tokens)), weight * (K1 + 1)

    def _held_back(self, tokens: int) -> float:
        return K1 * (1 - B + B * tokens / self._mean_tokens)


def _saturated(count: int, held_back: float) -> float:
    return count * (K1 + 1) / (count + held_back)


def promising(bounds: Sequence[tuple[float, float]], count: int, limit: int) -> list[int]:
    """Returns the indexes of what can be among the `count` best, by least and most of each.

    Where that is more than `limit`: those with the highest bounds.
    """
    if len(bounds) <= count:
        return list(range(len(bounds)))
    bar = heapq.nlargest(count, (least for least, _ in bounds))[-1]
    able = [index for index, (_, most) in enumerate(bounds) if most >= bar]
    return heapq.nlargest(limit, able, key=lambda index: bounds[index][::-1])


def ranked(query: str, texts: Sequence[str]) -> list[int]:
    """Numbers of the texts, best first by BM25; the earlier one wins a tie."""
    scores = _scores(query, texts)
    return sorted(range(len(texts)), key=lambda number: (-scores[number], number))


def fitting(query: str, texts: Sequence[str]) -> list[int]:
    """Returns the same of the texts that have a word of the query."""
    scores = _scores(query, texts)
    able = [number for number, score in enumerate(scores) if score > 0]
    return sorted(able, key=lambda number: (-scores[number], number))


def _scores(query: str, texts: Sequence[str]) -> list[float]:
    return scored([Counter(words(text)) for text in texts], set(words(query)))


def scored(texts: Sequence[Counter[str]], wanted: Set[str]) -> list[float]:
    """Returns how well each text fits some words, from how often it has each of its words."""
    # In one order always: sums of the same numbers differ in another one.
    held = [{word: text[word] for word in sorted(wanted & text.keys())} for text in texts]
    sizes = [text.total() for text in texts]
    ranking = Ranking(
        texts=len(texts), tokens=sum(sizes), holders=Counter(word for one in held for word in one)
    )
    return [ranking.score(words, size) for words, size in zip(held, sizes, strict=True)]


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, in order."""
    return _WORD.findall(text.casefold())
