"""Chooses the sentences that answer a question, and those that say most in few tokens."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import Ranking
from service.llm.offline.texts import headed, name_words, sentences, terms, wanted

#: A further sentence must score this share of the best.
SECOND_BEST = 0.72
#: Sentences in a row that count as close together.
NEAR_SENTENCES = 3
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
    ranked = rank(said, query)
    near = [one for score, one in ranked if score >= SECOND_BEST * ranked[0][0]]
    texts = list(dict.fromkeys(one.text for one in near))[:most]
    return [one for one in near if one.text in texts]


def rank(said: Sequence[Passage], query: str) -> list[tuple[float, Passage]]:
    """Returns the passages that share words with a question, best first, by BM25.

    A word that is in a key above a passage counts there only, so that a sentence with the rest of
    the question comes before one that repeats its heading. A key that is in the question as a
    whole counts besides: "the with statement" and "the while statement" share all but a little
    word.
    """
    phrase = f" {name_words(query)} "
    called = {key for one in said for key in one.keys if " " in key and f" {key} " in phrase}
    asked = wanted(query) | called
    # In one order always: sums of the same numbers differ in another one.
    words = [sorted(asked & {*one.words, *one.keys}) for one in said]
    sizes = [len(one.text.split()) for one in said]
    holders = Counter(word for held in words for word in held)
    ranking = Ranking(texts=len(said), tokens=sum(sizes), holders=holders)
    found: list[tuple[float, Passage]] = []
    for one, held, size in zip(said, words, sizes, strict=True):
        told = {word: one.words[word] for word in held if word not in one.keys}
        above = {word: 1 for word in held if word in one.keys}
        score = ranking.score(told, size) + ranking.score(above, 0)
        found.append((score * 1.15 if DEFINITION.match(one.text) else score, one))
    return sorted((pair for pair in found if pair[0]), key=lambda pair: -pair[0])


def close_words(said: Sequence[Passage], query: str) -> set[str]:
    """Returns the question's words that are close together, where most of them are."""
    held = [wanted(query).intersection({*one.words, *one.keys}) for one in said]
    near = (set[str]().union(*held[at : at + NEAR_SENTENCES]) for at in range(len(held)))
    return max(near, key=len, default=set())


def digest(said: Sequence[str], max_tokens: int, query: str = "") -> list[str]:
    """Returns the sentences that say most in so many tokens, in their order.

    A sentence says much when it has many words that none taken before it has, names and numbers
    before others, for its length; and more with each word of the question.
    """
    asked, rest, taken = wanted(query), set(range(len(said))), list[int]()
    words = [set(terms(one)) for one in said]
    names = {word for one in said for name in _NAME.findall(one) for word in terms(name)}
    sizes = [estimate_tokens(f"{one} ") for one in said]
    fits = [1 + QUERY_WEIGHT * len(held & asked) for held in words]

    def gain(number: int) -> float:
        new = words[number]
        return fits[number] * (len(new) + len(new & names)) / (SENTENCE_TOKENS + sizes[number])

    while rest := {one for one in rest if sizes[one] <= max_tokens and words[one]}:
        number = max(rest, key=lambda one: (gain(one), -one))
        taken.append(number)
        max_tokens -= sizes[number]
        words = [held - words[number] for held in words]
    return [said[number] for number in sorted(taken)]
