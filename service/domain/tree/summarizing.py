"""Summarizing: a text, or the summaries of children, in a few tokens (table 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.access.trust import Trust
from service.domain.prompting.asking import FAULTS, Unusable, free_tokens, usable_or_cut
from service.domain.prompting.cutting import cut_back, shortened
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import Count
from service.domain.prompting.flows import Flow, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.replies import prose
from service.domain.prompting.thoughts import is_thought, said, spoken
from service.domain.tree import building_prompts as prompts
from service.domain.tree.nodes import SummarySource
from service.domain.tree.spec import TreeSpec

#: Tokens that a reply may have beside twice a summary's: for what a model thinks before it.
THOUGHT_TOKENS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A summary and where it comes from."""

    #: Empty when there was nothing but blanks to summarize.
    text: str
    made: SummarySource
    #: Tokens of the text, by the `count` that was given.
    tokens: int


def summarize(
    text: str,
    *,
    spec: TreeSpec,
    marker_key: bytes,
    window_tokens: int,
    count: Count,
    trust: Trust = Trust.TRUSTED,
) -> Flow[Summary]:
    """Summarizes a segment; `window_tokens` and `count` are the model's. Raises NoUse."""
    if not text.strip():
        return Summary(text="", made=SummarySource.JOINED, tokens=0)
    task = prompts.summarize_task(spec.summary_tokens)
    segment = prompts.text_segment(text, marker_key, trust)
    ask = _ask(prompts.SUMMARIZE, task, segment, spec)
    return (yield from _asked(ask, spec.summary_tokens, window_tokens, count))


def compress(
    summaries: Sequence[str],
    *,
    spec: TreeSpec,
    marker_key: bytes,
    window_tokens: int,
    count: Count,
) -> Flow[Summary]:
    """Summarizes a parent: its children's summaries, compressed if they are too long together.

    As `summarize`.
    """
    held = tuple(summary for summary in summaries if summary.strip())
    together = "\n".join(held)
    tokens = count(together)
    if tokens <= spec.summary_tokens:
        return Summary(text=together, made=SummarySource.JOINED, tokens=tokens)
    task = prompts.compress_task(spec.summary_tokens)
    segment = prompts.summaries_segment(held, marker_key)
    ask = _ask(prompts.COMPRESS, task, segment, spec)
    return (yield from _asked(ask, spec.summary_tokens, window_tokens, count))


def _ask(template: str, task: str, given: str, spec: TreeSpec) -> ModelRequest:
    return ModelRequest(
        purpose=Purpose.SUMMARIZE,
        template=template,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            Segment(kind=SegmentKind.CHUNK, text=given, reusable=False),
        ),
        max_output_tokens=2 * spec.summary_tokens + THOUGHT_TOKENS,
    )


def _asked(ask: ModelRequest, max_tokens: int, window_tokens: int, count: Count) -> Flow[Summary]:
    """Returns the first summary in a reply; of one that was cut off, what there is."""
    return (
        yield from usable_or_cut(
            ask,
            lambda reply, is_cut: _read(reply, is_cut, max_tokens, count),
            what="summary",
            most_tokens=free_tokens(ask, window_tokens, count),
            # What is longer is cut back all the same.
            enough=lambda reply: count(said(reply)) > max_tokens,
        )
    )


def _read(reply: str, is_cut: bool, max_tokens: int, count: Count) -> Summary:
    """Returns the summary in a reply. Raises Unusable."""
    text = prose(reply, "summary")
    if not text:
        raise Unusable(FAULTS[End.THINKING if is_thought(spoken(reply)) else End.EMPTY])
    short = shortened(text, max_tokens, count)
    if short == text and is_cut:
        # The last sentence was not finished.
        short = shortened(cut_back(text + " ", len(text)), max_tokens, count)
    made = SummarySource.MODEL if short == text else SummarySource.CUT
    return Summary(text=short, made=made, tokens=count(short))
