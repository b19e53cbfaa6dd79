"""Task understanding finds out what a query is about and how to read for it (section 4.2).

The text is not read. The result is a choice among the options that the actions
allow, the order of reading, and the query in words that fit reading piece by piece.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.domain.answers.browse.prompts import BrowsePrompts, usable
from service.domain.answers.browse.spec import (
    NEEDED,
    BrowseOption,
    BrowseRequest,
    QuerySubject,
    ReadingOrder,
    Understanding,
)
from service.domain.prompting.asking import MAX_TRIES, NoUse, Unusable, text_of
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.replies import (
    AFTER_NAME,
    BEFORE_NAME,
    MAX_REPLY_CHARACTERS,
    json_objects,
    parts_after,
    written,
)
from service.domain.prompting.thoughts import said

T = TypeVar("T")

#: Options in the order in which they stand in for an understanding that was unreadable.
CHOSEN = (BrowseOption.RANK, BrowseOption.CARRY, BrowseOption.INDEPENDENT, BrowseOption.SCAN)

#: What comes before the value of a part, which goes on to the next part: a query may have lines.
_HEAD = re.compile(
    rf"^{BEFORE_NAME}(?P<name>subject|option|order|query){AFTER_NAME}",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[a-z]+|\d+")
#: The paper's numbers.
_NUMBERED = {str(number): option for number, option in enumerate(CHOSEN, 1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """An ask and its reply."""

    ask: ModelRequest
    reply: ModelReply
    #: Why it was no use; empty when it was.
    fault: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Understood:
    """An understanding and how it came about."""

    result: Understanding
    exchanges: tuple[Exchange, ...]


def understand(
    prompts: BrowsePrompts, allowed: frozenset[BrowseOption], attempts: int = MAX_TRIES
) -> Flow[Understood]:
    """Returns what a query is about, from the query alone; at most `attempts` calls, no event.

    `allowed` are the options to choose from, at least one. After unreadable replies it is a
    fact, to be looked for by the first of CHOSEN that is allowed. Raises TextTooLong.
    """
    options = tuple(one for one in CHOSEN if one in allowed) or tuple(sorted(allowed))
    told: list[Exchange] = []
    first = ask = prompts.understand(options)
    while len(told) < attempts:
        (reply,) = yield [ask]
        try:
            result = read_understanding(text_of(reply), options, prompts)
        except (Unusable, NoUse) as fault:
            told.append(Exchange(ask=ask, reply=reply, fault=str(fault)))
            if isinstance(fault, NoUse):
                break
            ask = prompts.again(first, ask, reply, str(fault))
            continue
        told.append(Exchange(ask=ask, reply=reply, fault=""))
        return Understood(result=result, exchanges=tuple(told))
    return Understood(result=_default(prompts.query, options), exchanges=tuple(told))


def _default(query: str, options: Sequence[BrowseOption]) -> Understanding:
    return Understanding(
        subject=QuerySubject.FACT, option=options[0], order=ReadingOrder.FORWARD, query=query
    )


def read_understanding(
    reply: str, options: Sequence[BrowseOption], prompts: BrowsePrompts
) -> Understanding:
    """Reads an understanding; what a reply leaves out is as usual. Raises Unusable."""
    text = said(reply[:MAX_REPLY_CHARACTERS])
    named = {name: part.strip() for name, part in parts_after(text, _HEAD.finditer(text))}
    for held in json_objects(text):
        named |= {name: written(value) for name, value in held}
    if not text.strip():
        raise Unusable("it is empty")
    option = options[0] if len(options) == 1 else _option(named.get("option", ""), options)
    subject = _first(named.get("subject", ""), {one.value: one for one in QuerySubject})
    subject = subject or QuerySubject.FACT
    orders = {"forward": ReadingOrder.FORWARD, "backward": ReadingOrder.BACKWARD}
    usual = ReadingOrder.BACKWARD if subject is QuerySubject.CODE else ReadingOrder.FORWARD
    return Understanding(
        subject=subject,
        option=option,
        order=_first(named.get("order", ""), orders) or usual,
        query=usable(named.get("query", "").strip(" \t\"'`*"), prompts) or prompts.query,
    )


def _option(text: str, options: Sequence[BrowseOption]) -> BrowseOption:
    if not text.strip():
        raise Unusable("it names no option")
    found = _first(text, {one.value: one for one in CHOSEN} | _NUMBERED)
    if found is None or found not in options:
        raise Unusable("its option is not one of those offered")
    return found


def _first(text: str, meanings: dict[str, T]) -> T | None:
    """Returns the meaning of the first word that has one."""
    return next((meanings[word] for word in _WORD.findall(text.lower()) if word in meanings), None)


def choosable(request: BrowseRequest) -> frozenset[BrowseOption]:
    """Returns the options that the allowed actions leave to task understanding."""
    if request.option is not BrowseOption.AUTO:
        return frozenset({request.option})
    return frozenset(one for one in CHOSEN if NEEDED[one] <= request.actions)
