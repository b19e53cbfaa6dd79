"""Reading replies of browsing: an action, a text, quotes and sources, however written.

A reply is one object of JSON, as prompts ask for it, or lines that begin with a part's name.
Without any name the whole reply is the text, where nothing else is to be said.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from service.domain.answers.browse.spec import BrowseAction
from service.domain.answers.reply_streaming import json_text, spoken_so_far
from service.domain.prompting.asking import Unusable, check_refused, fault_of_end
from service.domain.prompting.flows import ModelReply
from service.domain.prompting.no_answers import may_say_none, says_none
from service.domain.prompting.thoughts import said
from service.domain.values.json_values import MAX_DEPTH

#: Characters of a reply that are read.
MAX_REPLY_CHARACTERS = 100_000
#: Objects of JSON that are looked at.
MAX_OBJECTS = 8
#: Quotes of a reply that are looked for.
MAX_QUOTES = 20

# What repeats is bounded: a model that has lost its way writes blanks without end.
_DECORATION = r"[ \t>*#_`\"'•\[-]{0,16}"
_SET = r"[ \t*_`\"'\]]{0,8}[:=：][ \t]{0,8}(?:\*\*|__)?"
_FLAGS = re.IGNORECASE | re.MULTILINE
_ACTION = re.compile(
    rf"^{_DECORATION}(?:(?:the|my|your|next|chosen)[ \t]){{0,2}}actions?{_SET}(?P<action>.*)$",
    _FLAGS,
)
_TEXT = re.compile(
    rf"^{_DECORATION}(?:(?:the|my|your|final|short)[ \t]){{0,2}}"
    rf"(?:text|notes?|answer|extract|summary|query){_SET}",
    _FLAGS,
)
_QUOTES = re.compile(
    rf"^{_DECORATION}(?:quotes?|quotations?|evidence)[ \t]{{0,4}}(?:\d{{1,19}})?{_SET}"
    rf"|^{_DECORATION}quotes{_DECORATION}$",
    _FLAGS,
)
_SOURCES = re.compile(rf"^{_DECORATION}(?:sources?|notes? used){_SET}(?P<numbers>.*)$", _FLAGS)
_QUOTE_LINE = re.compile(
    rf"^{_DECORATION}(?:(?:quote|chunk|number)[ \t]{{1,4}})?[\[(]{{0,2}}(?P<chunk>\d{{1,19}})"
    r"[\])]{0,2}[ \t]{0,4}[:.)=\]–-]?[ \t]{0,4}(?P<words>\S.*)$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,19}")
#: The beginning of an object of JSON, and not of a text that happens to have a brace there.
_BROKEN = re.compile(r"(?:```[a-z]{0,8}\s{0,8})?\{\s{0,64}\"")
_WORD = re.compile(r"[a-z_]+")
#: The letter of an option, by itself or before its words.
_LETTER = re.compile(r"(?:option[ \t]{1,4})?([a-z])(?:$|[.):])", re.IGNORECASE)
_AROUND = " \t\r\n.,;:!*_`\"'“”‘’()[]{}<>-"
#: What models write for null.
_NULL_WORDS = (
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
#: What stands behind a text, for one that is still being written.
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
    #: Whether the text stood behind a name of its own.
    is_named: bool = False

    @property
    def is_null(self) -> bool:
        """Whether it says that there is nothing."""
        return is_null(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceReply:
    """What a reply to a piece's prompt does."""

    action: BrowseAction
    #: Empty for MOVE; of RETRIEVE the words to search for, of AGGREGATION what the piece adds.
    text: str
    quotes: tuple[BrowseQuote, ...]
    reasoning: str


def is_null(text: str) -> bool:
    """Whether a text is empty, or a word for that."""
    bare = text.strip(_AROUND)
    return not bare or bare.lower() in _NULL_WORDS or says_none(bare)


def text_of(reply: ModelReply) -> str:
    """The text of a reply that ended by itself. Raises Unusable, and NoUse where it was refused."""
    check_refused(reply)
    fault = fault_of_end(reply)
    if fault is not None:
        raise Unusable(fault)
    return reply.text


def read_piece(reply: str, offers: Sequence[BrowseAction]) -> PieceReply:
    """The action of a reply among those offered. Raises Unusable."""
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
    """The option that a reply names, by its letter or by its words. Raises Unusable."""
    text = said(reply).strip()
    named = next((written(held["option"]) for held in objects(text) if "option" in held), text)
    bare = named.strip(_AROUND)
    letter = _LETTER.match(bare)
    if letter and (number := ascii_uppercase.index(letter[1].upper())) < len(options):
        return options[number]
    for option in options:
        if bare and bare.casefold() == option.strip(_AROUND).casefold():
            return option
    raise Unusable("it names none of the options")


def action_of(name: str) -> BrowseAction | None:
    """The action that a name means; None for no action."""
    for word in _WORD.findall(name.lower())[:4]:
        if word in _NAMES:
            return _NAMES[word]
    return None


def split_reply(reply: str) -> BrowseReplyParts:
    """The parts of a reply. Raises Unusable when there is nothing to read."""
    if len(reply) > MAX_REPLY_CHARACTERS:
        raise Unusable("it is too long")
    text = said(reply).replace("\0", "").strip()
    if not text:
        raise Unusable("it is empty")
    for held in objects(text):
        if held.keys() & {"action", "text", "answer", "notes"}:
            return _of_object(held)
    if _BROKEN.match(text):
        # Its signs are no words of an answer, nor are names that were not asked for.
        raise Unusable("it is broken JSON")
    return _of_lines(text)


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects of JSON in a text, with their names in lower case."""
    # Models write line ends into strings as they are.
    decoder, at = json.JSONDecoder(strict=False), 0
    for _ in range(MAX_OBJECTS):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end = None, at
        if value is None or _is_deep(value):
            # No JSON, or none that a reply would have: it is text, like the rest.
            at += 1
            continue
        at = end
        yield {name.lower(): part for name, part in value.items()}


def _is_deep(value: object) -> bool:
    """Whether a value of JSON is nested deeper than any that is read."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            for child in (
                one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            )
        ]
    return bool(level)


def _of_object(held: dict[str, Any]) -> BrowseReplyParts:
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


def _quotes_of(held: object) -> Iterator[BrowseQuote]:
    for one in held if isinstance(held, list) else ():
        match one:
            case {"words": str(words)}:
                number = _NUMBER.search(str(one.get("chunk")))
                yield BrowseQuote(chunk=int(number[0]) if number else 0, words=_kept(words))
            case str():
                yield from _quote_lines(_kept(one))


def written(value: object) -> str:
    """A value of JSON as text, without what its escapes can say and no database keeps."""
    match value:
        case None:
            return ""
        case str():
            return _kept(value)
        case list():
            return "\n".join(written(one) for one in value)
    return _kept(json.dumps(value, ensure_ascii=False))


def _kept(text: str) -> str:
    return text.replace("\0", "").encode(errors="replace").decode()


def _of_lines(text: str) -> BrowseReplyParts:
    begin = _TEXT.search(text)
    action = _ACTION.search(text, 0, begin.start() if begin else len(text))
    first, last = action or begin, begin or action
    body, quotes, sources = _without_end(text[last.end() :] if last else text)
    said_action = action["action"] if action else ""
    return BrowseReplyParts(
        action=said_action if last else _bare_action(body),
        text=_unfenced(body),
        quotes=quotes,
        sources=sources,
        reasoning=text[: first.start()].strip() if first else "",
        is_named=begin is not None,
    )


def _without_end(body: str) -> tuple[str, tuple[BrowseQuote, ...], tuple[int, ...]]:
    """A text without the quotes and sources behind it, and these."""
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
        if is_null(line):
            continue
        found = _QUOTE_LINE.match(line)
        if found:
            yield BrowseQuote(chunk=int(found["chunk"]), words=found["words"], line=line)
        else:
            yield BrowseQuote(chunk=0, words=line)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(one[0]) for one in _NUMBER.finditer(text)))


def _bare_action(text: str) -> str:
    """The action of a reply that names no part: a first line that is nothing else."""
    first = text.strip().partition("\n")[0].strip(_AROUND)
    return first if first.lower() in _NAMES and not is_null(first) else ""


def _unfenced(text: str) -> str:
    """A text without the signs that only set it off."""
    text = text.strip()
    for sign in ("```", "**", '"'):
        inner = text.removeprefix(sign).removesuffix(sign)
        if len(text) - len(inner) == 2 * len(sign) and sign not in inner:
            text = inner.strip()
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFinder:
    """What of an unfinished reply is the answer's text; empty as long as that is not known.

    It only grows while the reply grows.
    """

    offers: tuple[BrowseAction, ...]

    def __call__(self, reply: str) -> str:
        """The beginning of the answer, without what may still turn out to be something else."""
        so_far = spoken_so_far(reply)
        if so_far.lstrip().startswith("{"):
            action, text = json_text(reply, "action"), json_text(reply, "text")
        else:
            begin = _TEXT.search(so_far)
            if begin is None:
                return ""
            named = _ACTION.search(so_far, 0, begin.start())
            action = named["action"] if named else ""
            text = _settled(so_far[begin.end() :]).strip()
        is_answer = not _is_choice(self.offers) or action_of(action) is BrowseAction.ANSWER
        return text if is_answer and not _may_be_null(text) else ""


def _is_choice(offers: Sequence[BrowseAction]) -> bool:
    return len([one for one in offers if one is not BrowseAction.MOVE]) > 1


def _settled(body: str) -> str:
    """A text that is being written, without its end and without a line that may begin that."""
    body = _without_end(body)[0]
    head, _, last = body.rpartition("\n")
    begun = last.strip(_AROUND).lower()
    is_open = any(name.startswith(begun) for name in _END_NAMES) or _MAYBE_END.fullmatch(begun)
    return head if is_open else body


def _may_be_null(text: str) -> bool:
    bare = text.strip(_AROUND).lower()
    is_open = any(word.startswith(bare) for word in _NULL_WORDS)
    return is_open or is_null(text) or may_say_none(text)
