"""Renderers: the same text for every family, and marks only where they pay."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.prices import Prices
from service.llm.providers.renderers import (
    LATEST_BLOCKS,
    MAX_BLOCKS,
    cache_key_of,
    kept_ends,
    plan_marks,
    render,
)
from service.settings.config import Config

TENANT, OWNER = UUID(int=1), UUID(int=2)
PRICES = Prices(Config())
CLAUDE = "anthropic/claude-sonnet-4-5"
ANTHROPIC = replace(PRICES.of(CLAUDE), min_tokens=0)
KEY = cache_key_of("t:m")
LONG = "word " * 400


def task(text: str = LONG) -> Segment:
    return Segment(kind=SegmentKind.TASK, text=text)


def base(text: str = LONG, *, lasting: bool = True) -> Segment:
    return Segment(kind=SegmentKind.BASE, text=text, lasting=lasting)


def batch(number: int) -> Segment:
    return Segment(kind=SegmentKind.AMENDMENTS, text=f"amendment {number}\n")


CHUNK = Segment(kind=SegmentKind.CHUNK, text="the chunk", reusable=False)


def ask(*segments: Segment, purpose: Purpose = Purpose.REVISE) -> ModelRequest:
    return ModelRequest(
        purpose=purpose,
        template="t/1",
        segments=(*segments, CHUNK),
        max_output_tokens=10,
    )


def step(batches: int) -> ModelRequest:
    return ask(task(), base(), *(batch(number) for number in range(batches)))


def prefix(one: ModelRequest) -> Prefix:
    return prefix_of(one.segments, model="m", tenant_id=TENANT, owner_id=OWNER)


def marks(
    one: ModelRequest,
    prices: ModelPrices = ANTHROPIC,
    *,
    after: ModelRequest | None = None,
) -> tuple[int, ...]:
    """Returns the marks of a prompt, after another that left what it marked."""
    warm = 0
    if after is not None:
        ids = prefix(after).ids
        kept = {ids[at] for at in kept_ends(prefix(after), marks(after, prices), prices)}
        warm = max((at + 1 for at, own in enumerate(prefix(one).ids) if own in kept), default=0)
    return plan_marks(one, prefix(one), prices, warm)


def content(one: ModelRequest, at: tuple[int, ...], model: str, prices: ModelPrices) -> Any:
    arguments = render(one.segments, at, cache_key=KEY, model=model, prices=prices)
    return arguments["messages"][0]["content"]


def test_a_step_is_marked_at_its_four_ends() -> None:
    assert marks(step(3)) == (0, 1, 3, 4)
    # The end of the step before is the one that is read.
    assert marks(step(4), after=step(3)) == (0, 1, 4, 5)


def test_the_first_steps_have_fewer_ends() -> None:
    assert marks(step(0)) == (0, 1)
    assert marks(step(1), after=step(0)) == (0, 1, 2)


def test_a_step_that_adds_thirty_batches_still_marks_the_end_before_it() -> None:
    # Anthropic looks back 20 blocks only: without a mark of its own it would not be found.
    assert marks(step(35), after=step(5)) == (0, 1, 6, 36)


def test_the_chunk_and_what_is_behind_it_are_never_marked() -> None:
    behind = Segment(kind=SegmentKind.AMENDMENTS, text="late", reusable=True)
    one = replace(step(2), segments=(*step(2).segments, behind))
    assert max(marks(one)) == 3


def test_short_prefixes_are_not_marked() -> None:
    prices = replace(ANTHROPIC, min_tokens=700)
    assert marks(step(3), prices) == (1, 3, 4), "the task has 500 tokens"
    assert marks(step(3), replace(ANTHROPIC, min_tokens=2000)) == ()


@pytest.mark.parametrize(
    ("read", "write", "marked"),
    [
        (0.1, 1.25, (0, 1, 3, 4)),
        (0.1, 1.0, (0, 1, 3, 4)),
        # Kept for an hour at twice the price: one reuse does not pay for it.
        (0.1, 2.0, ()),
        # Reading from the cache saves nothing.
        (1.0, 1.0, ()),
    ],
)
def test_a_mark_must_pay(read: float, write: float, marked: tuple[int, ...]) -> None:
    assert marks(step(3), replace(ANTHROPIC, read=read, write=write)) == marked


def test_the_longer_lifetime_pays_where_an_operator_asks_for_it() -> None:
    hour = replace(ANTHROPIC, write=2.0, ttl_seconds=3600, mark_ttl="1h")
    assert marks(step(3), hour) == (0, 1, 3, 4)
    assert marks(step(3), replace(hour, write=4.0)) == (), "not at any price"


def test_what_is_warm_is_read_even_where_writing_does_not_pay() -> None:
    prices = replace(ANTHROPIC, write=2.0)
    one = step(4)
    assert plan_marks(one, prefix(one), prices, warm_segments=5) == (0, 1, 4)


@pytest.mark.parametrize("purpose", [Purpose.ANSWER, Purpose.CONSOLIDATE, Purpose.SCHEMA])
def test_prompts_that_are_made_once_keep_what_all_share_only(purpose: Purpose) -> None:
    assert marks(replace(step(3), purpose=purpose)) == (0,)


def test_a_memory_that_is_rewritten_each_time_is_not_marked() -> None:
    assert marks(ask(task(), base(lasting=False))) == (0,)


def test_a_provider_with_fewer_marks_gets_the_most_useful_ones() -> None:
    found = [marks(step(3), replace(ANTHROPIC, max_marks=number)) for number in (1, 2, 3)]
    assert found == [(4,), (3, 4), (0, 3, 4)]


@pytest.mark.parametrize("family", [CacheFamily.KEYED, CacheFamily.PLAIN])
def test_other_families_have_no_marks(family: CacheFamily) -> None:
    prices = replace(ANTHROPIC, family=family, max_marks=0)
    assert marks(step(3), prices) == ()
    assert kept_ends(prefix(step(3)), (), prices) == (0, 1, 2, 3, 4)


def test_a_provider_keeps_what_is_marked() -> None:
    assert kept_ends(prefix(step(3)), (4, 0), ANTHROPIC) == (0, 4)


COUNTS = st.integers(0, 60)


@given(COUNTS, COUNTS)
def test_marks_are_few_ascending_and_deterministic(before: int, count: int) -> None:
    one = step(count)
    found = marks(one, after=step(before))
    assert found == marks(one, after=step(before))
    assert list(found) == sorted(set(found))
    assert len(found) <= 4
    assert all(one.segments[at].reusable for at in found)
    assert count + 1 in found, "the end that the next step reads"
    if before <= count:
        assert before + 1 in found, "the end that the step before wrote"


def test_an_explicit_prompt_has_a_block_for_each_segment() -> None:
    one = step(2)
    blocks = content(one, (0, 3), CLAUDE, ANTHROPIC)
    assert [block["text"] for block in blocks] == [segment.text for segment in one.segments]
    marked = [block.get("cache_control") for block in blocks]
    assert marked == [{"type": "ephemeral"}, None, None, {"type": "ephemeral"}, None]
    assert all(set(block) <= {"type", "text", "cache_control"} for block in blocks)


def test_openais_breakpoints_are_explicit_also_where_there_are_none() -> None:
    model = "openai/gpt-5.6"
    for at in ((0, 3), ()):
        arguments = render(
            step(2).segments, at, cache_key=KEY, model=model, prices=PRICES.of(model)
        )
        blocks = arguments["messages"][0]["content"]
        assert [n for n, block in enumerate(blocks) if "prompt_cache_breakpoint" in block] == [*at]
        assert arguments["extra_body"] == {
            "prompt_cache_key": KEY,
            "prompt_cache_options": {"mode": "explicit"},
        }


@pytest.mark.parametrize(
    ("model", "extra"),
    [
        ("openai/gpt-4o", {"prompt_cache_key": KEY}),
        ("hosted_vllm/x", None),
        ("deepseek/deepseek-chat", None),
    ],
)
def test_other_prompts_are_one_text(model: str, extra: dict[str, str] | None) -> None:
    arguments = render(step(2).segments, (), cache_key=KEY, model=model, prices=PRICES.of(model))
    assert arguments["messages"] == [{"role": "user", "content": step(2).text}]
    assert arguments.get("extra_body") == extra


def test_a_cache_key_distinguishes_memories_and_names_none() -> None:
    keys = {cache_key_of(f"{TENANT}:{UUID(int=number)}") for number in range(3)}
    assert len(keys) == 3
    assert all(len(key) == 32 and str(TENANT) not in key for key in keys)
    assert cache_key_of("t:m") == KEY


TEXTS = st.lists(st.sampled_from(["a", "b\n", " ", "", "c d"]), min_size=1, max_size=12)


@given(TEXTS, st.sets(st.integers(0, 11)))
def test_every_family_shows_the_same_text(texts: list[str], at: set[int]) -> None:
    one = ask(*(Segment(kind=SegmentKind.BASE, text=text) for text in texts))
    at = {number for number in at if number < len(texts)}
    for model in (CLAUDE, "openai/gpt-5.6"):
        blocks = content(one, tuple(at), model, PRICES.of(model))
        assert "".join(block["text"] for block in blocks) == one.text
        assert all(block["text"].strip() for block in blocks[1:]), "some refuse a blank block"
        assert len(blocks) <= len(one.segments)
    assert content(one, (), "x/y", PRICES.of("x/y")) == one.text


@given(TEXTS, TEXTS, st.sets(st.integers(0, 23)))
def test_a_system_message_moves_neither_text_nor_marks(
    told: list[str], texts: list[str], at: set[int]
) -> None:
    tasks = [task(text) for text in told]
    one = ask(*tasks, *(Segment(kind=SegmentKind.BASE, text=text) for text in texts))
    at = {number for number in at if number < len(one.segments)}

    def marked(*, system: bool) -> tuple[str, list[str], list[str]]:
        rendered = render(
            one.segments, at, cache_key=KEY, model=CLAUDE, prices=ANTHROPIC, system=system
        )
        text, ends, roles = "", [], []
        for message in rendered["messages"]:
            roles.append(message["role"])
            for block in message["content"]:
                text += block["text"]
                if "cache_control" in block:
                    ends.append(text.rstrip())
        return text, ends, roles

    text, _, roles = marked(system=False)
    assert (text, roles) == (one.text, ["user"])
    text, ends, roles = marked(system=True)
    has_told = any(one.strip() for one in told)
    assert roles == (["system", "user"] if has_told else ["user"])
    assert text == one.text
    assert len(ends) <= len(at)
    plain = render(
        one.segments, at, cache_key=KEY, model="x/y", prices=PRICES.of("x/y"), system=True
    )
    assert "".join(message["content"] for message in plain["messages"]) == one.text
    if has_told:
        assert plain["messages"][0]["content"] == "".join(told)


def test_instructions_alone_are_a_users_message() -> None:
    # Anthropic and Bedrock refuse a prompt without one.
    arguments = render([task()], (), cache_key="", model="x/y", prices=ANTHROPIC, system=True)
    assert [message["role"] for message in arguments["messages"]] == ["user"]


def test_marks_in_the_system_message_stand_where_they_stood() -> None:
    one = step(2)
    rendered = render(
        one.segments, (0, 1, 3), cache_key=KEY, model=CLAUDE, prices=ANTHROPIC, system=True
    )
    system, user = rendered["messages"]
    assert ["cache_control" in block for block in system["content"]] == [True]
    assert ["cache_control" in block for block in user["content"]] == [True, False, True, False]


def test_many_batches_are_joined_but_never_across_a_mark() -> None:
    one = step(5000)
    blocks = content(one, (0, 1, 1000, 5001), CLAUDE, ANTHROPIC)
    assert "".join(block["text"] for block in blocks) == one.text
    assert len(blocks) <= MAX_BLOCKS + 4
    marked = [n for n, block in enumerate(blocks) if "cache_control" in block]
    ends = ["".join(block["text"] for block in blocks[: n + 1]) for n in marked]
    assert ends == [
        "".join(segment.text for segment in one.segments[: at + 1]) for at in (0, 1, 1000, 5001)
    ]
    assert len(content(step(300), (0,), CLAUDE, ANTHROPIC)) == 303


def test_blocks_stay_as_they_are_while_batches_are_added() -> None:
    def texts(count: int) -> list[str]:
        return [block["text"] for block in content(step(count), (), CLAUDE, ANTHROPIC)]

    changes = 0
    before = texts(600)
    for count in range(601, 601 + LATEST_BLOCKS):
        now = texts(count)
        changes += now[: len(before) - 1] != before[:-1]
        before = now
    # Once for each run that is joined anew, far before the end that is read.
    assert changes <= LATEST_BLOCKS // 2 + 1
