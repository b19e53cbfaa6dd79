"""Asking models about a PRISM memory: what they are shown, as flows.

`revise` and `answer` are the two model calls of the paper's algorithm 1 as flows;
`consolidate` is a third, for a memory that has grown too long.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from service.domain.answers.drafting import AnswerDraft, answer_tokens, draft
from service.domain.log.chunks import LoggedChunk
from service.domain.prism import pacing, prompts
from service.domain.prism.amending import MISSING, settle, value_at
from service.domain.prism.amendments import Amendment, Rejection, Revision, Rules
from service.domain.prism.focus import FocusedView, focused, halves, sections
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import (
    CONSOLIDATION_OUTPUT_TOKENS,
    MARGIN_TOKENS,
    STEP_OUTPUT_TOKENS,
)
from service.domain.prism.replies import REPLY_SCHEMA, answer_so_far, read_answer
from service.domain.prism.revisions import hides_nothing, parse_consolidation, parse_reply
from service.domain.prism.schemas.tree import Mismatch
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.asking import GROWTH, NoUse, SaidAnswer, usable
from service.domain.prompting.ends import End
from service.domain.prompting.flows import Flow, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.values.memory_specs import ReplyFormat
from service.domain.values.paths import Path, PathError

#: What an answer is shown at most of a memory that the window has no room for.
MAX_ANSWER_FOCUS_TOKENS = 32_000
#: The window of a model whose size is unknown.
DEFAULT_WINDOW_TOKENS = 32_768
#: Replies that use up their bound, after which less is asked for.
CUT_TRIES = 2
#: How often the text of a step is halved, where the reply to it finds no room.
MAX_HALVINGS = 6
#: Tokens of a text that is not halved any more.
MIN_PIECE_TOKENS = 64
#: Paths that an answer may rest on.
MAX_ANSWER_PATHS = 20


T = TypeVar("T")
#: How many tokens of a memory a step is shown; None: all of it.
Focus = Callable[[PrismMemory], int | None]


def revise_in_parts(
    spec: PrismSpec,
    memory: PrismMemory,
    parts: Sequence[Sequence[LoggedChunk]],
    *,
    number: int,
    marker_key: bytes,
    rules: Rules,
    output_tokens: int,
    most_tokens: int,
    focus: Focus = lambda _: None,
) -> Flow[Revision]:
    """Runs a step whose text is too long for one prompt: a model call for each part, in order.

    Each prompt shows the amendments of the parts before it. A part whose reply finds no room is
    halved. Together they are revision `number`. Raises NoUse.
    """

    def ask(memory: PrismMemory, part: Sequence[LoggedChunk]) -> Flow[Revision]:
        return revise(
            spec,
            memory,
            part,
            marker_key=marker_key,
            rules=rules,
            output_tokens=output_tokens,
            most_tokens=most_tokens,
            focus_tokens=focus(memory),
        )

    return (
        yield from _part_by_part(
            memory, number, parts, ask, lambda part: halved(part, memory.count)
        )
    )


def _part_by_part(
    memory: PrismMemory,
    number: int,
    parts: Sequence[T],
    ask: Callable[[PrismMemory, T], Flow[Revision]],
    halves: Callable[[T], Sequence[T]],
) -> Flow[Revision]:
    """Makes revision `number` of several, each from a part and the memory after those before it.

    A part whose reply finds no room is asked about in `halves`, if it has any. Raises NoUse.
    """
    amendments: list[Amendment] = []
    rejections: list[Rejection] = []
    waiting = [(part, MAX_HALVINGS) for part in reversed(parts)]
    while waiting:
        part, halvings = waiting.pop()
        try:
            made = yield from ask(memory, part)
        except NoUse as error:
            smaller = halves(part) if error.end is End.LENGTH and halvings else ()
            if not smaller:
                raise
            waiting += [(half, halvings - 1) for half in reversed(smaller)]
            continue
        memory = memory.apply(number, made.amendments)
        amendments += made.amendments
        rejections += made.rejections
    return Revision(amendments=tuple(amendments), rejections=tuple(rejections))


def revise(
    spec: PrismSpec,
    memory: PrismMemory,
    chunks: Sequence[LoggedChunk],
    *,
    marker_key: bytes,
    rules: Rules,
    output_tokens: int = STEP_OUTPUT_TOKENS,
    most_tokens: int = GROWTH * STEP_OUTPUT_TOKENS,
    focus_tokens: int | None = None,
) -> Flow[Revision]:
    """Runs one step: the chunks' changes to the memory (algorithm 1, line 3).

    A reply has `output_tokens`, and where these were used up `most_tokens`. With `focus_tokens`
    the model is shown so much of the memory, what fits the chunks best. If its reply would
    change what is there and was not shown, the step is asked once more with that shown, as far
    as it fits; a change of what is not shown even then is rejected. Where that gives nothing of
    use, the first reply counts. Raises NoUse.
    """
    is_focused = focus_tokens is not None
    task = prompts.revise_task(spec, rules, is_focused=is_focused)
    ask = ModelRequest(
        purpose=Purpose.REVISE,
        template=prompts.REVISE_FOCUSED if is_focused else prompts.REVISE,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            *memory.segments(),
            Segment(
                kind=SegmentKind.CHUNK,
                text=prompts.text_segment(chunks, marker_key),
                reusable=False,
            ),
        ),
        max_output_tokens=output_tokens,
        reply_schema=_reply_schema(spec),
    )

    def revised(ask: ModelRequest, view: FocusedView | None = None) -> Flow[Revision]:
        def read(reply: str) -> Revision:
            hides = hides_nothing if view is None else view.hides
            return parse_reply(reply, memory.schema, memory.value, rules, hides)

        return usable(ask, read, what="revision", most_tokens=most_tokens, cut_tries=CUT_TRIES)

    if focus_tokens is None:
        return (yield from revised(ask))
    text = "\n".join(logged.chunk.as_text() for logged in chunks)
    view = focused(memory, text, focus_tokens)
    made = yield from revised(_showing(ask, view), view)
    if made.unseen:
        # What the reply did change stays in sight: the next one replaces it.
        wanted = (*(one.path for one in made.amendments), *made.unseen)
        more = focused(memory, text, focus_tokens, wanted=wanted)
        if more.shows_more(view, made.unseen):
            try:
                return (yield from revised(_showing(ask, more, prompts.now_shown_segment()), more))
            except NoUse:
                # The first reply was of use, and says what it could not change.
                return made
    return made


def _showing(ask: ModelRequest, view: FocusedView, why: str = "") -> ModelRequest:
    """Returns the ask with a view of the memory in the place of the whole."""
    behind = [Segment(kind=SegmentKind.QUERY, text=why, reusable=False)] if why else []
    segments = (ask.segments[0], *view.segments, ask.segments[-1], *behind)
    return replace(ask, segments=segments)


def consolidate(
    spec: PrismSpec,
    memory: PrismMemory,
    *,
    marker_key: bytes,
    rules: Rules,
    budget_tokens: int,
    output_tokens: int = CONSOLIDATION_OUTPUT_TOKENS,
    most_tokens: int = GROWTH * CONSOLIDATION_OUTPUT_TOKENS,
    room_tokens: int | None = None,
) -> Flow[Revision]:
    """Says the same memory in fewer words: updates and removals, no additions.

    `budget_tokens` is what the memory should have at most; the prompt says so, and
    nothing enforces it. Of `rules`, `add_only` and `may_remove` do not count. With
    `room_tokens`, a memory of which a reply could not change enough, or for which a prompt has
    no more room, is shown in parts, one prompt after the other, and a part whose reply finds no
    room in halves. Raises NoUse, and TextTooLong for a value that no prompt has room for.
    """
    views: Sequence[FocusedView | None] = (None,)
    if room_tokens is not None:
        part = pacing.part_tokens(memory, room_tokens, output_tokens)
        if memory.live_tokens > part:
            views = sections(memory, part, room_tokens=room_tokens)
    share = budget_tokens / max(memory.live_tokens, 1)

    def ask(memory: PrismMemory, view: FocusedView | None) -> Flow[Revision]:
        return _consolidated(
            spec,
            memory,
            view,
            share=share,
            marker_key=marker_key,
            rules=rules,
            output_tokens=output_tokens,
            most_tokens=most_tokens,
        )

    return (yield from _part_by_part(memory, 0, views, ask, _halves))


def _halves(view: FocusedView | None) -> Sequence[FocusedView | None]:
    """Returns the halves of a part of the memory; the whole has none."""
    return () if view is None else halves(view)


def _consolidated(
    spec: PrismSpec,
    memory: PrismMemory,
    view: FocusedView | None,
    *,
    share: float,
    marker_key: bytes,
    rules: Rules,
    output_tokens: int,
    most_tokens: int,
) -> Flow[Revision]:
    """Asks for the memory, or what a view shows of it, in a share of its tokens."""
    task = prompts.consolidate_task(spec, is_part=view is not None)
    text = memory.value_json if view is None else view.segments[0].text.rstrip("\n")
    tokens = memory.live_tokens if view is None else memory.count(text)
    size = prompts.size_segment(tokens, round(share * tokens), is_part=view is not None)
    whole = prompts.whole_memory_segment(text, marker_key)
    ask = ModelRequest(
        purpose=Purpose.CONSOLIDATE,
        template=prompts.CONSOLIDATE if view is None else prompts.CONSOLIDATE_PART,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            Segment(kind=SegmentKind.BASE, text=whole, reusable=False),
            Segment(kind=SegmentKind.QUERY, text=size, reusable=False),
        ),
        max_output_tokens=output_tokens,
        reply_schema=_reply_schema(spec),
    )

    def read(reply: str) -> Revision:
        hides = hides_nothing if view is None else view.hides
        return parse_consolidation(reply, memory.schema, memory.value, rules, hides)

    return (
        yield from usable(
            ask, read, what="consolidation", most_tokens=most_tokens, cut_tries=CUT_TRIES
        )
    )


def answer(
    spec: PrismSpec,
    memory: PrismMemory,
    query: str,
    *,
    marker_key: bytes,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
) -> Flow[AnswerDraft[Path]]:
    """Gives the final answer from the memory (algorithm 1, line 6). Raises NoUse.

    The sources are places that exist in the memory. Of a memory that the window has no room for
    the model is shown what fits the query best.
    """
    asked = Segment(
        kind=SegmentKind.QUERY, text=prompts.query_segment(query, marker_key), reusable=False
    )

    def task(*, is_focused: bool) -> Segment:
        return Segment(kind=SegmentKind.TASK, text=prompts.answer_task(spec, is_focused=is_focused))

    def read(reply: str, is_cut: bool) -> SaidAnswer[Path] | None:
        said = read_answer(reply, is_cut)
        if said is None:
            return None
        paths = _existing(memory, said.sources)
        return SaidAnswer(text=said.text, sources=paths, is_cut=said.is_cut)

    free = window_tokens - answer_tokens(window_tokens) - MARGIN_TOKENS - memory.count(asked.text)
    segments = (task(is_focused=False), *memory.segments(), asked)
    is_focused = memory.shown_tokens > free - memory.count(segments[0].text)
    if is_focused:
        first = task(is_focused=True)
        room = max(pacing.entry_tokens(memory, free - memory.count(first.text)), 0)
        room = min(room, MAX_ANSWER_FOCUS_TOKENS)
        segments = (first, *focused(memory, query, room).segments, asked)
    return (
        yield from draft(
            prompts.ANSWER_FOCUSED if is_focused else prompts.ANSWER,
            segments,
            read,
            find_text=answer_so_far,
            window_tokens=window_tokens,
            count=memory.count,
            must_answer=True,
        )
    )


def halved(
    chunks: Sequence[LoggedChunk], count: Callable[[str], int]
) -> Sequence[Sequence[LoggedChunk]]:
    """Splits these chunks into halves by their number, in order.

    Of a single one, smaller pieces of its text; none when it is short.
    """
    if len(chunks) > 1:
        middle = len(chunks) // 2
        return chunks[:middle], chunks[middle:]
    text = chunks[0].chunk.as_text()
    tokens = count(text)
    if tokens < 2 * MIN_PIECE_TOKENS:
        return ()
    return [[piece] for piece in pacing.pieces(chunks[0], -(-tokens // 2), count)]


def _reply_schema(spec: PrismSpec) -> dict[str, Any] | None:
    return None if spec.reply_format is ReplyFormat.TEXT else REPLY_SCHEMA


def _existing(memory: PrismMemory, named: Sequence[str]) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for line in named:
        try:
            path, _ = settle(memory.schema, memory.value, Path.parse(line))
        except (PathError, Mismatch):
            continue
        if path.tokens and value_at(memory.value, path) is not MISSING:
            found[path] = None
    return tuple(found)[:MAX_ANSWER_PATHS]
