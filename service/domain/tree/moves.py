"""Reads the move in a reply of a navigation, or why there is none.

Replies are read as models really write them: with markdown, talk around them, their parts
in another order, as text or as JSON whichever was asked for. What is not clear is never
guessed: it is unreadable, with a reason for the next prompt.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from service.domain.answers.options import chosen_option
from service.domain.answers.trajectory import Action
from service.domain.prompting.asking import Unusable
from service.domain.prompting.no_answers import says_none
from service.domain.tree.reply_parts import TreeReplyParts, numbers_of, said_answer, split_reply

#: Goes back up, at any node.
REVERT = -1
#: Answers, at a leaf.
ANSWER = -2


@dataclass(frozen=True, kw_only=True, slots=True)
class Enter:
    """Down, to children by their numbers, the most promising first."""

    action: ClassVar = Action.ENTER
    text: ClassVar = ""
    targets: tuple[int, ...]
    reasoning: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revert:
    """Back up."""

    action: ClassVar = Action.REVERT
    text: ClassVar = ""
    reasoning: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationAnswer:
    """An answer; with options it is one of them, word for word."""

    action: ClassVar = Action.ANSWER
    text: str
    reasoning: str = ""
    #: Numbers of the answers that a merge rests on; empty when it does not say.
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """No move."""

    action: ClassVar = Action.INVALID
    reasoning: ClassVar = ""
    #: Why, in a sentence for the model. Of our own words only: it stands in a prompt.
    text: str


Move = Enter | Revert | NavigationAnswer | Unreadable


def read_triage(
    reply: str, *, shown: int, closed: Collection[int], may_revert: bool, beam: int
) -> Enter | Revert | Unreadable:
    """Reads the move at an inner node with `shown` children, of which some are closed."""
    try:
        parts = split_reply(reply)
        numbers = _action(parts)
        if REVERT in numbers and len(numbers) > 1:
            raise Unusable("it goes up and down at once; give either -1 or numbers of summaries")
        if numbers == (REVERT,):
            if not may_revert:
                raise Unusable("-1 is not open here: there is nothing above these summaries")
            return Revert(reasoning=parts.reasoning)
        for number in numbers:
            _check_target(number, shown, closed)
        if len(numbers) > beam:
            raise Unusable(_too_many(beam))
    except Unusable as unclear:
        return Unreadable(text=str(unclear))
    return Enter(targets=numbers, reasoning=parts.reasoning)


def read_leaf(reply: str, *, options: tuple[str, ...]) -> NavigationAnswer | Revert | Unreadable:
    """Returns the move of a reply at a leaf."""
    try:
        parts = split_reply(reply)
        numbers = _action(parts)
        if len(numbers) > 1:
            raise Unusable("it gives several actions; give one, -1 or -2")
        if numbers == (REVERT,):
            return Revert(reasoning=parts.reasoning)
        if numbers != (ANSWER,):
            raise Unusable("its action is neither -1 nor -2, and nothing else is open here")
        if parts.answers and not parts.cut and all(map(says_none, parts.answers)):
            return Revert(reasoning=parts.reasoning)
        text = _answer(parts, options)
    except Unusable as unclear:
        return Unreadable(text=str(unclear))
    return NavigationAnswer(text=text, reasoning=parts.reasoning)


def read_merge(
    reply: str, *, answers: int, options: tuple[str, ...], rivals: Collection[str]
) -> NavigationAnswer | Unreadable:
    """Returns the answer of a reply that was shown some `answers`.

    With options it is one of the `rivals`, the options that were answered.
    """
    try:
        parts = split_reply(reply)
        text = _answer(parts, options)
        if options and text not in rivals:
            raise Unusable("its answer is an option that none of the answers was")
        sources = tuple(dict.fromkeys(n for one in parts.sources for n in numbers_of(one)))
        if any(not 0 <= number < answers for number in sources):
            raise Unusable(f"its sources are no numbers of answers: those are 0 to {answers - 1}")
    except Unusable as unclear:
        return Unreadable(text=str(unclear))
    return NavigationAnswer(text=text, reasoning=parts.reasoning, sources=sources)


def read_guess(reply: str, *, options: tuple[str, ...]) -> NavigationAnswer | Unreadable:
    """Returns the option that a reply chooses."""
    try:
        parts = split_reply(reply)
        text = _answer(parts, options)
    except Unusable as unclear:
        return Unreadable(text=str(unclear))
    return NavigationAnswer(text=text, reasoning=parts.reasoning)


def _action(parts: TreeReplyParts) -> tuple[int, ...]:
    """Returns the numbers after Action, each once. Raises Unusable."""
    if parts.cut == "action" or (parts.cut and not parts.actions):
        raise Unusable("it was cut off before its action was whole; say less before it")
    found = {numbers for one in parts.actions if (numbers := numbers_of(one))}
    if not found:
        raise Unusable("it has no action that is a whole number")
    if len(found) > 1:
        raise Unusable("it gives several actions that differ; give one")
    return tuple(dict.fromkeys(found.pop()))


def _check_target(number: int, shown: int, closed: Collection[int]) -> None:
    if number == ANSWER:
        raise Unusable("-2 is not open here: these are summaries, and a text has to be read first")
    if not 0 <= number < shown:
        raise Unusable(f"there is no summary {number}; they are numbered 0 to {shown - 1}")
    if number in closed:
        raise Unusable(f"what summary {number} is of was read already and has no answer")


def _too_many(beam: int) -> str:
    return "it gives several numbers; give one" if beam == 1 else f"give at most {beam} numbers"


def _answer(parts: TreeReplyParts, options: tuple[str, ...]) -> str:
    """Returns the answer, with options the one that is meant. Raises Unusable."""
    if parts.cut == "answer":
        raise Unusable("its answer was cut off; say less")
    said = {answer for one in parts.answers if (answer := said_answer(one))}
    if not said:
        raise Unusable("it has no answer")
    meant = {chosen_option(answer, options) for answer in said} if options else said
    if len(meant) > 1:
        raise Unusable("it gives several answers that differ; give one")
    return meant.pop()
