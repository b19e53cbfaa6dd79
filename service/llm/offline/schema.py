"""Schemas from the offline model: small, plausible, and made from words alone.

It looks for the thing that is asked about and for the numbers that are asked of it, and
makes a dict of that thing. Its docstrings say that no language model was at work.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from service.domain.prism.schemas.generation import SchemaContent
from service.domain.prism.schemas.names import is_name
from service.domain.prism.schemas.tree import (
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    OptionalType,
    RecordType,
    Schema,
    StrType,
    Type,
    render,
)
from service.llm.offline.texts import STOP_WORDS, stem

#: Numbers that one schema asks for.
MAX_NUMBERS = 4
#: How far behind "how many" what it counts may stand.
REACH_WORDS = 12
#: Letters of a word that becomes a name.
NAME_CHARACTERS = 40

_WORD = re.compile(r"[^\W_]+")
#: Behind these a question names what it is about.
_POINTERS = frozenset({"which", "what", "whose", "each", "every", "all", "any"})
#: Things of which only their number can be asked.
_MEASURES_TEXT = """
age amount area balance budget capacity cost depth distance duration expense fee fine
height income length loss mileage percentage population price profit rate rating rent
revenue salary score share size speed sum tax temperature turnover value volume wage weight
width
"""
#: What "how …" asks for.
_HOW = {
    "old": "age",
    "long": "length",
    "high": "height",
    "tall": "height",
    "deep": "depth",
    "wide": "width",
    "far": "distance",
    "big": "size",
    "large": "size",
    "heavy": "weight",
    "fast": "speed",
    "expensive": "price",
}
#: Verbs and fillers that stand where a thing could.
_NO_THINGS_TEXT = """
ask asks asked chat chats collection contain contains data describe described describes
description document documents domain explain find give happen happened information kind
know list mention mentioned name names number numbers piece pieces question questions
said say says set show summarise summarize summary talk talks tell text texts thing things
type types want wants written
"""
_MEASURES = frozenset(_MEASURES_TEXT.split())
_NO_THINGS = frozenset(_NO_THINGS_TEXT.split())

_UNSURE = "Made without a language model, from the words of the domain and of the question."


def complete(content: SchemaContent) -> str:
    """The reply: class source."""
    words = _words(content.example_query)
    known = _words(content.domain)
    thing = _thing(words, known)
    return render(_schema(thing, _numbers(words, known, thing)))


@dataclass(frozen=True, slots=True)
class _Thing:
    """What a memory is keyed by."""

    #: As a class is named.
    title: str
    #: As a field is named.
    plural: str
    #: As it is called in words.
    called: str


def _schema(thing: _Thing, numbers: dict[str, Type]) -> Schema:
    facts = ListType(item=StrType())
    value: Type = facts
    holds = "sentences that make sense by themselves"
    if numbers:
        counted = [
            Field(name=name, type=OptionalType(inner=of), doc="None until a text says it.")
            for name, of in numbers.items()
        ]
        said = Field(name="facts", type=facts, doc="Sentences that make sense by themselves.")
        about = f"What is said about one {thing.called}."
        value = RecordType(name=thing.title, fields=(said, *counted), doc=about)
        holds = "what is said about it"
    doc = f"{_UNSURE}\nRead it, and change what does not fit, before a memory is kept by it."
    keyed = f"Keyed by the name of the {thing.called}: {holds}."
    root = Field(name=thing.plural, type=DictType(value=value), doc=keyed)
    return Schema(root=RecordType(name=f"{thing.title}Notes", fields=(root,), doc=doc))


def _words(text: str) -> list[str]:
    """The words of a text in small letters."""
    plain = unicodedata.normalize("NFKC", text).lower()
    # Where letters have no capitals, words have no blanks between them: a sentence is no name.
    words = _WORD.findall(plain)
    return [word for word in words if len(word) <= NAME_CHARACTERS and word.islower()]


def _is_name(word: str) -> bool:
    """Whether it can name a field, and with a capital a class."""
    capital = word.capitalize()
    # Some letters have no capital of their own, and become two characters.
    return is_name(word) and is_name(capital) and len(capital) == len(word)


def _says(word: str) -> bool:
    return len(word) > 1 and word not in STOP_WORDS and word not in _NO_THINGS and _is_name(word)


def _thing(query: list[str], domain: list[str]) -> _Thing:
    """The best of all words: pointed at, in both texts, many of it, early."""
    pointed = set(_pointed_at(query))
    in_query = {stem(word) for word in query}
    in_domain = {stem(word) for word in domain}
    many = {stem(word) for word in (*query, *domain) if _is_plural(word)}
    best, score = "topic", 0
    for word in (*query, *domain):
        if not _says(word) or _measure(word):
            continue
        root = stem(word)
        both = root in in_query and root in in_domain
        points = 1 + 3 * (root in pointed) + 2 * both + (root in many)
        if points > score:
            best, score = word, points
    one = _singular(best) if _is_name(_singular(best)) else best
    many_of = best if _is_plural(best) else _plural(one)
    return _Thing(title=one.capitalize(), plural=many_of, called=one)


def _pointed_at(words: list[str]) -> Iterator[str]:
    """Stems of the words that follow "which", "how many" and their like at once."""
    for before, word in pairwise(words):
        # "What caused …" asks for no thing.
        noun = _says(word) and not word.endswith("ed") and not _measure(word)
        if before in _POINTERS and noun:
            yield stem(word)


def _numbers(query: list[str], domain: list[str], thing: _Thing) -> dict[str, Type]:
    """Names and types of the numbers that are asked for, those of the question first."""
    found: dict[str, Type] = {}
    for number, word in enumerate(query):
        following = query[number + 1 : number + 2]
        if word == "how" and following:
            found |= _how(following[0], query[number + 2 : number + 2 + REACH_WORDS], thing)
    for word in (*query, *domain):
        if measure := _measure(word):
            found.setdefault(measure, FloatType())
    return dict(list(found.items())[:MAX_NUMBERS])


def _how(word: str, rest: list[str], thing: _Thing) -> dict[str, Type]:
    """What "how many …", "how much …" and "how old" ask for."""
    if word in _HOW:
        return {_HOW[word]: FloatType()}
    if word == "many":
        # How many of the things themselves is counted by who reads the memory.
        counted = next((one for one in rest if _says(one)), "")
        other = counted and stem(counted) != stem(thing.called)
        return {f"number_of_{counted}": IntType()} if other else {}
    if word == "much" and not any(_measure(one) for one in rest):
        return {"amount": FloatType()}
    return {}


def _measure(word: str) -> str:
    """The measure that a word names; empty when it names none."""
    return next((one for one in (word, _singular(word)) if one in _MEASURES), "")


def _is_plural(word: str) -> bool:
    return word.isascii() and len(word) > 3 and word[-1] == "s" and word[-2] not in "sui"


def _singular(word: str) -> str:
    if not _is_plural(word):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("shes", "ches", "xes", "sses")):
        return word[:-2]
    return word[:-1]


def _plural(word: str) -> str:
    if not word.isascii():
        return word
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"
