"""Traces what a state vector says back to the steps that it is from.

A vector replaces the steps before it and names no sources. But it is made from the vector
before it and a few steps: what only the newer one says is from these steps. So a statement of
an answer is followed back along the vectors, each made from the next one on this way, as long
as they still say it. The oldest of them is its origin. An episode's origin continues among its
children. A vector of steps has chunks, and the one whose words fit best is cited. So every
value leads down to a chunk of the log.

A vector says something if one of its sentences has enough of the words. Words that all vectors
of a way have count nothing; rare ones count most, such as the number that a value changed to.
A model that says the same in other words is followed as far as enough words are the same.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile

from service.domain.state.vectors import StateVector
from service.domain.state.working_context import WorkingContext

#: Sentences of an answer that are traced.
MAX_STATEMENTS = 8
#: Share of what the context has of a statement that its vector must have.
ENOUGH = 1 / 2
#: Share of the statement itself that the vector must have: one word of it says nothing.
LEAST = 0.3
#: Share of what a later vector says that an earlier one must have to say it too.
STILL = 1 / 2
#: What a word weighs that only the question has.
AROUND = 1 / 2
#: Letters of a word that counts in full: shorter ones hold sentences together, as a rule.
#: What has a digit always does.
FULL_LETTERS = 4

_WORD = re.compile(r"\w+")
_BORDER = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")


def statements(answer: str) -> Sequence[str]:
    """Returns the sentences of an answer, each once; the first ones of many."""
    found = (one.strip() for one in _BORDER.split(answer) if _WORD.search(one))
    return tuple(dict.fromkeys(found))[:MAX_STATEMENTS]


def source(
    statement: str, context: WorkingContext, named: Collection[int], *, around: str = ""
) -> StateVector | None:
    """Returns the vector in use that a statement is from; None when it is from a recent step, or
    from nothing that the context says.

    `named` are the positions that the answer rests on: these steps go before a vector that
    says as much. `around` is the question.
    """
    vectors = context.state.stack
    texts = [one.text for one in vectors] + [one.text for one in context.recent]
    held = _held(statement, around, texts)
    weights = _rarity(held, statement, around, floor=1.0)
    scores = [_weight(words, weights) for words in held]
    sizes = _sizes(statement, "")
    all_held = _weight(frozenset().union(*held), weights)
    # The last of several equal ones is M, since it says it most recently.
    best = max(range(len(vectors)), key=lambda at: (scores[at], at))
    rivals = scores[len(vectors) :]
    is_recent = any(
        score > scores[best] or (score == scores[best] and step.position in named)
        for score, step in zip(rivals, context.recent, strict=True)
    )
    said = _weight(held[best], sizes) >= LEAST * _weight(sizes, sizes)
    return vectors[best] if said and not is_recent and scores[best] >= ENOUGH * all_held else None


def linked(vectors: Sequence[StateVector]) -> tuple[Sequence[StateVector], bool]:
    """Returns the first vectors, newest first, that are each made from the next.

    Also returns whether that is all: the last one began anew.
    """
    continued = list(takewhile(lambda one: one.after_position < one.from_position, vectors))
    return vectors[: len(continued) + 1], len(continued) < len(vectors)


def origin(
    statement: str, way: Sequence[StateVector], *, around: str = "", from_first: bool = True
) -> int:
    """Returns the index of the vector on a way, newest first, that a statement is from.

    `from_first`: the first one says it; else the newest one that does is searched for, as
    among the children of an episode. If the way goes on after its last vector, that one's index
    means that the origin is not on it.
    """
    held = _held(statement, around, [one.text for one in way])
    weights = _rarity(held, statement, around, floor=0.0)
    scores = [_weight(words, weights) for words in held]
    at = 0
    if not from_first:
        at = next(n for n, score in enumerate(scores) if score >= STILL * max(scores))
    wanted = {word: weights[word] for word in held[at]}
    total = _weight(frozenset(wanted), wanted)
    while at + 1 < len(way) and _weight(held[at + 1], wanted) >= STILL * total:
        at += 1
    return at


def _held(statement: str, around: str, texts: Sequence[str]) -> list[frozenset[str]]:
    """Returns which of the words each text has in one sentence."""
    sizes = _sizes(statement, around)
    return [_best_sentence(sizes, text) for text in texts]


def _best_sentence(sizes: Mapping[str, float], text: str) -> frozenset[str]:
    held = (sizes.keys() & _words(one) for one in _BORDER.split(text))
    return frozenset(max(held, key=lambda words: _weight(words, sizes)))


def _sizes(statement: str, around: str) -> Mapping[str, float]:
    """Returns the words, and what each counts by itself."""
    only_around = _words(around) - _words(statement)
    return {word: _size(word) * AROUND for word in only_around} | {
        word: _size(word) for word in _words(statement)
    }


def _size(word: str) -> float:
    is_full = len(word) >= FULL_LETTERS or any(map(str.isdigit, word)) or not word.isascii()
    return 1.0 if is_full else len(word) / FULL_LETTERS


def _rarity(
    held: Sequence[frozenset[str]], statement: str, around: str, *, floor: float
) -> Mapping[str, float]:
    """Weighs each word, the more the fewer have it; `floor` is for one that all have."""
    sizes = _sizes(statement, around)
    holders = Counter(word for words in held for word in words)
    return {
        word: sizes[word] * (floor + math.log(len(held) / count)) for word, count in holders.items()
    }


def _weight(words: Iterable[str], weights: Mapping[str, float]) -> float:
    # Exact: the same words have the same sum, in whatever order they come.
    return math.fsum(weights.get(word, 0.0) for word in words)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
