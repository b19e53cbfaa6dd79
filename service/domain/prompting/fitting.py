"""Shortens the texts of a prompt until it fits into the model's window."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypedDict

from service.domain.prompting.cutting import ELLIPSIS, shortened
from service.domain.prompting.flows import Segment
from service.domain.prompting.tokens import marks_in

#: Tokens of a text.
Count = Callable[[str], int]
#: Makes a prompt that shows these texts.
Build = Callable[[Sequence[str]], tuple[Segment, ...]]

#: Tokens that a text keeps at least; with fewer it says nothing.
MIN_SHOWN_TOKENS = 4
#: Tokens that a prompt keeps free of the model's window: for the form of a chat, for the
#: schema of the reply, and for what counts are off by.
MARGIN_TOKENS = 128
#: Tokens of a mark about a text from outside that an estimate by bytes misses.
MARK_MARGIN_TOKENS = 12
#: How often texts are cut anew because the whole was still too long.
MAX_CUTS = 6


class PromptTerms(TypedDict):
    """What a model and a service decide of each prompt."""

    #: Tokens of prompt and reply together.
    window_tokens: int
    count: Count
    #: Derives the marks about texts from outside.
    marker_key: bytes


class TextTooLong(Exception):
    """A prompt that passes the model's window whatever is left out; one sentence."""

    #: The same prompt will not fit the next time either.
    retryable = False


def prompt_tokens(segments: Sequence[Segment], count: Count) -> int:
    """Tokens of a prompt. Counted by segments, which is never less than the whole has."""
    return sum(
        count(segment.text) + MARK_MARGIN_TOKENS * marks_in(segment.text) for segment in segments
    )


def cut_to(text: str, tokens: int, count: Count) -> str:
    """Returns `text`, or its beginning in at most `tokens`; empty if nothing would be left."""
    if count(text) <= tokens:
        return text
    cut = shortened(text, tokens, count) if tokens > 0 else ""
    return cut if cut != ELLIPSIS.strip() and count(cut) <= tokens else ""


def share_of(sizes: Sequence[int], budget: int) -> int:
    """Returns the share that each may have, so that all have at most `budget` together.

    What has less than its share leaves the rest to the others.
    """
    left, whole = budget, len(sizes)
    for before, size in pairwise((0, *sorted(sizes))):
        if (size - before) * whole > left:
            return before + left // whole
        left -= (size - before) * whole
        whole -= 1
    return max(sizes, default=0)


def fitted(build: Build, texts: Sequence[str], room: int, count: Count) -> tuple[str, ...]:
    """Returns `texts`, cut to equal shares if their prompt would have more than `room` tokens.

    Raises TextTooLong when too little of them would be left.
    """
    excess = prompt_tokens(build(texts), count) - room
    if excess <= 0:
        return tuple(texts)
    sizes = [count(text) for text in texts]
    free = room - prompt_tokens(build([""] * len(texts)), count)
    for _ in range(MAX_CUTS):
        share = share_of(sizes, free) if free > 0 else 0
        if share < MIN_SHOWN_TOKENS:
            break
        shown = tuple(cut_to(text, share, count) for text in texts)
        excess = prompt_tokens(build(shown), count) - room
        if excess <= 0:
            return shown
        free -= excess
    raise TextTooLong(
        f"the question and the instructions leave no room in the model's window for"
        f" {len(texts)} texts: {max(excess, 1)} tokens too many for a prompt of {max(room, 0)}"
    )
