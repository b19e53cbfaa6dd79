"""Compressing: M_new = F(M + R), and the same for the vectors of a level (algorithm 1)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from service.domain.prompting.asking import (
    AGAIN_TOKENS,
    GROWTH,
    MAX_TRIES,
    NoUse,
    asked_again,
    check_refused,
    fault_of_end,
)
from service.domain.prompting.cutting import Cutter, cut_back, shortened
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import MARGIN_TOKENS, PromptTerms, prompt_tokens
from service.domain.prompting.flows import NO_USE, Flow, ModelReply, ModelRequest, Purpose, Segment
from service.domain.prompting.marking import trust_note
from service.domain.prompting.replies import prose
from service.domain.state import prompts
from service.domain.state.packing import Item, Packer
from service.domain.state.pinning import behind, fitted, paragraph
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import StateVector, VectorSource
from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason

#: How often a reply that is too long is asked for again, before it is cut.
MAX_SHORTENINGS = 2
#: Tokens that a reply may have beside twice a vector's: for what a model thinks before it.
THOUGHT_TOKENS = 1024
#: Share of the window that a reply may have where that is less; never less than a vector.
REPLY_SHARE = 1 / 4
#: Share of a vector that stands in which is for the beginning of the steps, at least.
STAND_IN_SHARE = 1 / 4

#: What some models write before a paragraph although the prompt forbids it.
_HEADING = (
    r"(?:(?:the|my|new|updated|current|compressed) ){0,3}"
    r"(?:(?:memory )?state(?: vector)?|memory vector|paragraph|summary)(?: ?\([^()\n]{0,40}\))?"
)


#: What stands under the headings of prompts, for messages.
_NAMES = {
    "TASK": "the task prompt",
    "STATE": "the state vector so far",
    "EARLIER": "the vector of the level above",
}


class CompressionTooLarge(FailedPrecondition):
    """What does not fit into the model's window however it is cut; one sentence."""

    #: It will not fit the next time either.
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(Reason.MEMORY_STALLED, message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """The text of a new vector, and where it comes from."""

    text: str
    #: Tokens of the text, by the `count` that was given.
    tokens: int
    made: VectorSource
    #: Replies that it took; 0 for what no model wrote.
    replies: int
    #: Pinned strings that were put after the text, since it did not have them.
    appended: tuple[str, ...]


def compress_steps(
    current: str,
    steps: Sequence[SizedStep],
    *,
    spec: StateSpec,
    cut: Cutter,
    **terms: Unpack[PromptTerms],
) -> Flow[Compression]:
    """Makes the vector after `current` and the steps since, one or more.

    Where they do not fit into the window it is F(F(current + first part) + rest).
    Raises NoUse, NoRoom.
    """

    items = [
        Item(label=f"Step {step.position}", text=step.text, trust=step.logged.trust)
        for step in steps
        if step.logged.is_read
    ]
    if steps and not items:
        # All of them are withheld: what is kept so far stands for them as well.
        return stand_in(current, (), spec=spec, count=terms["count"])
    compressor = _Compressor(
        wording=prompts.STEPS_WORDING,
        heading=lambda base: "TASK" if base == spec.task else "STATE",
        spec=spec,
        **terms,
    )
    return (yield from compressor.all(current, Packer(items, cut=cut, count=terms["count"])))


def compress_vectors(
    above: str,
    vectors: Sequence[StateVector],
    *,
    spec: StateSpec,
    cut: Cutter,
    **terms: Unpack[PromptTerms],
) -> Flow[Compression]:
    """Makes the vector of the level above, from `above` (empty: none) and a full level's run.

    As `compress_steps`.
    """

    compressor = _Compressor(
        wording=prompts.EPISODE_WORDING,
        heading=lambda _: "EARLIER",
        spec=spec,
        **terms,
    )
    items = [
        Item(
            label=f"Steps {vector.from_position + 1} to {vector.to_position}",
            text=vector.text,
        )
        for vector in vectors
    ]
    return (yield from compressor.all(above, Packer(items, cut=cut, count=terms["count"])))


def stand_in(
    current: str, texts: Sequence[str], *, spec: StateSpec, count: Callable[[str], int]
) -> Compression:
    """Stands for what no model compressed: the old vector and the beginning of the texts."""
    limit = spec.state_tokens
    old = paragraph(current, spec.pinned)
    new = paragraph("\n".join(texts), spec.pinned)
    room = max(limit - count(old), int(limit * STAND_IN_SHARE))
    new = shortened(new, room, count) if new else ""
    # With the blank between them.
    old = shortened(old, max(limit - count(f" {new}"), 1), count) if old else ""
    whole = fitted(f"{old} {new}".strip(), spec.pinned, limit, count)
    return Compression(
        text=whole.text,
        tokens=whole.tokens,
        made=VectorSource.SKIPPED,
        replies=0,
        appended=whole.appended,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compressor:
    """Asks for vectors of one kind."""

    wording: prompts.Wording
    #: What the vector so far stands under in the prompt.
    heading: Callable[[str], str]
    spec: StateSpec
    marker_key: bytes
    count: Callable[[str], int]
    window_tokens: int

    def all(self, base: str, packer: Packer) -> Flow[Compression]:
        """Makes the vector after `base` and all that the packer has, part by part."""
        self._check_pinned()
        made: Compression | None = None
        replies = 0
        while packer:
            note = self.count(trust_note(packer.levels))
            part = packer.take(self._free(self._segments(base, [])) - note)
            if not part:
                raise self._no_room(base, packer.next_label)
            made = yield from self._vector(base, part)
            base = made.text
            replies += made.replies
        if made is None:
            raise ValueError("there is nothing to compress")
        return replace(made, replies=replies)

    def _vector(self, base: str, part: Sequence[Item]) -> Flow[Compression]:
        """Makes the vector of a part: the first reply that is short enough, or the last, cut."""
        asked = Counter[str]()
        too_long: _Spoken | None = None
        replies = useless = shortenings = 0
        ask = first = self._ask(base, part, None)
        while True:
            (reply,) = yield [replace(ask, attempt=asked[ask.text])]
            asked[ask.text] += 1
            replies += 1
            check_refused(reply)
            found = self._read(reply)
            if found is None:
                useless += 1
                fault = fault_of_end(reply) or "it had no paragraph"
                if useless == MAX_TRIES:
                    if too_long is not None:
                        return self._made(too_long, replies)
                    raise NoUse(
                        f"{NO_USE} state vector in {useless} replies in a row; of the last"
                        f" one: {fault}",
                        end=reply.end,
                    )
                ask = self._again(first, reply, fault, useless)
                continue
            useless = 0
            is_short = found.tokens <= self.spec.state_tokens
            if found.is_whole and is_short:
                return self._made(found, replies)
            if shortenings == MAX_SHORTENINGS or not self._can_show(found):
                return self._made(found, replies)
            shortenings += 1
            too_long = replace(found, times=shortenings)
            first = self._ask(base, part, too_long)
            if is_short:
                # What it thought took the room, not what it said.
                first = replace(first, max_output_tokens=self._more_room(first))
            ask = first

    def _again(
        self, first: ModelRequest, reply: ModelReply, fault: str, tries: int
    ) -> ModelRequest:
        """Returns the prompt again, with what was wrong with a reply that had no paragraph."""
        bound = self._more_room(first)
        again = asked_again(first, reply, fault, tries=tries, most_tokens=bound)
        excess = -self._beside(again.segments, again.max_output_tokens)
        return replace(again, max_output_tokens=max(again.max_output_tokens - max(excess, 0), 1))

    def _more_room(self, ask: ModelRequest) -> int:
        """Tokens that a reply may have which needs more than others."""
        free = self._beside(ask.segments, 0) - AGAIN_TOKENS
        return max(min(GROWTH * self._reply_tokens, free), ask.max_output_tokens)

    def _beside(self, segments: Sequence[Segment], output_tokens: int) -> int:
        """Tokens of the window that a prompt and its reply leave."""
        taken = prompt_tokens(segments, self.count) + output_tokens + MARGIN_TOKENS
        return self.window_tokens - taken

    def _ask(self, base: str, part: Sequence[Item], too_long: "_Spoken | None") -> ModelRequest:
        segments = self._segments(base, part)
        if too_long is not None:
            again = self._too_long(too_long)
            segments = (*segments, again)
            if self._free(segments) < 0:
                # What it was made from does not fit beside it, and it says the same.
                segments = (segments[0], again)
        return ModelRequest(
            purpose=Purpose.COMPRESS,
            template=self.wording.template,
            segments=segments,
            max_output_tokens=self._reply_tokens,
        )

    def _segments(self, base: str, part: Sequence[Item]) -> tuple[Segment, ...]:
        key = self.marker_key
        task = prompts.task_segment(self.wording, self.spec, key)
        note = trust_note(item.trust for item in part)
        chunk = prompts.chunk_segment(self.wording, [item.shown(key) for item in part], note)
        if not base.strip():
            return (task, chunk)
        return (task, prompts.base_segment(self.heading(base), base, key), chunk)

    def _too_long(self, reply: "_Spoken") -> Segment:
        most = self.spec.state_tokens
        if reply.tokens <= most:
            return prompts.cut_off_segment(reply.text, most, reply.times, self.marker_key)
        return prompts.too_long_segment(
            reply.text, reply.tokens, most, reply.times, self.marker_key
        )

    def _can_show(self, reply: "_Spoken") -> bool:
        """Returns whether the model can be shown its reply."""
        task = prompts.task_segment(self.wording, self.spec, self.marker_key)
        return self._free((task, self._too_long(reply))) >= 0

    @property
    def _reply_tokens(self) -> int:
        """Tokens that a reply may have."""
        wanted = 2 * self.spec.state_tokens + THOUGHT_TOKENS
        return min(wanted, max(int(self.window_tokens * REPLY_SHARE), self.spec.state_tokens))

    def _free(self, segments: Sequence[Segment]) -> int:
        """Tokens of the window that are left beside a prompt and its reply."""
        return self._beside(segments, self._reply_tokens)

    def _read(self, reply: ModelReply) -> "_Spoken | None":
        """Returns the paragraph in a reply; None when there is none."""
        is_whole = reply.end is not End.LENGTH
        if is_whole and fault_of_end(reply) is not None:
            return None
        text = paragraph(prose(reply.text, _HEADING), self.spec.pinned)
        if not text:
            return None
        return _Spoken(text=text, tokens=self.count(text), is_whole=is_whole)

    def _made(self, reply: "_Spoken", replies: int) -> Compression:
        text = reply.text
        if not reply.is_whole:
            # The last sentence was not finished.
            text = cut_back(text + " ", len(text))
        whole = fitted(text, self.spec.pinned, self.spec.state_tokens, self.count)
        is_cut = whole.is_cut or not reply.is_whole
        return Compression(
            text=whole.text,
            tokens=whole.tokens,
            made=VectorSource.CUT if is_cut else VectorSource.MODEL,
            replies=replies,
            appended=whole.appended,
        )

    def _check_pinned(self) -> None:
        tokens = self.count(behind(self.spec.pinned))
        if tokens > self.spec.state_tokens:
            raise CompressionTooLarge(
                f"the pinned strings have {tokens} tokens as the model counts, and a state vector"
                f" may have {self.spec.state_tokens}"
            )

    def _no_room(self, base: str, label: str) -> CompressionTooLarge:
        alone = prompt_tokens(self._segments("", []), self.count)
        held = [f"the instructions with the pinned strings have {alone} tokens"]
        if base.strip():
            so_far = prompt_tokens(self._segments(base, []), self.count) - alone
            held.append(f"{_NAMES[self.heading(base)]} has {so_far}")
        held.append(f"the reply may have {self._reply_tokens}")
        return CompressionTooLarge(
            f"the model's window of {self.window_tokens} tokens has no room for"
            f" {label.lower()}, not even in pieces: {', '.join(held)}; it needs a larger window,"
            " a shorter task prompt or fewer state_tokens"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spoken:
    """The paragraph in a reply."""

    text: str
    tokens: int
    #: Whether the reply is complete.
    is_whole: bool
    #: Replies so far that were too long, or cut off.
    times: int = 1
