"""Summarizing: a text, or the summaries of children, in a few tokens (table 5)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.domain.flows import CUT_OFF, NO_USE, Flow, ModelAsk, Purpose, Segment, SegmentKind
from service.domain.shortening import cut_back, shortened
from service.domain.thoughts import is_thought, spoken
from service.domain.tree import building_prompts as prompts
from service.domain.tree.contents import CompressContent, SummarizeContent
from service.domain.tree.nodes import Made
from service.domain.tree.spec import TreeSpec

#: How often a model is asked for a summary before it is given up.
MAX_TRIES = 3
#: Tokens that a reply may have beside twice a summary's: for what a model thinks before it.
THOUGHT_TOKENS = 1024

#: What some models write before a summary although they were told not to.
_HEADING = re.compile(r"[#*\[ ]{0,8}summary[\]*]{0,3}[ ]?(?::[*]{0,2}|\n)\s*", re.IGNORECASE)


class NoSummary(Exception):
    """The model gave no summary however often it was asked; the message is one sentence."""

    #: The same prompt was asked again already.
    retryable = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A summary and where it comes from."""

    #: Empty when there was nothing but blanks to summarize.
    text: str
    made: Made
    #: Tokens of the text, by the `count` that was given.
    tokens: int


def summarize(
    text: str, *, spec: TreeSpec, marker_key: bytes, count: Callable[[str], int]
) -> Flow[Summary]:
    """The summary of a segment. Raises NoSummary."""
    if not text.strip():
        return Summary(text="", made=Made.JOINED, tokens=0)
    task = prompts.summarize_task(spec.summary_tokens)
    segment = prompts.text_segment(text, marker_key)
    content = SummarizeContent(text=text, max_tokens=spec.summary_tokens)
    return (yield from _asked(prompts.SUMMARIZE, task, segment, content, spec, count))


def compress(
    summaries: Sequence[str], *, spec: TreeSpec, marker_key: bytes, count: Callable[[str], int]
) -> Flow[Summary]:
    """The summary of a parent: its children's, compressed when they are too long together.

    Raises NoSummary.
    """
    held = tuple(summary for summary in summaries if summary.strip())
    together = "\n".join(held)
    tokens = count(together)
    if tokens <= spec.summary_tokens:
        return Summary(text=together, made=Made.JOINED, tokens=tokens)
    task = prompts.compress_task(spec.summary_tokens)
    segment = prompts.summaries_segment(held, marker_key)
    content = CompressContent(summaries=held, max_tokens=spec.summary_tokens)
    return (yield from _asked(prompts.COMPRESS, task, segment, content, spec, count))


def _asked(
    template: str,
    task: str,
    given: str,
    content: object,
    spec: TreeSpec,
    count: Callable[[str], int],
) -> Flow[Summary]:
    """The first reply that holds a summary."""
    for attempt in range(MAX_TRIES):
        (reply,) = yield [
            ModelAsk(
                purpose=Purpose.SUMMARIZE,
                template=template,
                segments=(
                    Segment(kind=SegmentKind.TASK, text=task),
                    Segment(kind=SegmentKind.CHUNK, text=given, reusable=False),
                ),
                content=content,
                max_output_tokens=2 * spec.summary_tokens + THOUGHT_TOKENS,
                attempt=attempt,
            )
        ]
        summary = _read(reply.text, spec.summary_tokens, count)
        if summary:
            return summary
    raise NoSummary(f"{NO_USE} summary in {MAX_TRIES} tries: its replies were empty")


def _read(reply: str, max_tokens: int, count: Callable[[str], int]) -> Summary | None:
    """The summary in a reply; None when there is none."""
    whole = reply.removesuffix(CUT_OFF)
    text = spoken(whole).strip()
    if not text or is_thought(text):
        return None
    heading = _HEADING.match(text)
    text = text[heading.end() :] if heading and heading.end() < len(text) else text
    short = shortened(text, max_tokens, count)
    if short == text and whole != reply:
        # The last sentence was not finished.
        short = shortened(cut_back(text + " ", len(text)), max_tokens, count)
    made = Made.MODEL if short == text else Made.CUT
    return Summary(text=short, made=made, tokens=count(short))
