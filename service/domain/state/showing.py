"""Showing a working context: never more of it than the model's window has room for.

Every step is in it. One that is too long is shown without its middle, and says so; the log
has all of it, and so has the prompt that compresses it.
"""

from dataclasses import replace

from service.domain.prompting.cutting import largest
from service.domain.prompting.fitting import MAX_CUTS, Count, share_of
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.working_context import WorkingContext, as_text

#: Share of the model's window for a context: the rest is for what else an agent's prompt
#: says, and for the reply.
CONTEXT_SHARE = 3 / 4
#: Tokens that a step which is cut has at least; with fewer it says nothing.
MIN_STEP_TOKENS = 32
#: Share of a text without its middle that is its beginning.
HEAD_SHARE = 2 / 3

_PARTS = ("text", "observation", "thought", "action")


def shown(
    context: WorkingContext, spec: StateSpec, *, window_tokens: int, count: Count
) -> WorkingContext | None:
    """Returns the context as an agent reads it; None where it does not fit however it is cut.

    `window_tokens` and `count` are the model's. A step is cut where it alone is longer than
    `period_tokens`, and where all of them together pass the window's share.
    """
    room = int(window_tokens * CONTEXT_SHARE)
    if spec.period_tokens:
        most = spec.period_tokens
        cut = [_cut(step, most, estimate_tokens) for step in context.recent]
        context = replace(context, recent=cut)
    text = as_text(context)
    # No token has less than a byte: most contexts need no counting.
    if len(text.encode()) <= room or count(text) <= room:
        return context
    sizes = [count(step.text) for step in context.recent]
    free = room - count(as_text(replace(context, recent=()))) - len(sizes)
    for _ in range(MAX_CUTS):
        share = share_of(sizes, free) if free > 0 else 0
        if share < MIN_STEP_TOKENS:
            return None
        cut = [_cut(step, share, count) for step in context.recent]
        short = replace(context, recent=cut)
        excess = count(as_text(short)) - room
        if excess <= 0:
            return short
        free -= excess
    return None


def _cut(step: SizedStep, tokens: int, count: Count) -> SizedStep:
    """Shortens a step to about so many tokens; its longest parts lose their middles."""
    if count(step.text) <= tokens:
        return step
    chunk = step.logged.chunk
    for name in sorted(_PARTS, key=lambda name: -len(getattr(chunk, name))):
        excess = count(chunk.as_text()) - tokens
        if excess <= 0:
            break
        part = getattr(chunk, name)
        shorter = without_middle(part, max(count(part) - excess, 0), count)
        chunk = replace(chunk, **{name: shorter})  # type: ignore[arg-type]
    return SizedStep.of(replace(step.logged, chunk=chunk))


def without_middle(text: str, tokens: int, count: Count) -> str:
    """Returns the beginning and the end of a text, with a mark of what is left out between them.

    It has at most `tokens`, or is the mark alone.
    """
    if count(text) <= tokens:
        return text
    kept = largest(0, len(text) - 1, lambda kept: count(_joined(text, kept)) <= tokens)
    return _joined(text, kept)


def _joined(text: str, kept: int) -> str:
    head = int(kept * HEAD_SHARE)
    left_out = len(text) - kept
    return f"{text[:head]} [… {left_out} characters left out …] {text[len(text) - (kept - head) :]}"
