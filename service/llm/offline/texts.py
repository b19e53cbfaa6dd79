"""Ordinary text statistics: sentences, headings, terms. What the offline model reads by."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from service.llm.offline.text_forms import forms

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

_ARTICLES = frozenset({"a", "an", "the"})

_WORD = re.compile(r"\w+(?:[-']\w+)*")
#: A sentence ends at a full stop that is followed by a blank and a new beginning.
#: Not after a title or an initial, which a name follows, nor after "e.g." and its like.
NO_TITLE = (
    r"(?<!\b(?:Mr|Ms|Dr|St|Jr|Sr)\.)(?<!\bMrs\.)(?<!\b(?:Prof|Capt)\.)(?<!\b[A-HJ-Z]\.)"
    r"(?<!\b(?:e\.g|i\.e)\.)(?<!\b(?:vs|cf)\.)(?<!\bet al\.)(?<!\bapprox\.)"
)
_SENTENCE_END = re.compile(rf"(?<=[.!?]){NO_TITLE}(?:[\"')\]]*)\s+(?=[\"'(\[*`]*[A-Z0-9_])")
_UNDERLINE = re.compile(r"^\s*([*=~^#+\"-])\1{2,}\s*$")
_MARKDOWN_HEADING = re.compile(r"^\s{0,3}#{1,6}\s++(.{2,100}?)\s*+#*+\s*+$")
_BULLET = re.compile(r"^\s*(?:[*•+-]|\d+[.)])\s+")
_NOTE = re.compile(r"[\"'*`(\[]*[A-Z][^=]*[.!?][\"')\]*]*$")
_BLANK_LINES = re.compile(r"\n\s*\n")
#: A line end within a paragraph.
_LINE_END = re.compile(r"(?<![\n \t])[ \t]*+\n(?!\s*\n)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading and the sentences below it, up to the next one."""

    #: Empty when the text begins without one.
    heading: str
    #: In the order of the text.
    sentences: tuple[str, ...]


def sections(text: str) -> list[Section]:
    """A text in sections; one without headings is one section.

    Code and tables have one for each thing that they define.
    """
    defined = forms(text)
    if defined:
        return [
            Section(heading=form.name, sentences=(*sentences(form.prose), *form.facts))
            for form in defined
        ]
    found: list[Section] = []
    heading = ""
    body: list[str] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        title, used = _heading(lines, number)
        if title:
            found.append(Section(heading=heading, sentences=tuple(sentences("\n".join(body)))))
            heading, body = title, []
        else:
            body.append(lines[number])
        number += used
    found.append(Section(heading=heading, sentences=tuple(sentences("\n".join(body)))))
    return [section for section in found if section.heading or section.sentences]


def _heading(lines: Sequence[str], number: int) -> tuple[str, int]:
    """The heading at a line, and how many lines it takes; "" and 1 when there is none."""
    line = lines[number].strip()
    if markdown := _MARKDOWN_HEADING.match(lines[number]):
        return markdown[1], 1
    underlined = number + 1 < len(lines) and _UNDERLINE.match(lines[number + 1])
    if underlined and 2 <= len(line) <= 100 and not _UNDERLINE.match(line):
        return line, 2
    return "", 1


def sentences(text: str) -> Iterator[str]:
    """The sentences of running text; code, tables and grammar are left out."""
    for paragraph in _BLANK_LINES.split(text):
        for item in _items(paragraph):
            flat = " ".join(item.split())
            if _is_prose(flat):
                yield from (one for one in _SENTENCE_END.split(flat) if _is_sentence(one))


def _items(paragraph: str) -> Iterator[str]:
    """The items of a list, or the paragraph as it is."""
    lines = paragraph.splitlines()
    if not any(_BULLET.match(line) for line in lines):
        # Deeply indented, it is code, unless it reads like a note.
        deep = all(line.startswith("     ") for line in lines)
        if deep and not _NOTE.match(" ".join(paragraph.split())):
            return
        yield paragraph
        return
    item: list[str] = []
    for line in lines:
        if _BULLET.match(line) and item:
            yield "\n".join(item)
            item = []
        item.append(_BULLET.sub("", line))
    yield "\n".join(item)


def _is_prose(text: str) -> bool:
    letters = sum(char.isalpha() or char.isspace() for char in text)
    return len(text) >= 20 and letters >= 0.75 * len(text) and "::=" not in text


def _is_sentence(text: str) -> bool:
    if not 20 <= len(text) <= 400 or " = " in text:
        return False
    # Prose has little words in it; code and signatures have next to none.
    words = _WORD.findall(text)
    little = sum(word.casefold() in STOP_WORDS for word in words)
    return len(words) >= 4 and little >= max(2, len(words) // 8)


#: Lines of a text whose line ends say nothing: none is longer than the second figure, and
#: of four or more lines most have so many characters as the first at least.
WRAPPED_CHARACTERS = (50, 100)
WRAPPED_SHARE = 0.6


def unwrapped(text: str) -> str:
    """A text whose paragraphs are lines, where it was broken into lines of a page's width."""
    lines = [line for line in text.splitlines() if line.strip()]
    least, most = WRAPPED_CHARACTERS
    filled = sum(len(line) >= least for line in lines)
    if len(lines) < 4 or max(map(len, lines)) > most or filled < WRAPPED_SHARE * len(lines):
        return text
    return _LINE_END.sub(" ", text)


@lru_cache(maxsize=16384)
def stem(word: str) -> str:
    """A word without its commonest endings, in lower case."""
    word = word.casefold()
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4), ("ly", 5)):
        if word.endswith(ending) and len(word) >= least and not word.endswith("ss"):
            base = word[: -len(ending)]
            return base + "y" if ending == "ies" else base.rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word


def terms(text: str) -> list[str]:
    """The stems of the words that say something, with repeats, in order."""
    found: list[str] = []
    for word in _WORD.findall(text):
        lower = word.casefold()
        if lower not in STOP_WORDS:
            found.append(stem(word))
            # `__enter__` and `enter` are the same to who asks.
            bare = word.strip("_")
            if bare and bare != word:
                found.append(stem(bare))
    return found


def name_words(text: str) -> str:
    """A name in its comparable form: all its words' stems, also the little ones.

    "The with statement" and "the while statement" are told apart by nothing else.
    """
    words = _WORD.findall(text)
    return " ".join(stem(word) for word in words if word.casefold() not in _ARTICLES)


def cut(text: str, width: int) -> str:
    """A text of at most `width` characters, cut at a word."""
    if len(text) <= width:
        return text
    head = text[: width - 1]
    return (head.rpartition(" ")[0] or head) + "…"
