"""The words by which a reply says that there is no answer, as prompts ask for them.

The form in which a model says it differs; what is stored is that there is none, and why.
"""

from collections.abc import Iterable

#: What prompts ask to be written, exactly.
NO_ANSWER = "no answer"

_AROUND = " \t\r\n.*_`\"'()[]<>"
#: What may stand around words without a meaning of its own.
MARKS = _AROUND + ",;:!“”‘’{}-"
#: What models write where a part of a reply says nothing.
_NOTHING = (
    "null",
    "none",
    "nil",
    "n/a",
    "nothing",
    "no answer",
    "nothing relevant",
    "nothing that helps",
    "not mentioned",
    "no relevant information",
    "no relevant information found",
    "no relevant information was found",
)
_THINGS = ("log", "text", "memory", "working context", "context", "state", "it", "that")


def _phrases() -> Iterable[str]:
    yield from (NO_ANSWER, f"there is {NO_ANSWER}")
    for subject in (f"{article}{thing}" for article in ("", "the ", "this ") for thing in _THINGS):
        for negation in (" does not say", " doesn't say"):
            yield from (f"{subject}{negation}{end}" for end in ("", " so", " it"))
    for negation in (" do not say", " don't say"):
        for article in ("", "the ", "these "):
            yield from (f"{article}texts{negation}{end}" for end in ("", " so", " it"))


#: In lower case.
_PHRASES = frozenset(_phrases())
_LONGEST = max(map(len, _PHRASES))


def is_blank(answer: str) -> bool:
    """Returns whether nothing is in an answer but blanks and marks around words."""
    return not answer.strip(_AROUND)


def says_none(answer: str) -> bool:
    """Returns whether an answer is no more than the words that there is none."""
    bare = answer.strip(_AROUND)
    return len(bare) <= _LONGEST and _plain(bare) in _PHRASES


def may_say_none(unfinished: str) -> bool:
    """Returns whether an unfinished answer says so, or may still; also for a blank one.

    None of it is streamed then.
    """
    bare = unfinished.strip(_AROUND)
    if len(bare) > _LONGEST:
        return False
    begin = _plain(bare)
    return any(one.startswith(begin) for one in _PHRASES)


def is_nothing(part: str) -> bool:
    """Returns whether a part of a reply is empty, or says in a word that there is nothing."""
    bare = part.strip(MARKS)
    return not bare or bare.lower() in _NOTHING or says_none(bare)


def may_be_nothing(unfinished: str) -> bool:
    """Returns whether a part that is being written is nothing, or may become that."""
    bare = unfinished.strip(MARKS).lower()
    is_open = any(word.startswith(bare) for word in _NOTHING)
    return is_open or is_nothing(unfinished) or may_say_none(unfinished)


def _plain(text: str) -> str:
    return text.casefold().replace("\u2019", "'")
