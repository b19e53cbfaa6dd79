"""Which deployment gets a call: the cheapest, the owner's own one, and none that fails."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.calls.prefix_index import Prefix, Sent
from service.domain.spend.prices import ModelPrices
from service.llm.gateway.routing import (
    COOLDOWN_SECONDS,
    LEARNED_SECONDS,
    MAX_COOLDOWN_SECONDS,
    DeploymentCandidate,
    Router,
    pick,
)
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import Route
from service.settings.deployments import Deployment
from tests.support.fake_index import DictIndex
from tests.support.prices import PLAIN

MODEL = "openai/shared"
PRICES = replace(PLAIN, write=1.0, granularity_tokens=16)
BUSY = ModelFailure("busy", retryable=True)


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def deployments(count: int, **changes: Any) -> list[Deployment]:
    return [Deployment(name=f"deployment-{n}", model=MODEL, **changes) for n in range(count)]


def router(
    deployments: list[Deployment], index: DictIndex, clock: Clock, prices: ModelPrices = PRICES
) -> Router:
    return Router(deployments, index, lambda _: prices, clock=clock, monotonic=clock)


def prefix(owner: object = "m", tokens: tuple[int, ...] = (1000, 4000)) -> Prefix:
    ids = tuple(f"{owner}{number}".encode() for number in range(len(tokens)))
    return Prefix(memory_key=f"t:{owner}", group_key="t:g", ids=ids, tokens=tokens)


async def send(index: DictIndex, one: Prefix, deployment: str, now: float) -> None:
    await index.sent(
        Sent(
            memory_key=one.memory_key,
            group_key=one.group_key,
            boundaries=tuple(zip(one.ids, one.tokens, strict=True)),
            with_group=True,
            deployment=deployment,
            now=now,
            ttl_seconds=300,
        )
    )


async def where(chooser: Router, one: Prefix, model: str) -> Route:
    return await chooser.choose(one, model)


async def test_one_place_costs_one_look_and_no_name() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router([], index, clock)
    await send(index, prefix(), MODEL, clock.now - 30)
    route = await where(chooser, prefix(), MODEL)
    assert route == Route(
        predicted_tokens=4000,
        warm_segments=2,
        warm_tokens=4000,
        age_seconds=30.0,
        deepest_tokens=4000,
        deepest_age_seconds=30.0,
    )
    assert [(one.deployments, one.with_load) for one in index.questions] == [((MODEL,), False)]
    async with chooser.going(route, 5):
        assert index.queues == {}
    single = router(deployments(1), index, clock)
    route = await where(single, prefix(), MODEL)
    assert (route.deployment, route.spare, route.predicted_tokens) == ("deployment-0", 0, 0)
    async with single.going(route, 5):
        assert index.queues == {}
    other = await where(single, prefix(), "openai/other")
    assert other.deployment == ""


async def test_the_place_where_the_prompt_is_warm_is_taken() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(4), index, clock)
    for number in range(4):
        one = prefix(number)
        await send(index, one, f"deployment-{number}", clock.now)
        route = await where(chooser, one, MODEL)
        assert (route.deployment, route.predicted_tokens) == (f"deployment-{number}", 4000)
        assert (route.elsewhere_tokens, route.spare) == (0, 3)


async def test_deeper_is_better_and_what_is_elsewhere_is_reported() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2), index, clock)
    one = prefix()
    await send(
        index, replace(one, ids=one.ids[:1], tokens=one.tokens[:1]), "deployment-0", clock.now
    )
    await send(index, one, "deployment-1", clock.now)
    route = await where(chooser, one, MODEL)
    assert (route.deployment, route.predicted_tokens) == ("deployment-1", 4000)
    index.queues["deployment-1"] = 50_000
    route = await where(chooser, one, MODEL)
    assert (route.deployment, route.predicted_tokens) == ("deployment-0", 1000 - 1000 % 16)
    assert route.elsewhere_tokens == 4000


async def test_what_hardly_survives_is_worth_little() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2), index, clock)
    one = prefix()
    await send(index, one, "deployment-0", clock.now)
    await send(index, one, "deployment-1", clock.now - 250)
    assert (await where(chooser, one, MODEL)).deployment == "deployment-0"
    index.counts["deployment-0"] = [[0.0, 100.0]] * 6
    assert (await where(chooser, one, MODEL)).deployment == "deployment-0", "learned once"
    clock.now += LEARNED_SECONDS + 1
    assert (await where(chooser, one, MODEL)).deployment == "deployment-1"


async def test_what_outlived_its_time_is_worth_a_try_and_not_predicted() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(3), index, clock)
    for number in range(6):
        one = prefix(number)
        await send(index, one, "deployment-1", clock.now - 400)
        route = await where(chooser, one, MODEL)
        assert (route.deployment, route.predicted_tokens, route.warm_segments) == (
            "deployment-1",
            0,
            0,
        )
        assert (route.deepest_tokens, route.deepest_age_seconds) == (4000, 400.0)
        assert route.age_seconds is None


@pytest.mark.parametrize("known", [True, False])
async def test_processes_agree_on_the_owners_place_and_spread_owners(known: bool) -> None:
    index = DictIndex(known=known)
    counts = dict.fromkeys((one.name for one in deployments(4)), 0)
    for number in range(200):
        one = prefix(UUID(int=number))
        names = {
            (await where(router(deployments(4), index, Clock()), one, MODEL)).deployment
            for _ in range(3)
        }
        assert len(names) == 1
        counts[names.pop()] += 1
    assert all(25 <= count <= 80 for count in counts.values()), counts


async def test_a_place_less_moves_only_its_owners() -> None:
    index, clock = DictIndex(known=False), Clock()
    before, after = router(deployments(5), index, clock), router(deployments(4), index, clock)
    for number in range(100):
        one = prefix(UUID(int=number))
        was = (await where(before, one, MODEL)).deployment
        now = (await where(after, one, MODEL)).deployment
        assert was in {now, "deployment-4"}


async def test_cold_owners_leave_a_place_that_has_too_much_to_do() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2), index, clock)
    one = prefix()
    own = (await where(chooser, one, MODEL)).deployment
    index.queues[own] = 4000
    assert (await where(chooser, one, MODEL)).deployment == own, "one prompt more is no load"
    index.queues[own] = 40_000
    assert (await where(chooser, one, MODEL)).deployment != own


async def test_calls_under_way_count_and_bound() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2, max_in_flight=1), index, clock)
    one = prefix()
    first = await where(chooser, one, MODEL)
    async with chooser.going(first, 300):
        assert index.queues == {first.deployment: 300}
        second = await where(chooser, one, MODEL)
        assert second.deployment != first.deployment
        async with chooser.going(second, 20):
            assert index.queues == {first.deployment: 300, second.deployment: 20}
            third = await where(chooser, one, MODEL)
            assert third.deployment, "when all are full one is taken all the same"
    assert set(index.queues.values()) == {0}
    with pytest.raises(asyncio.CancelledError):
        async with chooser.going(first, 300):
            raise asyncio.CancelledError
    assert set(index.queues.values()) == {0}


async def test_a_call_that_is_cancelled_as_it_is_counted_does_not_count_on() -> None:
    class Slow(DictIndex):
        async def queued(self, deployment: str, tokens: int, now: float) -> None:
            if tokens:
                raise asyncio.CancelledError
            await super().queued(deployment, tokens, now)

    chooser = router(deployments(2, max_in_flight=1), Slow(), Clock())
    first = await where(chooser, prefix(), MODEL)
    with pytest.raises(asyncio.CancelledError):
        async with chooser.going(first, 300):
            raise AssertionError("not reached")
    assert (await where(chooser, prefix(), MODEL)).deployment == first.deployment


async def fail(chooser: Router, route: Route, failure: ModelFailure = BUSY) -> None:
    with pytest.raises(ModelFailure):
        async with chooser.going(route, 10):
            raise failure


async def test_a_place_that_fails_is_left_alone_for_a_while() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2), index, clock)
    one = prefix()
    own = await where(chooser, one, MODEL)
    await send(index, one, own.deployment, clock.now)
    await fail(chooser, own)
    other = await where(chooser, one, MODEL)
    assert other.deployment != own.deployment
    assert (other.spare, other.elsewhere_tokens) == (0, 4000), "nobody is left to go on to"
    clock.now += COOLDOWN_SECONDS
    assert (await where(chooser, one, MODEL)).deployment == own.deployment
    await fail(chooser, own)
    clock.now += COOLDOWN_SECONDS
    assert (await where(chooser, one, MODEL)).deployment != own.deployment, "twice as long"
    clock.now += COOLDOWN_SECONDS
    async with chooser.going(own, 10):
        pass
    await fail(chooser, own)
    clock.now += COOLDOWN_SECONDS
    assert (await where(chooser, one, MODEL)).deployment == own.deployment, "forgiven"


async def test_when_all_fail_the_first_that_may_again_is_asked() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(3), index, clock)
    one = prefix()
    waits = (50.0, 20.0, 1e9)
    for number, seconds in enumerate(waits):
        failure = ModelFailure("busy", retryable=True, retry_after_seconds=seconds)
        await fail(chooser, Route(deployment=f"deployment-{number}"), failure)
    route = await where(chooser, one, MODEL)
    assert (route.deployment, route.spare) == ("deployment-1", 0)
    clock.now += MAX_COOLDOWN_SECONDS
    assert (await where(chooser, one, MODEL)).spare == 2, "none is left alone for ever"


async def test_a_call_that_is_refused_says_nothing_about_its_place() -> None:
    index, clock = DictIndex(), Clock()
    chooser = router(deployments(2), index, clock)
    own = await where(chooser, prefix(), MODEL)
    await fail(chooser, own, ModelFailure("bad", retryable=False))
    assert (await where(chooser, prefix(), MODEL)).deployment == own.deployment


async def test_a_prompt_without_a_reusable_prefix_goes_somewhere() -> None:
    chooser = router(deployments(2), DictIndex(), Clock())
    empty = Prefix(memory_key="t:m", group_key="", ids=(), tokens=())
    assert (await where(chooser, empty, MODEL)).deployment in {"deployment-0", "deployment-1"}


_CANDIDATES = st.lists(
    st.builds(
        DeploymentCandidate,
        name=st.uuids().map(str),
        expected_tokens=st.floats(0, 1e6),
        queued_tokens=st.integers(0, 10**9),
        tokens_per_second=st.just(5000.0),
        full=st.booleans(),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.name,
)


@given(_CANDIDATES, st.lists(st.integers(0, 10_000), max_size=4).map(sorted), st.randoms())
def test_the_order_of_places_says_nothing(
    candidates: list[DeploymentCandidate], tokens: list[int], random: Any
) -> None:
    one = prefix(uuid4(), tuple(tokens))
    chosen = candidates[pick(candidates, one, PRICES)]
    assert not chosen.full or all(each.full for each in candidates)
    shuffled = random.sample(candidates, len(candidates))
    assert shuffled[pick(shuffled, one, PRICES)].name == chosen.name
