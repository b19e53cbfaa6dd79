"""The offline model as a keeper of state vectors: sentences of what it is given, word for word.

A vector of its own has three parts: the goal, as it was first told; what is known, old
before new; and what was last done and seen. What is known are the sentences that say most,
those before others that have the words of the goal, that an agent concluded itself, or that
forbid something.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from service.domain.prompting.shortening import shortened
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.contents import CompressStepsContent, CompressVectorsContent
from service.domain.state.pinning import PINNED, behind, fitted, paragraph
from service.llm.offline.summaries import (
    Sentence,
    chosen_of,
    sentence_of,
    sentences_in,
    weights_of,
)

#: Of a vector, what the goal has at most, and what was last done and seen.
GOAL_SHARE = 1 / 5
LATEST_SHARE = 1 / 6
#: Of what is known, what the old vector keeps at least where both are too long.
OLD_SHARE = 2 / 3
#: What a sentence says more for each word of the goal that it has, and how many count.
GOAL_WEIGHT = 0.5
MAX_GOAL_WORDS = 4
#: What a sentence says that forbids or demands something; one that only names what was
#: done; and one that gives a result.
RULE_WEIGHT = 2.0
ACTION_WEIGHT = 0.5
RESULT_WEIGHT = 4.0

_GOAL, _KNOWN, _LATEST = "Goal: ", "Known: ", "Latest: "
_PART = re.compile(r"^(Observation|Thought|Action): ", re.MULTILINE)
#: Of the newest step these come in this order.
_RANKS = {"Action": 1, "Observation": 2, "Thought": 3}
_RULE = re.compile(
    r"\b(?:must|never|always|only|not allowed|at most|at least|no more than)\b", re.I
)
_RESULT = re.compile(
    r"\b(?:finish|answer|submit|result|conclu\w+|therefore|final\w*)\b", re.IGNORECASE
)
_ENDS = re.compile(r"[.!?。！？؟।…][\"'”’»」』)\]]*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """What a vector says, in its parts."""

    goal: str = ""
    known: tuple[str, ...] = ()
    latest: tuple[str, ...] = ()


def complete(content: CompressStepsContent | CompressVectorsContent) -> str:
    """The next vector: at most as long as it may be, with the pinned strings."""
    if isinstance(content, CompressStepsContent):
        old, new = _of_steps(content)
    else:
        old, new = _of_vectors(content)
    room = content.max_tokens - estimate_tokens(behind(content.pinned))
    text = paragraph(_written(old, new, room), content.pinned)
    return fitted(text, content.pinned, content.max_tokens, estimate_tokens).text


def _of_steps(content: CompressStepsContent) -> tuple[_Held, _Held]:
    texts = [text for _, text in content.steps]
    new = _Held(
        known=tuple(one for text in texts[:-1] for one in _said(text)),
        latest=tuple(_newest(texts[-1])),
    )
    if content.current_is_task or not content.current.strip():
        # Without a task it is what was said first.
        told = content.current.strip() or texts[0]
        return _Held(goal=told, known=tuple(sentences_in(told))), new
    return _read(content.current, content.pinned), new


def _of_vectors(content: CompressVectorsContent) -> tuple[_Held, _Held]:
    *before, last = (_read(text, content.pinned) for text in content.vectors)
    known = [one for held in before for one in (*held.known, *held.latest)]
    new = _Held(known=(*known, *last.known), latest=last.latest)
    if content.above.strip():
        return _read(content.above, content.pinned), new
    return _Held(goal=next((held.goal for held in (*before, last) if held.goal), "")), new


def _read(text: str, pinned: Sequence[str]) -> _Held:
    """A vector, its own or another model's, whose first sentence is taken for the goal."""
    if pinned:
        # What was put behind it is put there again.
        text = text.rpartition(f" {PINNED}")[0] or text
    if not text.startswith((_GOAL, _KNOWN, _LATEST)):
        said = list(sentences_in(text))
        return _Held(goal=said[0] if said else "", known=tuple(said[1:]))
    text, _, latest = f" {text}".partition(f" {_LATEST}")
    text, _, known = text.partition(f" {_KNOWN}")
    return _Held(
        goal=text.strip().removeprefix(_GOAL),
        known=tuple(sentences_in(known)),
        latest=tuple(sentences_in(latest)),
    )


def _said(text: str) -> Iterator[str]:
    """The sentences of a step; what was done has its name, so that it is known as that."""
    for name, part in _parts(text):
        yield from _sentences(name, part)


def _newest(text: str) -> Iterator[str]:
    """The sentences of the newest step: what was done before what was seen and thought."""
    for name, part in sorted(_parts(text), key=lambda part: _RANKS.get(part[0], 0)):
        yield from _sentences(name, part)


def _parts(text: str) -> list[tuple[str, str]]:
    """The parts of a step with their names; what has none before them."""
    texts = _PART.split(text)
    return [("", texts[0]), *zip(texts[1::2], texts[2::2], strict=True)]


def _sentences(name: str, part: str) -> Iterator[str]:
    for number, one in enumerate(sentences_in(part)):
        yield f"{name}: {one}" if name == "Action" and number == 0 else one


# Writing


def _written(old: _Held, new: _Held, room: int) -> str:
    # Sizes are in bytes of four to a token, each with the blank before the next part.
    goal = shortened(old.goal, max(1, int(room * GOAL_SHARE)), estimate_tokens)
    latest = _latest(new.latest, max(1, int(room * LATEST_SHARE)))
    labels = "".join(
        label for label, part in ((_GOAL, goal), (_KNOWN, "known"), (_LATEST, latest)) if part
    )
    left = room - estimate_tokens(f"{labels}{goal} {latest} ")
    rest = new.latest if not latest else tuple(one for one in new.latest if one not in latest)
    before = [one for one in (*old.known, *old.latest) if one not in goal]
    known = _known(before, (*new.known, *rest), goal, latest, left)
    parts = ((_GOAL, goal), (_KNOWN, known), (_LATEST, latest))
    return " ".join(f"{label}{part}" for label, part in parts if part)


def _latest(said: Sequence[str], room: int) -> str:
    """As many of the first sentences as there is room for, the first one cut if it must be."""
    taken: list[str] = []
    for one in map(_ended, said):
        if taken and estimate_tokens(" ".join([*taken, one])) > room:
            break
        taken.append(one)
    return shortened(" ".join(taken), room, estimate_tokens)


def _known(old: Sequence[str], new: Sequence[str], goal: str, latest: str, room: int) -> str:
    """The sentences that say most, of both, in their order.

    The new ones are chosen first: of what is said again it is the later that stays.
    """
    wanted = sentence_of(goal).words
    after = [_weighted(one, wanted) for one in _once(new, ())]
    before = [_weighted(one, wanted) for one in _once(old, new)]
    weights = weights_of("\n".join((*old, *new)), [*before, *after])
    said = wanted | sentence_of(latest).words
    share = max(room - int(room * OLD_SHARE), room - sum(one.tokens for one in before))
    added = chosen_of(after, weights, share, said)
    room -= sum(after[number].tokens for number in added)
    said = said.union(*(after[number].words for number in added))
    kept = chosen_of(before, weights, room, said)
    room -= sum(before[number].tokens for number in kept)
    everything = [*before, *after]
    taken = {*kept, *(len(before) + number for number in added)}
    for number in reversed(range(len(everything))):
        # Its words are known, and yet it may say something: that a thing is as it was once.
        if number not in taken and everything[number].tokens <= room:
            taken.add(number)
            room -= everything[number].tokens
    return " ".join(everything[number].text for number in sorted(taken))


def _once(said: Sequence[str], again: Collection[str]) -> Sequence[str]:
    """Sentences where they come last; those that are said `again` not at all."""
    last = list(dict.fromkeys(reversed(said)))[::-1]
    return [one for one in last if one not in again]


def _weighted(text: str, wanted: Iterable[str]) -> Sentence:
    """A sentence with what it says for the goal."""
    one = sentence_of(_ended(text))
    weight = 1 + GOAL_WEIGHT * min(len(one.words.intersection(wanted)), MAX_GOAL_WORDS)
    if _RESULT.search(text):
        weight *= RESULT_WEIGHT
    elif text.startswith("Action: "):
        weight *= ACTION_WEIGHT
    if _RULE.search(text):
        weight *= RULE_WEIGHT
    return replace(one, weight=weight)


def _ended(text: str) -> str:
    """A sentence that the next one can stand behind."""
    return text if _ENDS.search(text) else f"{text}."
