"""Decides what a memory needs before its next step, and how much that step may read.

A memory never grows past the model's window: first the groups of chunks shrink, then its
amendments are folded and it is consolidated, then the step fails and says why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import PrismSpec, StepScope
from service.domain.prompting.asking import GROWTH
from service.domain.prompting.cutting import split
from service.domain.prompting.tokens import estimate_tokens

#: Tokens that the replies to a step and to a consolidation may have.
STEP_OUTPUT_TOKENS = 4096
CONSOLIDATION_OUTPUT_TOKENS = 8192
#: Tokens that a prompt keeps free for marks and for what a count is off by.
MARGIN_TOKENS = 256
#: A consolidation is shown so many times what its reply may have: of more it could not change
#: enough.
PART_REPLIES = 2
#: Share of a prompt's room that entries fill which no tokenizer counted. By their bytes they
#: seem to have fewer tokens: measured, 113,500 for 157,300 of o200k.
ESTIMATE_SHARE = 0.6
#: A step that could read fewer tokens than this is not made, and a chunk that has no more
#: is not read in pieces, however small `chunk_tokens` is.
MIN_CHUNK_TOKENS = 256
#: Share of the budget that a fold must win back for it to be made on that account.
FOLD_GAIN = 0.1
#: By how much a memory must have grown since its last consolidation for another one.
REGROWTH = 1.1
#: The same where a proposal found no room: then less is enough.
LAST_REGROWTH = 1.03
#: Share of the limit of bytes that a memory may have before it is consolidated: long before
#: the limit, so that there is time for several tries.
BYTE_SHARE = 0.5


class Need(StrEnum):
    """What comes next."""

    STEP = "step"
    FOLD = "fold"
    CONSOLIDATION = "consolidation"
    #: There is no room to read anything.
    ROOM = "room"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBounds:
    """What a model and a spec leave room for."""

    #: Tokens of a prompt and its reply together.
    window_tokens: int
    #: Tokens of the part of the prompt that never changes.
    task_tokens: int
    #: Tokens that the reply to a step may have, and that to a consolidation.
    step_output_tokens: int
    consolidation_output_tokens: int
    #: The memory as canonical JSON, in bytes.
    max_memory_bytes: int = 1024 * 1024

    @classmethod
    def of(cls, window_tokens: int, task_tokens: int, max_memory_bytes: int) -> "StepBounds":
        """Returns the bounds of a window: replies may have a quarter of a small one, or a third."""
        return cls(
            window_tokens=window_tokens,
            task_tokens=task_tokens,
            step_output_tokens=min(STEP_OUTPUT_TOKENS, window_tokens // 4),
            consolidation_output_tokens=min(CONSOLIDATION_OUTPUT_TOKENS, window_tokens // 3),
            max_memory_bytes=max_memory_bytes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Where the memory is, and what was asked of it."""

    applied_position: int
    #: A consolidation is wanted once everything up to here is read.
    consolidate_position: int | None
    #: Size of the memory after its last consolidation; 0 when there was none.
    consolidated_tokens: int
    #: A proposal of the next step found no room, and a consolidation may make some.
    crowded: bool = False


def budget_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns how large a memory may be before it is consolidated: then that must still fit.

    The limit of bytes counts as so many tokens as the memory has for so many bytes.
    """
    wanted = spec.memory_tokens or bounds.window_tokens // 2
    budget = max(min(wanted, consolidation_tokens(bounds)), 0)
    # Bytes are known already; to count tokens takes time.
    if not _nears_limit(memory, bounds):
        return budget
    most_bytes = BYTE_SHARE * bounds.max_memory_bytes
    return min(budget, int(memory.live_tokens * most_bytes / memory.live_bytes))


def _nears_limit(memory: PrismMemory, bounds: StepBounds) -> bool:
    return memory.live_bytes > BYTE_SHARE * bounds.max_memory_bytes


def may_make_room(memory: PrismMemory, consolidated_tokens: int) -> bool:
    """Returns whether a consolidation is worth a try before a proposal is lost.

    Not again until the memory has grown: one that makes nothing shorter is not repeated.
    """
    return memory.live_tokens > LAST_REGROWTH * consolidated_tokens


def focus_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int | None:
    """Returns what a step is shown of a memory that is too large for it; None: all of it.

    At most half of what prompts have room for, so that there is as much for the text.
    """
    if spec.steps is StepScope.WHOLE:
        return None
    budget = budget_tokens(spec, memory, bounds)
    return min(budget, _free_tokens(bounds) // 2) if memory.live_tokens > budget else None


def _free_tokens(bounds: StepBounds) -> int:
    taken = bounds.task_tokens + bounds.step_output_tokens + MARGIN_TOKENS
    return bounds.window_tokens - taken


def room_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns what a step may read beside the memory; negative if the memory does not fit."""
    focus = focus_tokens(spec, memory, bounds)
    return _free_tokens(bounds) - (memory.shown_tokens if focus is None else focus)


def consolidation_tokens(bounds: StepBounds) -> int:
    """Returns what a consolidation can be shown of a memory at once."""
    taken = bounds.task_tokens + bounds.consolidation_output_tokens + MARGIN_TOKENS
    return bounds.window_tokens - taken


def part_tokens(memory: PrismMemory, room_tokens: int, output_tokens: int) -> int:
    """Returns what of its room a consolidation is shown at once, by what a reply may have."""
    return min(entry_tokens(memory, room_tokens), PART_REPLIES * output_tokens)


def entry_tokens(memory: PrismMemory, room_tokens: int) -> int:
    """Returns the tokens of entries that fill a prompt's room, as the memory counts them."""
    is_estimate = memory.count is estimate_tokens
    return int(ESTIMATE_SHARE * room_tokens) if is_estimate else room_tokens


def goal_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns what a consolidated memory should have at most.

    One that may pass its budget is only made shorter where it can be without a loss, until the
    limit of bytes comes near.
    """
    budget = budget_tokens(spec, memory, bounds)
    if spec.steps is StepScope.WHOLE or memory.live_tokens <= budget:
        return budget
    share = min(BYTE_SHARE * bounds.max_memory_bytes / memory.live_bytes, 1)
    return int(share * memory.live_tokens)


def group_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns the most tokens that the chunks of a step have together."""
    return min(spec.chunk_tokens, room_tokens(spec, memory, bounds))


def piece_tokens(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns what is read at once of a chunk that is larger than that."""
    return min(max(spec.chunk_tokens, MIN_CHUNK_TOKENS), room_tokens(spec, memory, bounds))


def next_need(spec: PrismSpec, memory: PrismMemory, bounds: StepBounds, wish: Wish) -> Need:
    """Decides what the memory needs now.

    It depends on stored rows, the spec and the model only, so that a replay folds and
    consolidates at the same places.
    """
    if wish.crowded:
        return Need.CONSOLIDATION
    if memory.amendment_tokens > spec.fold_tokens:
        return Need.FOLD
    budget = budget_tokens(spec, memory, bounds)
    focused = focus_tokens(spec, memory, bounds) is not None
    if (memory.shown_tokens > budget and not focused) or _nears_limit(memory, bounds):
        if (
            memory.amendment_tokens
            and not focused
            and memory.shown_tokens - memory.live_tokens > FOLD_GAIN * budget
        ):
            return Need.FOLD
        if memory.live_tokens > max(budget, REGROWTH * wish.consolidated_tokens):
            return Need.CONSOLIDATION
    if wish.consolidate_position is not None and wish.consolidate_position <= wish.applied_position:
        return Need.CONSOLIDATION
    if room_tokens(spec, memory, bounds) >= MIN_CHUNK_TOKENS:
        return Need.STEP
    if memory.amendment_tokens:
        return Need.FOLD
    if memory.live_tokens > wish.consolidated_tokens:
        return Need.CONSOLIDATION
    return Need.ROOM


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedChunk:
    """A chunk with the tokens of its text."""

    logged: LoggedChunk
    tokens: int

    @classmethod
    def of(cls, logged: LoggedChunk, count: Callable[[str], int]) -> "SizedChunk":
        """Counts the tokens of a chunk."""
        return cls(logged=logged, tokens=count(logged.chunk.as_text()))

    @property
    def position(self) -> int:
        """Its place in the log."""
        return self.logged.position


def most_step_tokens(
    spec: PrismSpec,
    memory: PrismMemory,
    bounds: StepBounds,
    group: Sequence[SizedChunk],
    max_tokens: int,
) -> int:
    """Returns what the reply to a step may have where its first bound was too small.

    The group is read at once, or in pieces of `max_tokens` when it is one large chunk.
    """
    tokens = sum(one.tokens for one in group)
    read = tokens if len(group) > 1 else min(tokens, max_tokens)
    return _grown(bounds.step_output_tokens, room_tokens(spec, memory, bounds) - read)


def most_consolidation_tokens(memory: PrismMemory, bounds: StepBounds) -> int:
    """Returns the same of the reply to a consolidation."""
    first, room = bounds.consolidation_output_tokens, consolidation_tokens(bounds)
    return _grown(first, room - min(memory.live_tokens, part_tokens(memory, room, first)))


def _grown(tokens: int, spare: int) -> int:
    return tokens + max(min(spare, (GROWTH - 1) * tokens), 0)


def read_group(chunks: Sequence[SizedChunk], max_tokens: int) -> tuple[Sequence[SizedChunk], bool]:
    """Returns the leading chunks that make one step, and whether no other chunk would fit.

    As many as have `max_tokens` together, and at least one, however large it is.
    """
    total = 0
    for number, one in enumerate(chunks):
        total += one.tokens
        if number and total > max_tokens:
            return chunks[:number], True
    return chunks, total >= max_tokens


def parts(
    group: Sequence[SizedChunk], max_tokens: int, count: Callable[[str], int]
) -> Sequence[Sequence[LoggedChunk]]:
    """Returns what each model call of a step reads: the group, or one large chunk in pieces.

    Leaves out what is withheld; something is not.
    """
    read = [one for one in group if one.logged.is_read]
    first = read[0]
    if len(read) > 1 or first.tokens <= max_tokens:
        return [[one.logged for one in read]]
    return [[piece] for piece in pieces(first.logged, max_tokens, count)]


def pieces(
    logged: LoggedChunk, max_tokens: int, count: Callable[[str], int]
) -> Sequence[LoggedChunk]:
    """Splits a chunk into pieces of its text, each with `max_tokens` at most."""
    texts = split(logged.chunk.as_text(), max_tokens, count)
    return [replace(logged, chunk=Chunk(kind=ChunkKind.TEXT, text=text)) for text in texts]
