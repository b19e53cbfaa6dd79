"""What a call teaches: counts of boundaries, what is warm, survival, and reasons."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from service.domain.calls.ledger import Call, CallScope, Lease
from service.domain.calls.prefix_index import PrefixSurvival
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import prefix_of
from service.llm.prefix_cache.feedback import PrefixFeedback
from service.llm.prefix_cache.misses import MissReason
from service.llm.providers.plans import CallPlan, CallRequest, Route
from tests.support.fake_index import DictIndex
from tests.support.prices import PLAIN

MODEL = "m/x"
SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=UUID(int=3), occasion="revise:1:1"
)
ROUNDED = replace(PLAIN, write=1.0, granularity_tokens=16)
EXPLICIT = replace(ROUNDED, family=CacheFamily.EXPLICIT, granularity_tokens=1, max_marks=4)


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def order(
    *texts: str, route: Route, marks: tuple[int, ...] = (), model: str = MODEL, owner: int = 3
) -> CallRequest:
    stable = [Segment(kind=SegmentKind.BASE, text=text) for text in texts]
    chunk = Segment(kind=SegmentKind.CHUNK, text="c" * 400, reusable=False)
    ask = ModelRequest(
        purpose=Purpose.REVISE,
        template="t/1",
        segments=(*stable, chunk),
        max_output_tokens=10,
    )
    return CallRequest(
        ask=ask,
        model=model,
        scope=SCOPE,
        key=b"k",
        lease=Lease(fence=1),
        lease_deadline=0.0,
        prefix=prefix_of(
            ask.segments, model=model, tenant_id=SCOPE.tenant_id, owner_id=UUID(int=owner)
        ),
        route=route,
        plan=CallPlan(deployment=route.deployment, marks=marks),
    )


def call(made: CallRequest, *, input_tokens: int, reported: int | None) -> Call:
    return Call(
        key=made.key,
        purpose=Purpose.REVISE,
        template="t/1",
        model=made.model,
        reply="",
        failure=None,
        input_tokens=input_tokens,
        predicted_cached_tokens=made.route.predicted_tokens,
        reported_cached_tokens=reported,
        cache_write_tokens=None,
        output_tokens=1,
        cost_micro_usd=None,
        latency_ms=1,
    )


def new_feedback(index: DictIndex, clock: Clock, prices: ModelPrices = ROUNDED) -> PrefixFeedback:
    return PrefixFeedback(index, lambda _: prices, clock=clock)


@dataclass
class Engine:
    """Counts tokens in a way of its own, and keeps every prefix by blocks of 16."""

    tokens_per_character: float
    seen: str = ""

    def answer(self, text: str) -> tuple[int, int]:
        """Tokens of a prompt, and how many of them it had."""
        common = 0
        for one, other in zip(text, self.seen, strict=False):
            if one != other:
                break
            common += 1
        self.seen = text
        cached = int(common * self.tokens_per_character)
        return int(len(text) * self.tokens_per_character), cached - cached % 16


@pytest.mark.parametrize("tokens_per_character", [0.19, 0.25, 0.31, 0.6])
async def test_predictions_come_true_to_a_block_whatever_the_tokenizer(
    tokens_per_character: float,
) -> None:
    """A memory that grows by amendments, and a provider that counts otherwise than we do."""
    index, clock, engine = DictIndex(), Clock(), Engine(tokens_per_character)
    router = Router((), index, lambda _: ROUNDED, clock=clock)
    feedback = new_feedback(index, clock)
    texts = ["task " * 200, "base " * 400]
    reasons = []
    for step in range(60):
        made = order(*texts, route=Route())
        route = await router.choose(made.prefix, MODEL)
        made = order(*texts, route=route)
        # No chunk begins like another, or like an amendment.
        tokens, cached = engine.answer("".join(texts) + f"{step}!" + "c" * 400)
        if step:
            assert abs(route.predicted_tokens - cached) <= 16
        reasons.append(feedback.miss_reason(made, route.predicted_tokens, cached))
        await feedback.learn(made, call(made, input_tokens=tokens, reported=cached))
        texts.append(f"[{step}] set a to b. " * (1 + step % 5))
        clock.now += 20
    assert set(reasons) == {MissReason.NONE}


async def test_a_memory_that_is_written_in_place_is_not_taken_for_evicted() -> None:
    """Its text begins like the one before, for longer or shorter: never less than the task."""
    index, clock, engine = DictIndex(), Clock(), Engine(0.25)
    router = Router((), index, lambda _: ROUNDED, clock=clock)
    feedback = new_feedback(index, clock)
    task, predicted = "task " * 200, 0
    for step in range(40):
        at = 37 * step % 300
        base = "b" * at + f"<{step}>" + "b" * (300 - at)
        made = order(task, base, route=Route())
        route = await router.choose(made.prefix, MODEL)
        made = order(task, base, route=route)
        tokens, cached = engine.answer(task + base + f"{step}!" + "c" * 400)
        predicted = route.predicted_tokens
        found = feedback.miss_reason(made, predicted, cached)
        await feedback.learn(made, call(made, input_tokens=tokens, reported=cached))
        assert found in {MissReason.NONE, MissReason.MORE}
        clock.now += 20
    assert abs(predicted - 250) <= 16
    assert all(hits >= misses for hits, misses in index.counts[MODEL])


async def test_only_what_carried_a_mark_is_warm_where_marks_are_needed() -> None:
    index, clock = DictIndex(), Clock()
    feedback = new_feedback(index, clock, EXPLICIT)
    made = order("a" * 400, "b" * 400, "c" * 400, "d" * 400, route=Route(), marks=(0, 2))
    await feedback.learn(made, call(made, input_tokens=500, reported=0))
    (prompt,) = index.prompts
    ids = made.prefix.ids
    assert prompt.boundaries == ((ids[0], 100), (ids[2], 300))
    assert prompt.with_group
    read = replace(made, plan=CallPlan(marks=(2, 3)), route=Route(warm_segments=3, warm_tokens=300))
    await feedback.learn(read, call(read, input_tokens=500, reported=300))
    assert index.prompts[1].boundaries == ((ids[2], 300), (ids[3], 400))
    assert not index.prompts[1].with_group
    unmarked = replace(made, plan=CallPlan())
    await feedback.learn(unmarked, call(unmarked, input_tokens=500, reported=0))
    assert index.prompts[2].boundaries == ()


@pytest.mark.parametrize(
    ("changes", "reported", "outcome"),
    [
        ({}, 4000, PrefixSurvival(bucket=0, survived=True)),
        ({}, 3990, PrefixSurvival(bucket=0, survived=True)),
        ({}, 2000, PrefixSurvival(bucket=0, survived=False)),
        ({"deepest_age_seconds": 400.0}, 0, PrefixSurvival(bucket=4, survived=False)),
        ({"deepest_age_seconds": 4000.0}, 4000, PrefixSurvival(bucket=5, survived=True)),
        ({}, None, None),
        ({"known": False}, 4000, None),
        ({"deepest_tokens": 0}, 0, None),
        ({"deepest_age_seconds": None}, 0, None),
    ],
)
async def test_whether_a_prefix_survived(
    changes: dict[str, Any], reported: int | None, outcome: PrefixSurvival | None
) -> None:
    index = DictIndex()
    route = replace(Route(deepest_tokens=4000, deepest_age_seconds=10.0), **changes)
    made = order("a" * 16_000, route=route)
    await new_feedback(index, Clock()).learn(made, call(made, input_tokens=4100, reported=reported))
    assert index.prompts[0].outcome == outcome


WARM = Route(predicted_tokens=960, warm_segments=1, warm_tokens=970, age_seconds=5.0)


def test_a_template_that_differs_is_distinguished_from_a_cache_that_forgets() -> None:
    feedback = new_feedback(DictIndex(), Clock())
    never = order("a", route=WARM)
    found = [feedback.miss_reason(never, 960, 320) for _ in range(4)]
    assert found == [MissReason.EVICTED] * 2 + [MissReason.DRIFT] * 2
    at_times = order("a", route=WARM, model="m/y")
    assert feedback.miss_reason(at_times, 960, 960) is MissReason.NONE
    found = [feedback.miss_reason(at_times, 960, 320) for _ in range(4)]
    assert found == [MissReason.EVICTED] * 4


def test_an_outage_is_several_owners_or_places_that_are_cold_at_once() -> None:
    feedback = new_feedback(DictIndex(), Clock())

    def seen(owner: int, reported: int, deployment: str = "") -> MissReason:
        route = replace(WARM, deployment=deployment)
        return feedback.miss_reason(order("a", route=route, owner=owner), 960, reported)

    assert seen(1, 960) is MissReason.NONE
    assert [seen(1, 0) for _ in range(5)] == [MissReason.EVICTED] * 5, "of one owner only"
    assert [seen(owner, 0) for owner in (2, 3)] == [MissReason.EVICTED, MissReason.OUTAGE]
    assert seen(4, 960) is MissReason.NONE
    assert seen(4, 0) is MissReason.EVICTED, "it is back"
    for deployment in ("one", "two"):
        assert seen(5, 960, deployment) is MissReason.NONE
    assert seen(5, 0, "one") is MissReason.OUTAGE, "with the other deployment, which is cold still"


def test_what_is_warm_elsewhere_was_misrouted_and_silence_is_unknown() -> None:
    feedback = new_feedback(DictIndex(), Clock())
    elsewhere = order("a", route=Route(elsewhere_tokens=4000))
    assert feedback.miss_reason(elsewhere, 0, 0) is MissReason.MISROUTED
    assert feedback.miss_reason(order("a", route=WARM), 960, None) is MissReason.UNKNOWN
    lost = order("a", route=Route(known=False))
    assert feedback.miss_reason(lost, 0, 512) is MissReason.UNKNOWN


def test_it_remembers_a_limited_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.llm.prefix_cache.feedback.MAX_DEPLOYMENTS", 3)
    feedback = new_feedback(DictIndex(), Clock())
    for number in range(50):
        feedback.miss_reason(order("a", route=WARM, model=f"m/{number}"), 960, 0)
    assert len(feedback._deployments) == 3
