"""The offline model as a reader of plain text: the sentence that fits a question best.

It takes the sentence with the rarest words of the question, word for word, and carries on
the sentences that say most. With options it takes the one whose words the text has, close
to those of the question.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.texts import NO_TITLE, cut, terms

#: What a reader says who finds nothing.
NO_ANSWER = "no answer"
#: Characters of an answer: a sentence that is longer is cut.
ANSWER_CHARACTERS = 300
#: Sentences on either side that an option's words may stand in.
NEAR_SENTENCES = 1

#: A blank is needed after a full stop: there is none in "e.g." and in 3.14. Scripts without
#: blanks have stops of their own.
_END = re.compile(
    rf"(?<=[.!?]){NO_TITLE}[\"'”’)\]]*\s+(?=\S)|(?<=[。！？])[\"'”’)\]]*\s*(?=\S)|\n+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadContent:
    """A text to be read, and the question about it."""

    query: str
    #: Of a multiple-choice question; the answer is one of them.
    options: tuple[str, ...]
    #: In the order of the text; what lies between two of them was left out.
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CarryContent:
    """The next part of a text, and the summary of everything before it."""

    #: Empty at the beginning.
    carried: str
    text: str
    #: Tokens of the new summary at most; 1 or more.
    max_tokens: int


def complete(content: ReadContent | CarryContent) -> str:
    """The reply to a baseline's ask."""
    return _carry(content) if isinstance(content, CarryContent) else _read(content)


def _read(content: ReadContent) -> str:
    said = [one for text in content.texts for one in sentences(text)]
    words = [set(terms(one)) for one in said]
    rarity = weights_of(words)
    wanted = set(terms(content.query))
    scores = [sum(rarity[word] for word in held & wanted) for held in words]
    if content.options:
        return _best_option(content.options, words, rarity, scores)
    if not any(scores):
        return NO_ANSWER
    # Of two that have the same words of the question the shorter one says it more plainly.
    best = max(range(len(said)), key=lambda at: (scores[at], -len(said[at])))
    return cut(said[best], ANSWER_CHARACTERS)


def _best_option(
    options: Sequence[str],
    words: Sequence[set[str]],
    rarity: dict[str, float],
    scores: Sequence[float],
) -> str:
    def fit(option: str) -> float:
        wanted = set(terms(option))
        return max(
            (
                sum(rarity[word] for word in held & wanted)
                * (1 + max(scores[max(at - NEAR_SENTENCES, 0) : at + NEAR_SENTENCES + 1]))
                for at, held in enumerate(words)
            ),
            default=0.0,
        )

    found = [fit(option) for option in options]
    return options[found.index(max(found))] if any(found) else NO_ANSWER


def _carry(content: CarryContent) -> str:
    """Sentences of both, those with the commonest names and terms, in the order of the text."""
    said = [one for text in (content.carried, content.text) for one in sentences(text)]
    words = [terms(one) for one in said]
    counts = Counter(word for held in words for word in set(held))
    scores = [
        sum(math.log(1 + counts[word]) for word in set(held)) / (8 + len(held)) for held in words
    ]
    left = content.max_tokens
    kept: set[int] = set()
    for at in sorted(range(len(said)), key=lambda at: (-scores[at], at)):
        # With the blank that joins it to the next.
        size = estimate_tokens(said[at] + " ")
        if size <= left:
            kept.add(at)
            left -= size
    return " ".join(said[at] for at in sorted(kept))


def sentences(text: str) -> list[str]:
    """The sentences of a text, whatever they are, each on one line."""
    flat = (" ".join(one.split()) for one in _END.split(text))
    return [one for one in flat if one]


def weights_of(words: Sequence[set[str]]) -> dict[str, float]:
    """How much a word weighs: the fewer of the texts have it the more."""
    holders = Counter(word for held in words for word in held)
    return {word: math.log(1 + len(words) / count) for word, count in holders.items()}
