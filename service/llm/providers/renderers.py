"""Renderers: a prompt as each family of providers takes it, and where the marks stand.

Pure functions. The text that a model sees is the same in every family; only the marks
for its cache differ. All marks are ours: litellm adds none beside them.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any

from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.spend.prices import CacheFamily, ModelPrices

#: Content blocks of a prompt, about; older batches of amendments are joined beyond it.
MAX_BLOCKS = 512
#: The newest segments, which are never joined: a mark may stand or have stood at each.
#: More than the 20 blocks that Anthropic looks back from a mark.
LATEST_BLOCKS = 128
#: Bytes of the key that a memory's prompts are found by.
CACHE_KEY_BYTES = 16

#: How often a prompt of a purpose is expected to be followed, while the cache keeps it, by
#: one that begins with the same memory. A step is followed by the next one; an answer's
#: memory stands behind other instructions than a step's.
_OWN_REUSES = {Purpose.REVISE: 1}
#: The same for task and schema: other memories and later prompts have them too.
_TASK_REUSES = 1
#: How many times as often while a prefix is kept for an hour, because an operator asked for it.
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
    """litellm's arguments for a prompt: `messages`, and `extra_body` where there is need.

    `marks` are the numbers of the segments whose ends are marked, from 0. `cache_key` is
    what the provider may find the memory's prompts by; empty for nothing. With `system` the
    instructions, which no text from outside can imitate then, are a system message.
    """
    told = _instructions(segments) if system else 0
    body: dict[str, Any] = {}
    if prices.family is CacheFamily.EXPLICIT:
        mark: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
        if prices.mark_ttl:
            mark["cache_control"]["ttl"] = prices.mark_ttl
        if _OPENAI_NAME.search(model):
            # In explicit mode also without a mark: left to itself the provider writes the
            # whole prompt, which ends with what never comes again.
            mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
            body = {**_key(cache_key), "prompt_cache_options": {"mode": "explicit"}}
        first: object = _blocks(segments, marks, mark, stop=told)
        rest: object = _blocks(segments, marks, mark, start=told)
    else:
        first = "".join(segment.text for segment in segments[:told])
        rest = "".join(segment.text for segment in segments[told:])
        body = _key(cache_key) if prices.family is CacheFamily.KEYED else {}
    messages = [{"role": "user", "content": rest}]
    if told:
        messages.insert(0, {"role": "system", "content": first})
    return {"messages": messages, **({"extra_body": body} if body else {})}


def _instructions(segments: Sequence[Segment]) -> int:
    """How many of the first segments are instructions; 0 where nothing else is there.

    Anthropic and Bedrock refuse a prompt without a user's message.
    """
    count = 0
    while count < len(segments) and segments[count].kind is SegmentKind.TASK:
        count += 1
    has_text = any(one.text.strip() for one in segments[:count])
    has_rest = any(one.text.strip() for one in segments[count:])
    return count if has_text and has_rest else 0


def cache_key_of(memory_key: str) -> str:
    """What a provider knows a memory by: stable, and no name of anything."""
    return hashlib.blake2b(memory_key.encode(), digest_size=CACHE_KEY_BYTES).hexdigest()


def plan_marks(
    ask: ModelRequest,
    prefix: Prefix,
    prices: ModelPrices,
    warm_segments: int,
    *,
    last: bool = False,
    shared_segments: int = 0,
) -> tuple[int, ...]:
    """The segments whose ends carry a mark, ascending; none for families without marks.

    `warm_segments` are those that the provider should have. The deepest mark is what
    is paid for; those before it cost nothing, and are what other prompts can begin with.
    With `last` nothing is expected to follow, so nothing of the memory is written.
    `shared_segments` are those that other calls wait for.
    """
    if prices.max_marks == 0 or prices.read >= 1:
        return ()
    long_enough = [at for at, tokens in enumerate(prefix.tokens) if tokens >= prices.min_tokens]
    task = _end_of(ask.segments, SegmentKind.TASK, prefix)
    read = min(warm_segments, len(prefix.ids)) - 1 if warm_segments > 0 else None
    write = _paid_end(ask, prefix, prices, task, last=last)
    if shared_segments and (write is None or write < shared_segments - 1):
        write = shared_segments - 1
    deepest = max((at for at in (read, write) if at is not None), default=-1)
    base = _end_of(ask.segments, SegmentKind.BASE, prefix)
    previous = read if read is not None else _before_latest(ask.segments, prefix)
    # In this order, when a provider takes fewer marks than we have ends.
    wanted = dict.fromkeys(
        at
        for at in (write, previous, task, base)
        if at is not None and at <= deepest and at in long_enough
    )
    return tuple(sorted(list(wanted)[: prices.max_marks]))


def kept_ends(prefix: Prefix, marks: Collection[int], prices: ModelPrices) -> tuple[int, ...]:
    """The segments of `prefix` whose ends a provider can find again behind such a prompt.

    With marks only what ends at one of them; without, whatever was sent. Ascending.
    """
    ends = range(len(prefix.ids))
    if prices.family is not CacheFamily.EXPLICIT:
        return tuple(ends)
    return tuple(at for at in ends if at in marks)


def _paid_end(
    ask: ModelRequest, prefix: Prefix, prices: ModelPrices, task: int | None, *, last: bool
) -> int | None:
    """The deepest end that is worth the price of writing it."""
    enough = (prices.write - 1) / (1 - prices.read)
    # A request for the longer lifetime expects more calls within it.
    often = LONG_REUSES if prices.mark_ttl else 1
    own = 0 if last else often * _OWN_REUSES.get(ask.purpose, 0)
    lasting = _lasting(ask.segments[: len(prefix.ids)])
    if lasting and own > enough:
        return lasting - 1
    return task if enough < often * _TASK_REUSES else None


def _lasting(segments: Sequence[Segment]) -> int:
    """How many of the first segments the next prompt should have too."""
    for number, segment in enumerate(segments):
        if not segment.lasting:
            return number
    return len(segments)


def _end_of(segments: Sequence[Segment], kind: SegmentKind, prefix: Prefix) -> int | None:
    ends = [at for at, one in enumerate(segments[: len(prefix.ids)]) if one.kind is kind]
    return ends[-1] if ends else None


def _before_latest(segments: Sequence[Segment], prefix: Prefix) -> int | None:
    """Where the prompt before most likely ended: one batch of amendments earlier."""
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
    """A block each from `start` on, except where many are joined; none goes on behind a mark."""
    joined, run = _joined(len(segments))
    blocks: list[dict[str, Any]] = []
    goes_on = False
    for at, segment in list(enumerate(segments))[start:stop]:
        goes_on = goes_on and at < joined and at % run != 0
        # Some providers refuse a block without a letter: such a segment joins another.
        has_text = blocks and blocks[-1]["text"].strip() and segment.text.strip()
        if not blocks or (has_text and not goes_on):
            blocks.append({"type": "text", "text": ""})
        blocks[-1]["text"] += segment.text
        if at in marks:
            # A copy each: adapters of providers change what they are given.
            blocks[-1] |= {name: dict(value) for name, value in mark.items()}
        goes_on = at not in marks
    return blocks


def _joined(count: int) -> tuple[int, int]:
    """How many of the first segments are joined, and by how many.

    In whole runs counted from the beginning, so that what is joined stays as it is while
    segments are added, until their number has doubled.
    """
    run = 1
    while count / run > MAX_BLOCKS - LATEST_BLOCKS:
        run *= 2
    return (0, 1) if run == 1 else ((count - LATEST_BLOCKS) // run * run, run)
