"""The offline model as a reader of memories: the sentences that fit a question best.

They are taken word for word, by the rarity of the question's words that they have; of a
PRISM memory with their paths, of a working context with the positions of their steps, of a
whole log with their chunks.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.answers.whole import WholeContent
from service.domain.prism.asking import AnswerContent
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.domain.prompting.no_answers import NO_ANSWER
from service.domain.state.asking import ContextAnswerContent
from service.domain.values.json_values import Json
from service.llm.offline.plain_text import sentences
from service.llm.offline.replies import ReplyPath, write
from service.llm.offline.texts import name_words, stem, terms

#: Sentences of an answer.
MAX_ANSWER_SENTENCES = 3
#: A further sentence must score this share of the best.
SECOND_BEST = 0.72

#: A sentence that says what something is.
DEFINITION = re.compile(
    r"^(?:(?:An?|The)\s+)?[\"'`(\w][^.,;:]{0,60}?[\"'`)\w]\s+"
    r"(?:is|are|means?|refers? to|denotes?|represents?|causes?|evaluates?|returns?|specifies|"
    r"executes?|defines?|allows?|provides?|statements? (?:is|are))\b",
)

#: Ends of a sentence that asks.
_ASKED = ("?", '?"', "？")


def complete(content: AnswerContent | ContextAnswerContent | WholeContent) -> str:
    """The reply to a question."""
    match content:
        case AnswerContent():
            return _answer(content)
        case ContextAnswerContent():
            return _answer_context(content)
        case WholeContent():
            return _answer_whole(content)


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: ReplyPath
    text: str
    #: Stems of the text, with repeats.
    words: Counter[str]
    #: Stems of the keys above it.
    keys: frozenset[str]
    #: The keys above it, as `name_words` has them.
    names: frozenset[str]


def _answer(content: AnswerContent) -> str:
    chosen = _chosen(list(_leaves(content.value, (), frozenset(), frozenset())), content.query)
    if not chosen:
        return f"[ANSWER]\n{NO_ANSWER}\n[PATHS]\n"
    text = " ".join(dict.fromkeys(leaf.text for leaf in chosen))
    paths = "\n".join(write(leaf.path) for leaf in chosen)
    return f"[ANSWER]\n{text}\n[PATHS]\n{paths}\n"


def _answer_context(content: ContextAnswerContent) -> str:
    chosen = _chosen(list(_parts(content)), content.query)
    text = " ".join(dict.fromkeys(leaf.text for leaf in chosen)) or NO_ANSWER
    positions = dict.fromkeys(str(leaf.path[0]) for leaf in chosen if leaf.path)
    return "\n".join(["[ANSWER]", text, "[STEPS]", *positions, ""])


def _answer_whole(content: WholeContent) -> str:
    # The newest first: of what is said twice the later is right.
    leaves = [
        leaf for position, text in reversed(content.chunks) for leaf in _said(text, (position,))
    ]
    chosen = _chosen(leaves, content.query)
    text = " ".join(dict.fromkeys(leaf.text for leaf in chosen)) or NO_ANSWER
    quotes = dict.fromkeys(f'{leaf.path[0]}: "{leaf.text}"' for leaf in chosen)
    return "\n".join(["[ANSWER]", text, "[QUOTES]", *quotes, ""])


def _parts(content: ContextAnswerContent) -> Iterator[_Leaf]:
    """The sentences, the newest first: of what is said twice the later is right."""
    for position, text in reversed(content.recent):
        yield from _said(text, (position,))
    for text in reversed(content.vectors):
        yield from _said(text, ())
    yield from _said(content.task, ())


def _said(text: str, at: ReplyPath) -> Iterator[_Leaf]:
    for one in sentences(text):
        # The task may be the very question, and answers nothing.
        if not one.endswith(_ASKED):
            yield _Leaf(at, one, Counter(terms(one)), frozenset(), frozenset())


def _chosen(leaves: Sequence[_Leaf], query: str) -> Sequence[_Leaf]:
    """Those that fit a question best; none when none has a word of it."""
    wanted = set(terms(query)) or {stem(word) for word in query.split()}
    ranked = _rank(leaves, wanted, query)
    best = ranked[0][0] if ranked else 0.0
    return [leaf for score, leaf in ranked[:MAX_ANSWER_SENTENCES] if score >= SECOND_BEST * best]


def _leaves(
    value: Json, at: ReplyPath, keys: frozenset[str], names: frozenset[str]
) -> Iterator[_Leaf]:
    match value:
        case dict():
            for key, child in value.items():
                yield from _leaves(
                    child, (*at, key), keys | set(terms(key)), names | {name_words(key)}
                )
        case list():
            for number, child in enumerate(value):
                yield from _leaves(child, (*at, number), keys, names)
        case str() if value and value != PLACEHOLDER:
            yield _Leaf(at, value, Counter(terms(value)), keys, names)
        case bool() | int() | float():
            yield _Leaf(at, str(value), Counter([str(value)]), keys, names)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, and how rare its words are in the memory."""

    #: How much a word in a leaf's text says.
    said: dict[str, float]
    #: How much a word in a leaf's keys says.
    named: dict[str, float]
    #: How much a key says that stands in the question as a whole.
    called: dict[str, float]
    #: Words of an average leaf.
    average: float


def _rank(leaves: Sequence[_Leaf], wanted: set[str], query: str) -> list[tuple[float, _Leaf]]:
    """Leaves that share words with the question, best first (BM25, keys count double)."""
    if not leaves:
        return []
    phrase = f" {name_words(query)} "
    said = Counter(word for leaf in leaves for word in wanted if word in leaf.words)
    named = Counter(word for leaf in leaves for word in wanted if word in leaf.keys)
    names = Counter(name for leaf in leaves for name in leaf.names)
    called = {
        name: count
        for name, count in names.items()
        if " " in name and f" {name} " in phrase and any(word in named for word in name.split())
    }
    count = len(leaves)
    question = _Question(
        said={word: _rarity(count, said[word]) for word in wanted},
        named={word: _rarity(count, named[word]) for word in wanted},
        called={name: _rarity(count, held) for name, held in called.items()},
        average=max(sum(leaf.words.total() for leaf in leaves) / count, 1.0),
    )
    scored = [(_score(leaf, question), number) for number, leaf in enumerate(leaves)]
    scored.sort(key=lambda entry: (-entry[0], entry[1]))
    return [(score, leaves[number]) for score, number in scored if score > 0]


def _score(leaf: _Leaf, question: _Question) -> float:
    score = 0.0
    norm = 1.2 * (0.25 + 0.75 * leaf.words.total() / question.average)
    for word, rarity in question.said.items():
        if frequency := leaf.words[word]:
            score += rarity * frequency * 2.2 / (frequency + norm)
        if word in leaf.keys:
            score += 2.0 * question.named[word]
    score += max((question.called.get(name, 0.0) for name in leaf.names), default=0.0)
    if score and DEFINITION.match(leaf.text):
        score *= 1.15
    return score


def _rarity(count: int, holding: int) -> float:
    return math.log(1 + (count - holding + 0.5) / (holding + 0.5))
