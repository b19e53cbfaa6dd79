"""Splits texts into sections, sentences and terms for the offline model."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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
#: Without what is around it: a question may say `enter` for `__enter__`.
_WORD = re.compile(r"[^\W_]+(?:(?:_+|[-'])[^\W_]+)*")
#: Scripts without blanks between words: their words are taken for pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{2,}")
#: A title, an initial or an abbreviation ends no sentence, nor anything that goes on in small
#: letters: so a page's line ends do not.
_NO_END = (
    r"(?<!\b(?:Mr|Ms|Dr|St|Jr|Sr)\.)(?<!\bMrs\.)(?<!\b(?:Prof|Capt)\.)(?<!\b[A-HJ-Z]\.)"
    r"(?<!\b(?:e\.g|i\.e)\.)(?<!\b(?:vs|cf)\.)(?<!\bet al\.)(?<!\bapprox\.)"
)
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
    r"|(?=(?:async +)?(?:def|class) +(\w+) *[(:]))",
    re.MULTILINE,
)
#: Between paragraphs, the items of a list, and code and its docstrings.
_ITEM = re.compile(r"(?:\A|\n\s*\n|\n)[ \t]*+(?:[*•+-]|\d+[.)])\s+|\n\s*\n|\"{3}|'{3}")
#: A name, names of columns and rows.
_TABLE = re.compile(
    r"^Table:?[ \t]++(\S[^\n]{0,99})\n([^\n,]*+,[^\n]*+\n(?:[^\n,]*+,[^\n]*+(?:\n|\Z))*)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Topic:
    """What is said about one thing."""

    #: A heading or a name; empty for text without one, and for an answer.
    name: str
    #: In the order of the text.
    sentences: tuple[str, ...]


def sections(text: str) -> list[Topic]:
    """Returns a text in sections; code and tables have one for each thing that they define."""
    found = (Topic(title, tuple(prose(body))) for title, body in headed(text))
    return [*_tables(text)] or [one for one in found if one.name or one.sentences]


def headed(text: str) -> Iterator[tuple[str, str]]:
    """Yields the parts of a text with the heading above each, "" where there is none."""
    first, *parts = _HEADING.split(text)
    yield "", first
    for marked, underlined, _, defined, body in zip(
        *(parts[at::5] for at in range(5)), strict=True
    ):
        yield marked or underlined or defined, body


def _tables(text: str) -> Iterator[Topic]:
    """Yields the tables that have a name, each row with the names of its columns."""
    for name, lines in _TABLE.findall(text):
        rows = csv.DictReader(lines.splitlines(), skipinitialspace=True)
        said = (
            ", ".join(f"{column} {value}" for column, value in row.items())
            for row in rows
            # Of a row with more or fewer values than columns it is unknown which they are.
            if None not in (*row.keys(), *row.values())
        )
        yield Topic(name.strip(), (f"columns {', '.join(rows.fieldnames or ())}", *said))


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, whatever they are, each on one line."""
    ends = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    flat = (" ".join(text[begin:end].split()) for begin, end in pairwise(ends))
    return [one for one in flat if one]


def prose(text: str) -> Iterator[str]:
    """Yields the sentences of running text; code, tables and grammar are left out."""
    for item in _ITEM.split(text):
        flat = " ".join(item.split())
        letters = sum(char.isalpha() or char.isspace() for char in flat)
        for one in sentences(flat) if letters >= 0.75 * len(flat) else ():
            words = _WORD.findall(one)
            # Prose has little words in it; code and signatures have next to none.
            little = sum(word.casefold() in STOP_WORDS for word in words)
            is_code = not {"=", "#"}.isdisjoint(one.split())
            if 20 <= len(one) <= 400 and not is_code and little >= max(2, len(words) // 8):
                yield one


def stem(word: str) -> str:
    """Returns a word without its commonest endings, in lower case."""
    return _ENDING.sub("", word.casefold())


def terms(text: str) -> list[str]:
    """Returns the stems of the words that say something, with repeats, in order."""
    pairs = [run[at : at + 2] for run in _UNSPACED.findall(text) for at in range(len(run) - 1)]
    words = _WORD.findall(_UNSPACED.sub(" ", text))
    return pairs + [stem(word) for word in words if word.casefold() not in STOP_WORDS]


def wanted(query: str) -> set[str]:
    """Returns the words that a question is about; all of them where they all say little."""
    return set(terms(query)) or {stem(word) for word in query.split()}


def name_words(text: str) -> str:
    """Returns a name in its comparable form: all its words' stems, also the little ones.

    Only this distinguishes "the with statement" from "the while statement".
    """
    words = _WORD.findall(text)
    return " ".join(stem(word) for word in words if word.casefold() not in ("a", "an", "the"))
