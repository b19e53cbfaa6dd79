"""The extractor: the sentences that answer a question, and those that say most in few tokens."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import Ranking
from service.llm.offline.texts import headed, name_words, sentences, terms, wanted

#: A further sentence must score this share of the best.
SECOND_BEST = 0.72
#: What a word counts again that is in a passage: of two below one key, one says more of it.
ECHO = 0.1
#: Places of a text that are named, on average.
PLACES = 3
#: Sentences in a row that count as close together.
NEAR_SENTENCES = 3
#: Parts of a text that have a turn each, at most, and tokens of a digest for each at least.
PARTS, PART_TOKENS = 4, 40
#: What a sentence of a digest says more with each word of the question.
QUERY_WEIGHT = 2.0
#: What a sentence costs beside its words, in tokens: short ones say little by themselves.
SENTENCE_TOKENS = 2

#: A sentence that says what something is.
DEFINITION = re.compile(
    r"^(?:(?:An?|The)\s+)?[\"'`(\w][^.,;:]{0,60}?[\"'`)\w]\s+"
    r"(?:is|are|means?|refers? to|denotes?|represents?|causes?|evaluates?|returns?|specifies|"
    r"executes?|defines?|allows?|provides?|statements? (?:is|are))\b",
)
_NAME = re.compile(r"(?<=[\w,;:] )[A-ZÀ-ÞΑ-ΩА-Я]\w+|\d[\w.,:]*")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that may answer a question, and where it is from."""

    text: str
    #: A path, or a number of a chunk, a step or a note.
    at: tuple[str | int, ...]
    #: Stems of the text.
    words: Counter[str]
    #: Stems of the keys or headings above it, and each of these as a whole.
    keys: frozenset[str] = frozenset()


def passage(text: str, *at: str | int, keys: Iterable[str] = ()) -> Passage:
    """Returns a text as a passage; `keys` are the names that it is below."""
    above = {word for key in keys for word in (*terms(key), name_words(key))}
    return Passage(text, at, Counter(terms(text)), frozenset(above))


def passages(texts: Iterable[tuple[int, str]]) -> list[Passage]:
    """Returns the sentences of texts, each with the number of its text and below its heading."""
    return [
        passage(one, number, keys=[heading])
        for number, text in texts
        for heading, body in headed(text)
        for one in sentences(body)
    ]


def best(said: Sequence[Passage], query: str, most: int) -> list[Passage]:
    """Returns the passages with the texts that fit a question best, wherever these are.

    There are `most` texts at most, and none without a word of the question.
    """
    found: list[Passage] = []
    ranked = rank(said, query)[: PLACES * most]
    for score, one in ranked:
        texts = {other.text for other in found}
        if score >= SECOND_BEST * ranked[0][0] and (one.text in texts or len(texts) < most):
            found.append(one)
    return found


def rank(said: Sequence[Passage], query: str) -> list[tuple[float, Passage]]:
    """Returns the passages that share words with a question, best first.

    A word that is in a passage and in a key above it counts once, so that a sentence with the
    rest of the question comes before one that repeats its heading. A key that is in the question
    as a whole counts besides: "the with statement" and "the while statement" share all but a
    little word.
    """
    asked, phrase = wanted(query), f" {name_words(query)} "
    called = {key for one in said for key in one.keys if " " in key and f" {key} " in phrase}
    keys = [sorted(one.keys & (asked | called)) for one in said]
    texts = [{word: one.words[word] for word in sorted(asked & one.words.keys())} for one in said]
    named, told = _ranking(keys, said), _ranking(texts, said)
    found: list[tuple[float, Passage]] = []
    for one, above, words in zip(said, keys, texts, strict=True):
        size = len(one.text.split())
        rest = {word: count for word, count in words.items() if word not in one.keys}
        score = told.score(rest, size) + named.score(dict.fromkeys(above, 1), 0)
        score += ECHO * told.score(words, size)
        found.append((score * 1.15 if DEFINITION.match(one.text) else score, one))
    return sorted((pair for pair in found if pair[0]), key=lambda pair: -pair[0])


def _ranking(held: Sequence[Iterable[str]], said: Sequence[Passage]) -> Ranking:
    return Ranking(
        texts=len(said),
        tokens=sum(len(one.text.split()) for one in said),
        holders=Counter(word for words in held for word in words),
    )


def close_words(said: Sequence[Passage], query: str) -> set[str]:
    """Returns the question's words that are close together, where most of them are."""
    held = [wanted(query).intersection({*one.words, *one.keys}) for one in said]
    near = (set[str]().union(*held[at : at + NEAR_SENTENCES]) for at in range(len(held)))
    return max(near, key=len, default=set())


def digest(said: Sequence[str], max_tokens: int, query: str = "") -> list[str]:
    """Returns the sentences that say most in so many tokens, in their order.

    A sentence says much when it has many words that none taken before it has, names and numbers
    before others, for its length; and more with each word of the question. Every
    part of the text has a turn, one after the other, so that none is left out.
    """
    asked, heard, taken = wanted(query), set[str](), list[int]()
    words = [frozenset(terms(one)) for one in said]
    names = {word for one in said for name in _NAME.findall(one) for word in terms(name)}
    sizes = [estimate_tokens(f"{one} ") for one in said]
    length = max(1, -(-len(said) // max(1, min(PARTS, max_tokens // PART_TOKENS))))
    parts = [set(range(len(said))[at : at + length]) for at in range(0, len(said), length)]

    def gain(number: int) -> float:
        new = words[number] - heard
        fits = 1 + QUERY_WEIGHT * min(len(words[number] & asked), PARTS)
        return fits * (len(new) + len(new & names)) / (SENTENCE_TOKENS + sizes[number])

    while any(parts):
        for part in parts:
            part -= {one for one in part if sizes[one] > max_tokens or not gain(one)}
            if part:
                number = max(part, key=lambda one: (gain(one), -one))
                part.remove(number)
                taken.append(number)
                heard |= words[number]
                max_tokens -= sizes[number]
    return [said[number] for number in sorted(taken)]
