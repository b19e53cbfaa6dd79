"""Renders prompts for each family of providers, and plans the marks for their caches.

A model sees the same text in every family; only the marks differ. All marks are ours: litellm adds
none.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any

from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.spend.prices import CacheFamily, ModelPrices

#: About how many content blocks a prompt has; beyond it older batches of amendments are joined.
MAX_BLOCKS = 512
#: The newest segments, which are never joined, as each may have or have had a mark. Anthropic looks
#: back 20 blocks from a mark.
LATEST_BLOCKS = 128
#: Bytes of the key by which a provider finds a memory's prompts.
CACHE_KEY_BYTES = 16

#: How many prompts with the same memory are expected while it is cached, by purpose. A step is
#: followed by the next; an answer has other instructions before its memory.
_OWN_REUSES = {Purpose.REVISE: 1}
#: The same for task and schema, which other memories and later prompts share.
_TASK_REUSES = 1
#: How many times as many if an operator has a prefix cached for an hour.
LONG_REUSES = 2
#: OpenAI's models by their names, wherever they are served.
_OPENAI_NAME = re.compile(r"(?:^|[/.])(?:gpt-|o\d)")


def render(
    segments: Sequence[Segment],
    marks: Collection[int],
    *,
    cache_key: str,
    model: str,
    prices: ModelPrices,
    system: bool = False,
) -> dict[str, Any]:
    """Returns litellm's arguments for a prompt: `messages`, and `extra_body` if needed.

    `marks`: the numbers of the segments whose ends are marked, from 0. `cache_key`: by what the
    provider may find the memory's prompts; empty for nothing. With `system` the instructions are a
    system message, which no text from outside can imitate.
    """
    split = _instructions(segments) if system else 0
    body: dict[str, Any] = {}
    if prices.family is CacheFamily.EXPLICIT:
        mark: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
        if prices.mark_ttl:
            mark["cache_control"]["ttl"] = prices.mark_ttl
        if _OPENAI_NAME.search(model):
            # Explicit also without a mark: otherwise the provider writes the whole prompt, whose
            # end is never reused.
            mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
            body = {**_key(cache_key), "prompt_cache_options": {"mode": "explicit"}}
        first: object = _blocks(segments, marks, mark, stop=split)
        rest: object = _blocks(segments, marks, mark, start=split)
    else:
        first = "".join(segment.text for segment in segments[:split])
        rest = "".join(segment.text for segment in segments[split:])
        body = _key(cache_key) if prices.family is CacheFamily.KEYED else {}
    messages = [{"role": "user", "content": rest}]
    if split:
        messages.insert(0, {"role": "system", "content": first})
    return {"messages": messages, **({"extra_body": body} if body else {})}


def _instructions(segments: Sequence[Segment]) -> int:
    """Returns how many of the first segments are instructions; 0 if there is nothing else.

    Anthropic and Bedrock refuse a prompt without a user message.
    """
    count = len(list(takewhile(lambda one: one.kind is SegmentKind.TASK, segments)))
    has_text = any(one.text.strip() for one in segments[:count])
    has_rest = any(one.text.strip() for one in segments[count:])
    return count if has_text and has_rest else 0


def cache_key_of(memory_key: str) -> str:
    """Returns a stable key of a memory for a provider, without names."""
    return hashlib.blake2b(memory_key.encode(), digest_size=CACHE_KEY_BYTES).hexdigest()


def plan_marks(
    ask: ModelRequest,
    prefix: Prefix,
    prices: ModelPrices,
    warm_segments: int,
    *,
    shared_segments: int = 0,
) -> tuple[int, ...]:
    """Returns the segments whose ends are marked, ascending; none for families without marks.

    `warm_segments`: how many the provider should have. Only the deepest mark costs something; other
    prompts can begin at those before it. `shared_segments`: how many other calls wait for.
    """
    if prices.max_marks == 0 or prices.read >= 1:
        return ()
    long_enough = [at for at, tokens in enumerate(prefix.tokens) if tokens >= prices.min_tokens]
    task = _end_of(ask.segments, SegmentKind.TASK, prefix)
    read = min(warm_segments, len(prefix.ids)) - 1 if warm_segments > 0 else None
    write = _paid_end(ask, prefix, prices, task)
    if shared_segments and (write is None or write < shared_segments - 1):
        write = shared_segments - 1
    deepest = max((at for at in (read, write) if at is not None), default=-1)
    base = _end_of(ask.segments, SegmentKind.BASE, prefix)
    previous = read if read is not None else _before_latest(ask.segments, prefix)
    # The most important first, as a provider may accept fewer marks.
    wanted = dict.fromkeys(
        at
        for at in (write, previous, task, base)
        if at is not None and at <= deepest and at in long_enough
    )
    return tuple(sorted(list(wanted)[: prices.max_marks]))


def kept_ends(prefix: Prefix, marks: Collection[int], prices: ModelPrices) -> tuple[int, ...]:
    """Returns the segments of `prefix` at whose ends a provider can reuse it, ascending.

    In a family with marks these are the marked ones, else all.
    """
    ends = range(len(prefix.ids))
    if prices.family is not CacheFamily.EXPLICIT:
        return tuple(ends)
    return tuple(at for at in ends if at in marks)


def _paid_end(
    ask: ModelRequest, prefix: Prefix, prices: ModelPrices, task: int | None
) -> int | None:
    """Returns the deepest end that is worth the price of writing it."""
    enough = (prices.write - 1) / (1 - prices.read)
    # A request for the longer lifetime expects more calls within it.
    often = LONG_REUSES if prices.mark_ttl else 1
    own = often * _OWN_REUSES.get(ask.purpose, 0)
    own_segments = ask.segments[: len(prefix.ids)]
    # How many of the first segments the next prompt should have, too.
    lasting = len(list(takewhile(lambda one: one.lasting, own_segments)))
    if lasting and own > enough:
        return lasting - 1
    return task if enough < often * _TASK_REUSES else None


def _end_of(segments: Sequence[Segment], kind: SegmentKind, prefix: Prefix) -> int | None:
    ends = [at for at, one in enumerate(segments[: len(prefix.ids)]) if one.kind is kind]
    return ends[-1] if ends else None


def _before_latest(segments: Sequence[Segment], prefix: Prefix) -> int | None:
    """Returns where the previous prompt most likely ended: one batch of amendments earlier."""
    latest = len(prefix.ids) - 1
    is_batch = latest > 0 and segments[latest].kind is SegmentKind.AMENDMENTS
    return latest - 1 if is_batch else None


def _key(cache_key: str) -> dict[str, Any]:
    return {"prompt_cache_key": cache_key} if cache_key else {}


def _blocks(
    segments: Sequence[Segment],
    marks: Collection[int],
    mark: dict[str, Any],
    *,
    start: int = 0,
    stop: int | None = None,
) -> list[dict[str, Any]]:
    """Returns a block for each segment, except where many are joined; a mark ends its block."""
    joined, run = _joined(len(segments))
    blocks: list[dict[str, Any]] = []
    goes_on = False
    for at, segment in list(enumerate(segments))[start:stop]:
        goes_on = goes_on and at < joined and at % run != 0
        # Some providers refuse a blank block: such a segment joins another.
        has_text = blocks and blocks[-1]["text"].strip() and segment.text.strip()
        if not blocks or (has_text and not goes_on):
            blocks.append({"type": "text", "text": ""})
        blocks[-1]["text"] += segment.text
        if at in marks:
            # Copies, as litellm's adapters change their arguments.
            blocks[-1] |= {name: dict(value) for name, value in mark.items()}
        goes_on = at not in marks
    return blocks


def _joined(count: int) -> tuple[int, int]:
    """Returns how many of the first segments are joined, and in runs of how many.

    Runs are counted from the beginning, so joined blocks stay the same while segments are added,
    until their number has doubled.
    """
    run = 1
    while count / run > MAX_BLOCKS - LATEST_BLOCKS:
        run *= 2
    return (0, 1) if run == 1 else ((count - LATEST_BLOCKS) // run * run, run)
