"""What is predicted to be cached of a prompt, and how its tokens are counted."""

import asyncio
from dataclasses import replace
from itertools import accumulate
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from service.domain.calls.prefix_index import Prefix, Sent
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import calibrated, expected_tokens, prefix_of
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger, Script, gateway, make_ask


async def test_the_prompt_before_is_predicted_to_be_cached() -> None:
    ledger, index = Ledger(), DictIndex()
    calls = gateway(Script(["", "", ""]), ledger, index, [])
    for number, texts in enumerate((("a" * 400,), ("a" * 400, "b" * 80), ("c",))):
        scope = replace(SCOPE, occasion=f"revise:{number}:1")
        await calls.call(make_ask(*texts), model="m/x", scope=scope)
    assert [call.predicted_cached_tokens for call in ledger.calls] == [0, 100, 0]


TEXTS = st.lists(st.sampled_from(["aaaa", "bbbb", "cccccccc"]), min_size=1, max_size=8)


@given(TEXTS, TEXTS)
def test_a_prediction_is_the_length_of_the_common_prefix(sent: list[str], now: list[str]) -> None:
    def prefix(texts: list[str], tenant: UUID = SCOPE.tenant_id, model: str = "m") -> Prefix:
        return prefix_of(
            make_ask(*texts).segments, model=model, tenant_id=tenant, owner_id=SCOPE.owner_id
        )

    async def check() -> None:
        index, before = DictIndex(), prefix(sent)
        router = Router((), index, lambda _: BRIEF, clock=lambda: 1000.0)

        async def predicted(now: Prefix, model: str = "m") -> int:
            return (await router.choose(now, model)).predicted_tokens

        await index.sent(
            Sent(
                memory_key=before.memory_key,
                group_key=before.group_key,
                boundaries=tuple(zip(before.ids, before.tokens, strict=True)),
                with_group=True,
                deployment="m",
                now=1000.0,
                ttl_seconds=1,
            )
        )
        common = 0
        for one, other in zip(sent, now, strict=False):
            if one != other:
                break
            common += len(one) // 4
        assert await predicted(prefix(now)) == common
        assert await predicted(prefix(now, tenant=uuid4())) == 0
        assert await predicted(prefix(now, model="other")) == 0
        assert await predicted(prefix(now), "elsewhere") == 0

    asyncio.run(check())


def test_segments_are_distinguished_by_their_last_character() -> None:
    def ids(*texts: str) -> tuple[bytes, ...]:
        tenant, owner = SCOPE.tenant_id, SCOPE.owner_id
        segments = make_ask(*texts).segments
        return prefix_of(segments, model="m", tenant_id=tenant, owner_id=owner).ids

    long = "x" * 100_000
    assert ids(long) == ids(long) != ids(long + "x")
    assert ids(long, "a")[0] == ids(long, "b")[0]


def test_predictions_respect_the_providers_minimum_and_granularity() -> None:
    coarse = replace(BRIEF, granularity_tokens=128, min_tokens=1024)
    assert [expected_tokens(tokens, coarse) for tokens in (0, 1023, 1024, 1151, 1152)] == [
        0,
        0,
        1024,
        1024,
        1152,
    ]


def counted(*tokens: int) -> Prefix:
    ids = tuple(b"%08d" % number for number in range(len(tokens)))
    return Prefix(memory_key="m", group_key="g", ids=ids, tokens=tokens)


def test_counts_are_what_the_provider_counts_on_average() -> None:
    found = calibrated(
        counted(100, 300), rest=["x" * 400], input_tokens=800, warm_segments=0, warm_tokens=0
    )
    assert found == (200, 600)
    wild = calibrated(counted(100), rest=[], input_tokens=100_000, warm_segments=0, warm_tokens=0)
    assert wild == (400,)


def test_up_to_the_boundary_that_was_read_counts_stay_as_they_were() -> None:
    found = calibrated(
        counted(100, 300, 340), rest=["x" * 240], input_tokens=800, warm_segments=2, warm_tokens=330
    )
    assert found == (110, 330, 330 + 80)
    assert calibrated(counted(), rest=[], input_tokens=5, warm_segments=0, warm_tokens=0) == ()


@given(st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 50_000), st.integers(0, 8))
def test_counts_never_fall_with_depth(sizes: list[int], total: int, warm: int) -> None:
    tokens = tuple(accumulate(sizes))
    found = calibrated(
        counted(*tokens), rest=["y"], input_tokens=total, warm_segments=warm, warm_tokens=77 * warm
    )
    assert list(found) == sorted(found)
    assert len(found) == len(tokens)
