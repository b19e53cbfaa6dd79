"""Reads answers in sections: [ANSWER], then a section of what the answer rests on.

Models put markup around the headers, leave the brackets out, or write no header at all: then
the whole reply is the answer. An unfinished reply is read for clients that read along. What is
found in it only grows while the reply grows: what may become a header is held back until it is
known what it is. Where the whole reply is read differently, the client's text begins anew.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from service.domain.prompting.asking import SaidAnswer
from service.domain.prompting.no_answers import is_blank, may_say_none, says_none
from service.domain.prompting.replies import MAX_REPLY_CHARACTERS
from service.domain.prompting.thoughts import behind_unopened, said, said_so_far

T = TypeVar("T")

# What repeats is bounded: a model that has lost its way writes blanks without end.
_BLANKS = r"[ \t]{0,16}"
_MARKUP = r"[*#_`]{0,4}"
_FLAGS = re.IGNORECASE | re.MULTILINE
#: A last line that may become a header, or is one that is not closed yet; names have at most
#: 16 characters.
_MAYBE_HEADER = re.compile(
    rf"{_BLANKS}{_MARKUP}{_BLANKS}(?:\[[^\]\n]{{0,48}}(?:\]{_MARKUP}{_BLANKS}:?)?)?\Z"
)
#: A last line that may become a header without brackets.
_MAYBE_LOOSE = re.compile(rf"{_BLANKS}{_MARKUP}{_BLANKS}([a-z]{{1,16}}){_MARKUP}\Z", re.IGNORECASE)


def header(name: str) -> re.Pattern[str]:
    """Returns the pattern of a header as prompts ask for it: [NAME] at the start of a line.

    `name` is a pattern of at most 16 characters, in any case.
    """
    return re.compile(
        rf"^{_BLANKS}{_MARKUP}{_BLANKS}\[{_BLANKS}(?:{name}){_BLANKS}\]{_MARKUP}[ \t]{{0,4}}:?",
        _FLAGS,
    )


def loose_header(name: str) -> re.Pattern[str]:
    """Returns the pattern of a header as weak models write it: a name and a colon."""
    return re.compile(rf"^{_BLANKS}{_MARKUP}{_BLANKS}(?:{name}){_MARKUP}:{_MARKUP}", _FLAGS)


_ANSWER = header("ANSWER")
_LOOSE_ANSWER = loose_header("(?:the )?(?:final )?answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcesSection:
    """The section that follows an answer.

    Its last header counts, since an answer may have such a line. A loose header counts where
    there is no other.
    """

    header: re.Pattern[str]
    loose: re.Pattern[str] | None = None
    #: All that may follow a loose header, to the end of the reply; None: anything.
    only: re.Pattern[str] | None = None
    #: The same for an unfinished reply; None: a loose header is not looked for in one.
    only_so_far: re.Pattern[str] | None = None
    #: The longest names that a loose header may have, in lower case.
    loose_names: tuple[str, ...] = ()

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """Returns the header of the section after `start`; None when there is none."""
        found = _last(self.header, text, start)
        if found is None and self.loose is not None:
            found = _last(self.loose, text, start)
            if found and self.only and not self.only.fullmatch(text, found.end()):
                return None
        return found

    def cut_from(self, text: str) -> str:
        """Returns an unfinished answer without an end that is, or may become, this section."""
        if self.loose is None or self.only_so_far is None:
            return text
        for match in reversed([*self.loose.finditer(text)]):
            if self.only_so_far.fullmatch(text, match.end()):
                return text[: match.start()].rstrip()
        line = text.rfind("\n") + 1
        found = _MAYBE_LOOSE.match(text, line)
        if found and any(name.startswith(found[1].lower()) for name in self.loose_names):
            return text[:line].rstrip()
        return text


def _last(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text, start):
        found = match
    return found


def _once(text: str, start: int, ends: re.Pattern[str]) -> str:
    """Returns a text up to the next answer after a section: models write some replies twice."""
    section = ends.search(text, start)
    again = _ANSWER.search(text, section.end()) if section else None
    return text[: again.start()] if again else text


def read_answer(
    reply: str,
    section: SourcesSection,
    sources: Callable[[str], Iterable[T]],
    *,
    is_cut: bool = False,
) -> SaidAnswer[T] | None:
    """Returns the answer of a reply and its sources; None when the reply has no answer.

    `sources` reads the text of the section. `is_cut`: the reply lacks its end.
    """
    text = said(reply[:MAX_REPLY_CHARACTERS])
    begin = _ANSWER.search(text) or _LOOSE_ANSWER.search(text)
    if begin is None:
        text = behind_unopened(text)
    start = begin.end() if begin else 0
    text = _once(text, start, section.header)
    end = section.find(text, start)
    answer = text[start : end.start() if end else len(text)].strip()
    if is_blank(answer):
        return None
    if says_none(answer):
        return SaidAnswer(text="")
    if end is None:
        return SaidAnswer(text=answer, is_cut=is_cut)
    return SaidAnswer(text=answer, sources=tuple(sources(text[end.end() :])))


def answer_so_far(reply: str, section: SourcesSection) -> str:
    """Returns the answer of an unfinished reply, as far as it is known.

    A reply without the header that was asked for has none until its end. Words that may turn
    out to say that there is no answer are held back.
    """
    text = section.cut_from(section_so_far(reply[:MAX_REPLY_CHARACTERS], _ANSWER, section.header))
    return "" if may_say_none(text) else text


def section_so_far(reply: str, begins: re.Pattern[str], ends: re.Pattern[str]) -> str:
    """Returns the text of an unfinished reply from a header up to the last header after it.

    Empty as long as the first header is not there. Both patterns are made by `header`.
    """
    text = said_so_far(reply)
    begin = begins.search(text)
    # A header at the very end may still go on.
    if begin is None or begin.end() == len(text):
        return ""
    text = _once(text, begin.end(), ends)
    end = _last(ends, text, begin.end())
    if end is not None:
        return text[begin.end() : end.start()].strip()
    line = text.rfind("\n") + 1
    if line > begin.end() and _MAYBE_HEADER.match(text, line):
        return text[begin.end() : line].strip()
    return text[begin.end() :].strip()
