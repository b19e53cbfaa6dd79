"""Asking until a reply can be used: what every flow does about each end of a reply.

A reply that is no use is asked for again, with what was wrong after the same prompt: at
temperature 0 the same prompt would give the same reply. At most MAX_TRIES replies are paid
for; then the flow fails, and says with what. Nothing but a complete reply that can be read is
ever a success.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from service.domain.prompting.ends import End
from service.domain.prompting.faults import ADVICE, Fault
from service.domain.prompting.fitting import MARGIN_TOKENS, Count, prompt_tokens
from service.domain.prompting.flows import (
    MAX_SAID_CHARACTERS,
    NO_USE,
    Flow,
    ModelReply,
    ModelRequest,
    Segment,
    SegmentKind,
)

#: Replies to one prompt, the first one included.
MAX_TRIES = 3
#: Tokens of what is said after a prompt that is asked again, at most.
AGAIN_TOKENS = 128
#: By how much the bound of a reply grows where its tokens were used up.
GROWTH = 2

T = TypeVar("T")


class Unusable(Exception):
    """A complete reply that cannot be read.

    The message says why, in a few words of our own: it stands in the next prompt.
    """


class NoUse(Exception):
    """None of the replies to a prompt could be used; the message is one sentence."""

    #: The same prompt was asked again already, or would be refused again.
    retryable = False

    def __init__(self, message: str, *, end: End, plain: str = "") -> None:
        super().__init__(message)
        #: How the last reply ended.
        self.end = end
        #: The message without words of the model, for logs.
        self.plain = plain or message


class Then(Enum):
    """What is done about a reply."""

    #: It is read.
    READ = "read"
    #: It is asked for again, with the reason.
    AGAIN = "again"
    #: It is asked for again, with the reason and with more tokens.
    MORE_ROOM = "more room"
    #: Nothing: the text was refused.
    FAIL = "fail"


#: What is done about each end.
THEN = {
    End.COMPLETE: Then.READ,
    End.LENGTH: Then.MORE_ROOM,
    End.THINKING: Then.MORE_ROOM,
    End.EMPTY: Then.AGAIN,
    End.TOOL_CALL: Then.AGAIN,
    End.UNKNOWN: Then.AGAIN,
    End.REFUSAL: Then.FAIL,
    End.FILTER: Then.FAIL,
}

#: What is wrong with a reply that ended so, for the model that is asked again and for the error
#: of a flow that failed.
FAULTS = {
    End.LENGTH: "it was too long, and was cut off before its end",
    End.THINKING: "all of it was thinking, and nothing was said",
    End.EMPTY: "it was empty",
    End.TOOL_CALL: "it called a tool, and there are none",
    End.UNKNOWN: "it was broken off",
    End.REFUSAL: "it was refused",
    End.FILTER: "it was withheld by a filter",
}


def fault_of_end(reply: ModelReply) -> str | None:
    """Returns what is wrong with a reply by its end; None: it may be read."""
    return None if THEN[reply.end] is Then.READ else FAULTS[reply.end]


def check_refused(reply: ModelReply) -> None:
    """Raises NoUse where the text of the prompt was refused."""
    if not reply.end.is_refused:
        return
    words = f": {' '.join(reply.said.split())}" if reply.said else ""
    who = "it" if reply.end is End.REFUSAL else "the provider's filter"
    why, advice = f"{NO_USE} reply of use: {who} refused the text", ADVICE[Fault.CONTENT_REFUSED]
    raise NoUse(f"{why}{words}; {advice}", end=reply.end, plain=f"{why}; {advice}")


def text_of(reply: ModelReply) -> str:
    """Returns the text of a reply that ended by itself. Raises Unusable, NoUse where refused."""
    check_refused(reply)
    fault = fault_of_end(reply)
    if fault is not None:
        raise Unusable(fault)
    return reply.text


def asked_again(
    ask: ModelRequest, reply: ModelReply, fault: str, *, tries: int, most_tokens: int
) -> ModelRequest:
    """Returns the ask that follows a reply that was no use; `ask` is that of the first try.

    `fault` is in our own words, and `tries` says how many replies there were: no two prompts
    are the same. A bound that was used up grows, to `most_tokens` at most.
    """
    bound = ask.max_output_tokens
    if THEN[reply.end] is Then.MORE_ROOM:
        bound = max(bound, min(bound * GROWTH, most_tokens))
    what = f"A reply to this was no use: {fault}" if tries == 1 else numbered(fault, tries)
    told = f"\n[AGAIN]\n{what}. Write it anew, in the form that is asked for above.\n"
    again = Segment(kind=SegmentKind.QUERY, text=told, reusable=False)
    return replace(ask, segments=(*ask.segments, again), max_output_tokens=bound)


def numbered(fault: str, tries: int) -> str:
    """Says what is wrong with the last reply, and how many there were: no prompt is the same."""
    return fault if tries == 1 else f"{tries} replies to this were no use; of the last one: {fault}"


def usable(
    ask: ModelRequest,
    read: Callable[[str], T],
    *,
    what: str,
    most_tokens: int | None = None,
    cut_tries: int = MAX_TRIES,
) -> Flow[T]:
    """Returns the first reply of use, as `read` returns it or raises Unusable. Raises NoUse.

    `what` is wanted, for the message: "revision". `most_tokens` bounds a reply that needs more
    room than its ask gives; None: twice as much. `cut_tries`: after so many replies that used
    up their bound it is not asked again, for those who can ask for less.
    """
    most = GROWTH * ask.max_output_tokens if most_tokens is None else most_tokens
    asked, tries, cut = ask, 0, 0
    while True:
        (reply,) = yield [asked]
        tries += 1
        cut += THEN[reply.end] is Then.MORE_ROOM
        try:
            return read(text_of(reply))
        except Unusable as error:
            if tries == MAX_TRIES or cut == cut_tries:
                raise _no_use(what, tries, reply, str(error)) from error
            again = asked_again(ask, reply, str(error), tries=tries, most_tokens=most)
        asked = replace(again, attempt=ask.attempt + tries)


def _no_use(what: str, tries: int, last: ModelReply, fault: str) -> NoUse:
    why = f"{NO_USE} {what} in {tries} replies; of the last one: {fault}"
    words = " ".join(last.text[:MAX_SAID_CHARACTERS].split())
    told = f"{why}; it begins: {words}" if words else why
    return NoUse(told, end=last.end, plain=why)


def usable_or_cut(
    ask: ModelRequest,
    read: Callable[[str, bool], T],
    *,
    what: str,
    most_tokens: int,
    enough: Callable[[str], bool] = lambda _: False,
    seen: list[ModelReply] | None = None,
) -> Flow[T]:
    """Runs `usable` for prose, of which a beginning is of use too.

    `read` gets whether the text was cut off. Such a text is asked for once more, with more room
    if there is any; then, or where what there is is `enough`, it is read. `seen` gets the
    replies. Raises NoUse.
    """
    asked, bound, grew = ask, ask.max_output_tokens, False
    number = 0
    while True:
        number += 1
        (reply,) = yield [asked]
        if seen is not None:
            seen.append(reply)
        check_refused(reply)
        fault = fault_of_end(reply)
        is_cut = reply.end is End.LENGTH
        try:
            if fault is None or (is_cut and (grew or most_tokens <= bound or enough(reply.text))):
                return read(reply.text, is_cut)
        except Unusable as error:
            fault = fault or str(error)
        assert fault is not None, "what may be read was read"
        if number == MAX_TRIES:
            raise _no_use(what, number, reply, fault)
        grew = grew or is_cut
        again = asked_again(ask, reply, fault, tries=number, most_tokens=most_tokens)
        # Room that was found to be needed once stays; what is said anew needs some too.
        bound = max(min(max(bound, again.max_output_tokens), most_tokens), 1)
        asked = replace(again, max_output_tokens=bound, attempt=ask.attempt + number)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaidAnswer(Generic[T]):
    """What a reply answers to a question."""

    #: Empty when it says that there is no answer.
    text: str
    #: What it says that it rests on, in its order.
    sources: tuple[T, ...] = ()
    #: Whether the text lacks its end; an ellipsis stands after it then.
    is_cut: bool = False


def free_tokens(ask: ModelRequest, window_tokens: int, count: Count) -> int:
    """Tokens of a window that a reply may have beside a prompt that is asked once more."""
    return window_tokens - prompt_tokens(ask.segments, count) - MARGIN_TOKENS - AGAIN_TOKENS
