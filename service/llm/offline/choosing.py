"""Chooses the sentences that answer a question, and those that say most in few tokens."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.domain.prompting.cutting import shortened
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import scored
from service.llm.offline.texts import headed, name_words, sentences, terms, wanted

#: A further sentence must score this share of the best.
SECOND_BEST = 0.72
#: How often a word of a key counts, since all that is below is about it.
KEY_COUNT = 8
#: What a sentence of a digest says more with each word of the question.
QUERY_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that may answer a question, and where it is from."""

    text: str
    #: A path, or a number of a chunk, a step or a note.
    at: tuple[str | int, ...]
    #: How often it has each stem, those of the keys or headings above it once, and each of these
    #: as a whole.
    words: Counter[str]


def passage(text: str, *at: str | int, keys: Iterable[str] = ()) -> Passage:
    """Returns a text as a passage; `keys` are the names that it is below.

    A word of a key counts there only, so that a sentence with the rest of a question comes before
    one that repeats its heading.
    """
    above = [word for key in keys for word in (*terms(key), name_words(key))]
    return Passage(text, at, Counter(terms(text)) | Counter(dict.fromkeys(above, KEY_COUNT)))


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

    Where scores differ little, as below one heading, the earlier passage comes first.
    A key that is in the question as a whole counts besides: "the with statement" and "the while
    statement" share all but a little word.
    """
    phrase = f" {name_words(query)} "
    asked = wanted(query) | {
        key for one in said for key in one.words if " " in key and f" {key} " in phrase
    }
    scores = scored([one.words for one in said], asked)
    found = [pair for pair in zip(scores, said, strict=True) if pair[0]]
    most = max(scores, default=0.0)
    return sorted(found, key=lambda pair: -round(pair[0] / most, 1))


def words_together(said: Sequence[Passage], query: str) -> set[str]:
    """Returns the question's words that one passage has, of the passage with most of them."""
    return max((wanted(query).intersection(one.words) for one in said), key=len, default=set())


def digest(said: Sequence[str], max_tokens: int, query: str = "") -> list[str]:
    """Returns the sentences that say most in so many tokens, in their order.

    A sentence says much when it has many words that none taken before it has, for its length, and
    more with each word of the question. Where none has room there is the beginning of the first.
    """
    asked, rest, taken = wanted(query), set(range(len(said))), list[int]()
    words = [set(terms(one)) for one in said]
    sizes = [estimate_tokens(f"{one} ") for one in said]
    fits = [1 + QUERY_WEIGHT * len(held & asked) for held in words]
    while rest := {one for one in rest if sizes[one] <= max_tokens and words[one]}:
        number = max(rest, key=lambda one: (fits[one] * len(words[one]) / sizes[one], -one))
        taken.append(number)
        max_tokens -= sizes[number]
        words = [held - words[number] for held in words]
    if not taken:
        return [shortened(" ".join(said), max_tokens, estimate_tokens)]
    return [said[number] for number in sorted(taken)]
