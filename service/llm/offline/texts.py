"""Splits texts into sections, sentences and terms for the offline model."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from service.domain.search.ranking import words

#: Words that say nothing about what a text is about.
_STOP_TEXT = """
a about above after again all also am an and any are as at be because been before being
below between both but by can could did do does doing down during each either else etc few
for from further given had has have having he her here hers him his how however i if in
into is it its itself just let like made make makes many may me might more most must my no
nor not now of off on once one only or other our out over own per rather same say see
shall she should since so some such than that the their them then there these they this
those through thus to too two under until up upon us use used uses using very was we well
were what when where whether which while who whom why will with within without would yes
yet you your
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())

_ENDING = re.compile(r"(?<=\w\w\w)(?:ies|ing|ed|es|(?<!s)s|ly|e|y)$")
#: A title, an initial or e.g. ends no sentence, nor does anything before small letters: so most
#: line ends of a page do not.
_NO_END = r"(?<!\b(?:Mr|Ms|Dr|St|vs|cf)\.)(?<!\b(?:Mrs|e\.g|i\.e)\.)(?<!\b[A-HJ-Z]\.)"
_END = re.compile(
    rf"(?<=[.!?؟।…]){_NO_END}[\"'”’»)\]]*\s+(?![\sa-zß-öø-ÿα-ωа-џ])|(?<=[。！？])[\"'”’」』)\]]*|\n+(?![a-zß-öø-ÿα-ωа-џ])"
)
#: A title after number signs, or above a line of punctuation, or the name of a function or a class
#: at the margin of code. Comments in code and sentences above a rule end with a full stop, and are
#: none.
_HEADING = re.compile(
    r"^(?:\s{0,3}#{1,6}[^\S\n]++(\S[^\n]{0,98}?[^\s.。])[^\S\n]*+#*+[^\S\n]*+$"
    r"|[^\S\n]*+(?![*=~^#+\"-]{3})(\S[^\n]{0,98}[^\s.。])[^\S\n]*+\n"
    r"[^\S\n]*+([*=~^#+\"-])\3{3,}[^\S\n]*+$"
    r"|(?=(?:async +)?(?:def|class) +(\w+) *[(:])|(Table: [^\n]{1,99})$)",
    re.MULTILINE,
)
#: Between paragraphs, the items of a list, and code and its docstrings.
_ITEM = re.compile(r"(?:\A|\n\s*\n|\n)[ \t]*+(?:[*•+-]|\d+[.)])\s+|\n\s*\n|\"{3}|'{3}")


@dataclass(frozen=True, slots=True)
class Topic:
    """What is said about one thing."""

    #: A heading or a name; empty for text without one, and for an answer.
    name: str
    #: In the order of the text.
    sentences: tuple[str, ...]


def sections(text: str) -> list[Topic]:
    """Returns a text in sections; code and tables have one for each thing that they define."""
    found = (
        Topic(title, tuple(_rows(body) if title.startswith("Table: ") else prose(body)))
        for title, body in headed(text)
    )
    return [one for one in found if one.name or one.sentences]


def _rows(table: str) -> list[str]:
    """Returns the rows of a table, each with the line of the columns' names before it."""
    columns, *rows = table.strip().splitlines() or [""]
    return [f"{columns}: {row}" for row in rows]


def headed(text: str) -> Iterator[tuple[str, str]]:
    """Yields the parts of a text with the heading above each, "" where there is none."""
    first, *parts = _HEADING.split(text)
    yield "", first
    for at in range(0, len(parts), 6):
        *titles, body = parts[at : at + 6]
        # The other group of a match is one character of the line below a title.
        yield max(filter(None, titles), key=len), body


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, whatever they are, each on one line."""
    ends = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    flat = (" ".join(text[begin:end].split()) for begin, end in pairwise(ends))
    return [one for one in flat if one]


def prose(text: str) -> Iterator[str]:
    """Yields the sentences of running text; code and grammar are left out."""
    for item in _ITEM.split(text):
        flat = " ".join(item.split())
        letters = sum(char.isalpha() or char.isspace() for char in flat)
        for one in sentences(flat) if letters >= 0.75 * len(flat) else ():
            found = words(one)
            # Prose has little words in it; code and signatures have next to none.
            little = sum(word in STOP_WORDS for word in found)
            is_code = not {"=", "#"}.isdisjoint(one.split())
            if 20 <= len(one) <= 400 and not is_code and little >= max(2, len(found) // 8):
                yield one


def stem(word: str) -> str:
    """Returns a word without its commonest endings, in lower case."""
    return _ENDING.sub("", word.casefold())


def terms(text: str) -> list[str]:
    """Returns the stems of the words that say something, with repeats, in order."""
    return [stem(word) for word in words(text) if word not in STOP_WORDS]


def wanted(query: str) -> set[str]:
    """Returns the words that a question is about; all of them where they all say little."""
    return set(terms(query)) or {stem(word) for word in query.split()}


def name_words(text: str) -> str:
    """Returns a name in its comparable form: all its words' stems, also the little ones.

    Only this distinguishes "the with statement" from "the while statement".
    """
    return " ".join(stem(word) for word in words(text) if word not in ("a", "an", "the"))
