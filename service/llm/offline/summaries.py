"""The offline model as a writer of summaries: the sentences that say most, word for word.

A sentence says much when it has many words that no sentence taken before it has, names and
numbers before others, for its length. Every part of the text has a turn, one after the
other, so that none is left out; what was taken stands in the order of the text.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from service.domain.prompting.fitting import share_of
from service.domain.prompting.shortening import shortened
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.contents import CompressContent, SummarizeContent
from service.llm.offline.texts import NO_TITLE, terms, unwrapped

#: Parts of a text that have a turn each, at most, and what a summary has for each at least,
#: in tokens: where it has less, the sentences that say most are not in all parts.
PARTS = 4
PART_TOKENS = 40
#: Characters of a sentence at most; a longer one is taken in pieces.
SENTENCE_CHARACTERS = 240
#: What a name or a number says, beside another word.
NAME_WEIGHT = 2.0
#: What a word says more for each other sentence that has it, and how many count.
REPEAT_WEIGHT = 0.25
MAX_REPEATS = 4
#: What a sentence costs beside its words, in tokens: short ones say little by themselves.
SENTENCE_TOKENS = 2

_END = re.compile(
    rf"(?<=[.!?؟।…]){NO_TITLE}[\"'”’»)\]]*\s+(?![\sa-zß-öø-ÿα-ωа-џ])|(?<=[。！？])[\"'”’」』)\]]*|\n+"
)
_CLAUSE = re.compile(r"(?<=[,;:，、；：])\s*|(?<!\s)\s+(?=[—–-])")
#: Scripts without blanks between words: their words are taken for pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{2,}")
_NAME = re.compile(r"(?<=[\w,;:] )[A-ZÀ-ÞΑ-ΩА-Я]\w+|\d[\w.,:]*")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of what is to be shortened."""

    text: str
    #: Its tokens, with the blank that joins it to the next.
    tokens: int
    words: frozenset[str]
    #: What its words say, beside those of an ordinary sentence.
    weight: float = 1.0


def complete(content: SummarizeContent | CompressContent) -> str:
    """The reply to an ask for a summary: at most as long as it may be."""
    if isinstance(content, SummarizeContent):
        return _extract(content.text, content.max_tokens)
    sizes = [estimate_tokens(summary) for summary in content.summaries]
    # The line ends between them have a byte each.
    share = share_of(sizes, content.max_tokens - estimate_tokens("\n" * len(sizes)))
    made = (_extract(summary, max(1, share)) for summary in content.summaries)
    return shortened("\n".join(made), content.max_tokens, estimate_tokens)


def _extract(text: str, max_tokens: int) -> str:
    if estimate_tokens(text) <= max_tokens:
        return text
    said = [sentence_of(one) for one in sentences_in(unwrapped(text))]
    chosen = chosen_of(said, weights_of(text, said), max_tokens)
    if not chosen:
        return shortened(text, max_tokens, estimate_tokens)
    return " ".join(said[number].text for number in chosen)


def sentences_in(text: str) -> Iterator[str]:
    """The sentences of a text, long ones in pieces, each on one line."""
    ends = [match.end() for match in _END.finditer(text)]
    for begin, stop in pairwise((0, *ends, len(text))):
        flat = " ".join(text[begin:stop].split())
        while len(flat) > SENTENCE_CHARACTERS:
            ends = [match.end() for match in _CLAUSE.finditer(flat, 0, SENTENCE_CHARACTERS)]
            end = ends[-1] if ends else flat.rfind(" ", 0, SENTENCE_CHARACTERS) + 1
            end = end if end > SENTENCE_CHARACTERS // 4 else SENTENCE_CHARACTERS
            yield flat[:end].strip()
            flat = flat[end:].strip()
        if flat:
            yield flat


def sentence_of(text: str, weight: float = 1.0) -> Sentence:
    """A sentence with its words."""
    return Sentence(text, estimate_tokens(text + " "), frozenset(_words(text)), weight)


def _words(text: str) -> Iterator[str]:
    for run in _UNSPACED.findall(text):
        yield from (run[at : at + 2] for at in range(len(run) - 1))
    yield from (word for word in terms(_UNSPACED.sub(" ", text)) if len(word) > 1 or word.isdigit())


def weights_of(text: str, said: Sequence[Sentence]) -> dict[str, float]:
    """What each word says: one that comes again is what the text is about."""
    named = {word for name in _NAME.findall(text) for word in _words(name)}
    held = Counter(word for sentence in said for word in sentence.words)
    return {
        word: (1 + REPEAT_WEIGHT * min(count - 1, MAX_REPEATS))
        * (NAME_WEIGHT if word in named else 1)
        for word, count in held.items()
    }


def chosen_of(
    said: Sequence[Sentence],
    weights: Mapping[str, float],
    max_tokens: int,
    known: Set[str] = frozenset(),
) -> list[int]:
    """Numbers of the sentences that are taken, ascending.

    `known` are words that say nothing any more.
    """
    length = max(1, -(-len(said) // max(1, min(PARTS, max_tokens // PART_TOKENS))))
    parts = [
        _PartSentences(said, weights, range(begin, min(begin + length, len(said))))
        for begin in range(0, len(said), length)
    ]
    taken: list[int] = []
    held = set(known)
    left = max_tokens
    while parts:
        for part in list(parts):
            best = part.best(held, left)
            if best is None:
                parts.remove(part)
                continue
            taken.append(best)
            held |= said[best].words
            left -= said[best].tokens
    return sorted(taken)


class _PartSentences:
    """The sentences of a part that are not taken yet, by what they said when last looked at."""

    def __init__(
        self, said: Sequence[Sentence], weights: Mapping[str, float], numbers: range
    ) -> None:
        self._said = said
        self._weights = weights
        self._heap = [(-self._gain(number, frozenset()), number) for number in numbers]
        heapq.heapify(self._heap)

    def best(self, known: Set[str], max_tokens: int) -> int | None:
        """Takes the sentence that says most new for its length; None when none does or fits.

        What a sentence says never grows: one that still says as much as the next one did is
        the best.
        """
        while self._heap:
            _, number = heapq.heappop(self._heap)
            gain = self._gain(number, known)
            if gain == 0 or self._said[number].tokens > max_tokens:
                continue
            if not self._heap or (-gain, number) <= self._heap[0]:
                return number
            heapq.heappush(self._heap, (-gain, number))
        return None

    def _gain(self, number: int, known: Set[str]) -> float:
        sentence = self._said[number]
        # Sorted: the sum of the same numbers in another order may be another.
        new = sum(self._weights[word] for word in sorted(sentence.words - known))
        return sentence.weight * new / (SENTENCE_TOKENS + sentence.tokens)
