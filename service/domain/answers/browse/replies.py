"""Reading replies of browsing: an action, a text, quotes and sources, however written.

A reply is one object of JSON, as prompts ask for it, or lines that begin with a part's name.
Without any name the whole reply is the text, where nothing else is to be said.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.answers.browse.spec import BrowseAction
from service.domain.answers.browse.wording import chosen_among
from service.domain.answers.options import chosen_option
from service.domain.prompting.asking import Unusable
from service.domain.prompting.no_answers import MARKS, is_nothing, may_be_nothing
from service.domain.prompting.replies import (
    AFTER_NAME,
    BEFORE_NAME,
    MAX_REPLY_CHARACTERS,
    json_objects,
    json_text_so_far,
    storable,
    unmarked,
    written,
)
from service.domain.prompting.thoughts import said, said_so_far
from service.domain.values.json_values import Json

#: Quotes of a reply that are looked for.
MAX_QUOTES = 20

_FLAGS = re.IGNORECASE | re.MULTILINE
_ACTION = re.compile(
    rf"^{BEFORE_NAME}(?:(?:the|my|your|next|chosen)[ \t]){{0,2}}actions?{AFTER_NAME}"
    r"(?P<action>.*)$",
    _FLAGS,
)
_TEXT = re.compile(
    rf"^{BEFORE_NAME}(?:(?:the|my|your|final|short)[ \t]){{0,2}}"
    rf"(?:text|notes?|answer|extract|summary|query){AFTER_NAME}",
    _FLAGS,
)
_QUOTES = re.compile(
    rf"^{BEFORE_NAME}(?:quotes?|quotations?|evidence)[ \t]{{0,4}}(?:\d{{1,19}})?{AFTER_NAME}"
    rf"|^{BEFORE_NAME}quotes{BEFORE_NAME}$",
    _FLAGS,
)
_SOURCES = re.compile(
    rf"^{BEFORE_NAME}(?:sources?|notes? used){AFTER_NAME}(?P<numbers>.*)$", _FLAGS
)
_QUOTE_LINE = re.compile(
    rf"^{BEFORE_NAME}(?:(?:quote|chunk|number)[ \t]{{1,4}})?[\[(]{{0,2}}(?P<chunk>\d{{1,19}})"
    r"[\])]{0,2}[ \t]{0,4}[:.)=\]–-]?[ \t]{0,4}(?P<words>\S.*)$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,19}")
#: The beginning of an object of JSON, and not of a text that happens to have a brace there.
_BROKEN = re.compile(r"(?:```[a-z]{0,8}\s{0,8})?\{\s{0,64}[\"']")
_WORD = re.compile(r"[a-z_]+")
#: What stands after a text, for one that is still being written.
_END_NAMES = ("quotes", "quotations", "evidence", "sources", "notes used")
_MAYBE_END = re.compile(r"(?:quotes?|quotations?|evidence)[ \t]{0,4}\d{0,19}", re.IGNORECASE)
#: What models call the actions.
_NAMES = {
    **dict.fromkeys(("move", "next", "skip", "pass", "null", "none"), BrowseAction.MOVE),
    **dict.fromkeys(("retrieve", "search", "retrieval"), BrowseAction.RETRIEVE),
    **dict.fromkeys(("append", "note", "extract", "add"), BrowseAction.APPEND),
    **dict.fromkeys(("merge", "rewrite", "update", "combine"), BrowseAction.MERGE),
    **dict.fromkeys(("answer", "reply"), BrowseAction.ANSWER),
    **dict.fromkeys(("aggregate", "aggregation", "finish"), BrowseAction.AGGREGATION),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseQuote:
    """Words that a reply says it copied."""

    #: 0: it does not say from which chunk.
    chunk: int
    words: str
    #: The line as it came, where `chunk` may be a part of the words.
    line: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowseReplyParts:
    """The parts of a reply; what it does not have is empty."""

    action: str = ""
    text: str = ""
    quotes: tuple[BrowseQuote, ...] = ()
    sources: tuple[int, ...] = ()
    reasoning: str = ""
    #: Whether the text stood after a name of its own.
    is_named: bool = False

    @property
    def is_null(self) -> bool:
        """Whether it says that there is nothing."""
        return is_nothing(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceReply:
    """What a reply to a piece's prompt does."""

    action: BrowseAction
    #: Empty for MOVE; of RETRIEVE the words to search for, of AGGREGATION what the piece adds.
    text: str
    quotes: tuple[BrowseQuote, ...]
    reasoning: str


def read_piece(reply: str, offers: Sequence[BrowseAction]) -> PieceReply:
    """Returns the action of a reply among those offered. Raises Unusable."""
    parts = split_reply(reply)
    doing = [one for one in offers if one is not BrowseAction.MOVE]
    action = _action(parts, offers, doing)
    may_be_empty = action in (BrowseAction.AGGREGATION, BrowseAction.RETRIEVE)
    if parts.is_null and not may_be_empty:
        if BrowseAction.MOVE not in offers:
            raise Unusable("it has no text, and one is wanted")
        action = BrowseAction.MOVE
    is_empty = action is BrowseAction.MOVE or parts.is_null
    return PieceReply(
        action=action,
        text="" if is_empty else parts.text,
        quotes=() if is_empty else parts.quotes,
        reasoning=parts.reasoning,
    )


def _action(
    parts: BrowseReplyParts, offers: Sequence[BrowseAction], doing: Sequence[BrowseAction]
) -> BrowseAction:
    named = action_of(parts.action)
    if named is not None and named in offers:
        return named
    if len(doing) == 1:
        # There was nothing to choose: what it calls that does not matter.
        return doing[0]
    if not parts.action and parts.is_null and BrowseAction.MOVE in offers:
        return BrowseAction.MOVE
    if named is None:
        raise Unusable("it names no action")
    raise Unusable(f"{named.value} is not offered")


def read_guess(reply: str, options: Sequence[str]) -> str:
    """Returns the option that a reply names, by its letter or by its words. Raises Unusable."""
    text = said(reply).strip()
    objects = map(dict, json_objects(text))
    named = next((written(held["option"]) for held in objects if "option" in held), text)
    return chosen_option(unmarked(named), options)


def action_of(name: str) -> BrowseAction | None:
    """Returns the action that a name means; None for no action."""
    for word in _WORD.findall(name.lower())[:4]:
        if word in _NAMES:
            return _NAMES[word]
    return None


def split_reply(reply: str) -> BrowseReplyParts:
    """Returns the parts of a reply. Raises Unusable when there is nothing to read."""
    if len(reply) > MAX_REPLY_CHARACTERS:
        raise Unusable("it is too long")
    text = said(reply).replace("\0", "").strip()
    if not text:
        raise Unusable("it is empty")
    for held in map(dict, json_objects(text)):
        if held.keys() & {"action", "text", "answer", "notes"}:
            return _of_object(held)
    if _BROKEN.match(text):
        # Its signs are no words of an answer, nor are names that were not asked for.
        raise Unusable("it is broken JSON")
    return _of_lines(text)


def _of_object(held: dict[str, Json]) -> BrowseReplyParts:
    text = next((held[name] for name in ("text", "answer", "notes") if name in held), "")
    quotes = held.get("quotes")
    sources = held.get("sources")
    return BrowseReplyParts(
        action=written(held.get("action")),
        text=written(text).strip(),
        quotes=tuple(_quotes_of(quotes))[:MAX_QUOTES],
        sources=_numbers(written(sources)),
        reasoning=written(held.get("reasoning")).strip(),
        is_named=True,
    )


def _quotes_of(held: Json) -> Iterator[BrowseQuote]:
    for one in held if isinstance(held, list) else ():
        match one:
            case {"words": str(words), **rest}:
                number = _NUMBER.search(str(rest.get("chunk")))
                yield BrowseQuote(chunk=int(number[0]) if number else 0, words=storable(words))
            case str():
                yield from _quote_lines(storable(one))


def _of_lines(text: str) -> BrowseReplyParts:
    begin = _TEXT.search(text)
    action = _ACTION.search(text, 0, begin.start() if begin else len(text))
    first, last = action or begin, begin or action
    body, quotes, sources = _without_end(text[last.end() :] if last else text)
    said_action = action["action"] if action else ""
    return BrowseReplyParts(
        action=said_action if last else _bare_action(body),
        text=unmarked(body),
        quotes=quotes,
        sources=sources,
        reasoning=text[: first.start()].strip() if first else "",
        is_named=begin is not None,
    )


def _without_end(body: str) -> tuple[str, tuple[BrowseQuote, ...], tuple[int, ...]]:
    """Splits a text from the quotes and sources after it."""
    quotes = _QUOTES.search(body)
    sources = None
    for found in _SOURCES.finditer(body):
        sources = found
    ends = [found.start() for found in (quotes, sources) if found]
    if not ends:
        return body, (), ()
    end = sources.start() if quotes and sources and quotes.start() < sources.start() else None
    lines = body[quotes.start() : end] if quotes else ""
    found_quotes = tuple(_quote_lines(lines))[:MAX_QUOTES]
    numbers = _numbers(body[sources.start() :]) if sources else ()
    return body[: min(ends)], found_quotes, numbers


def _quote_lines(lines: str) -> Iterator[BrowseQuote]:
    for line in lines.splitlines():
        if head := _QUOTES.match(line):
            number = _NUMBER.search(line, 0, head.end())
            line = f"[{number[0]}] {line[head.end() :]}" if number else line[head.end() :]
        if is_nothing(line):
            continue
        found = _QUOTE_LINE.match(line)
        if found:
            yield BrowseQuote(chunk=int(found["chunk"]), words=found["words"], line=line)
        else:
            yield BrowseQuote(chunk=0, words=line)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(one[0]) for one in _NUMBER.finditer(text)))


def _bare_action(text: str) -> str:
    """Returns the action of a reply that names no part: a first line that is nothing else."""
    first = text.strip().partition("\n")[0].strip(MARKS)
    return first if first.lower() in _NAMES and not is_nothing(first) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFinder:
    """What of an unfinished reply is the answer's text; empty as long as that is not known.

    It only grows while the reply grows.
    """

    offers: tuple[BrowseAction, ...]

    def __call__(self, reply: str) -> str:
        """Returns the answer so far, without what may still turn out to be something else."""
        so_far = said_so_far(reply)
        if so_far.lstrip().startswith("{"):
            action, text = json_text_so_far(reply, "action"), json_text_so_far(reply, "text")
        else:
            begin = _TEXT.search(so_far)
            if begin is None:
                return ""
            named = _ACTION.search(so_far, 0, begin.start())
            action = named["action"] if named else ""
            text = _settled(so_far[begin.end() :]).strip()
        is_answer = not chosen_among(self.offers) or action_of(action) is BrowseAction.ANSWER
        return text if is_answer and not may_be_nothing(text) else ""


def _settled(body: str) -> str:
    """Returns an unfinished text without what follows it, or a line that may begin that."""
    body = _without_end(body)[0]
    head, _, last = body.rpartition("\n")
    begun = last.strip(MARKS).lower()
    is_open = any(name.startswith(begun) for name in _END_NAMES) or _MAYBE_END.fullmatch(begun)
    return head if is_open else body
