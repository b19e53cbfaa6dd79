"""Calls with the same prefix wait for the first of them, and none waits in vain."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.prefix_coalescer import PrefixCoalescer
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import PrefixIndex, prefix_of
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan, Route
from service.llm.providers.transport import Completion
from service.settings.deployments import Deployment
from storage.calls.prefix_index import NullPrefixIndex
from tests.support.fake_index import DictIndex

EXPLICIT = ModelPrices(
    family=CacheFamily.EXPLICIT,
    input_usd=1e-6,
    read=0.1,
    write=1.25,
    output=5,
    granularity_tokens=1,
    min_tokens=1024,
    ttl_seconds=300,
    max_marks=4,
)
KEYED = replace(
    EXPLICIT, family=CacheFamily.KEYED, read=0.5, write=1.0, granularity_tokens=128, max_marks=0
)
SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=UUID(int=3), occasion=""
)
TASK = "T" * 4 * 300
NODE = "N" * 4 * 1700
PREFIX_TOKENS = 2000


def question(number: int, node: str = NODE, task: str = TASK) -> ModelRequest:
    return ModelRequest(
        purpose=Purpose.NAVIGATE,
        template="t/1",
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            Segment(kind=SegmentKind.BASE, text=node),
            Segment(kind=SegmentKind.QUERY, text=f"question {number}", reusable=False),
        ),
        max_output_tokens=10,
    )


@dataclass
class Provider:
    """A model with a prefix cache; its calls come back when they are let."""

    prices: ModelPrices
    #: Calls by what becomes of them; the others are answered.
    failures: dict[str, BaseException] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    #: Of all prompts: tokens read from the cache, written to it, and at the full price.
    tokens: Counter[str] = field(default_factory=Counter)
    #: Set: calls come back. Cleared, they are held.
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        name = ask.segments[-1].text
        self.asked.append(name)
        texts = [one.text for one in ask.segments]
        explicit = self.prices.family is CacheFamily.EXPLICIT
        ends = [
            "".join(texts[: at + 1]) for at in (plan.marks if explicit else range(len(texts) - 1))
        ]
        long = [one for one in ends if estimate_tokens(one) >= self.prices.min_tokens]
        read = max((estimate_tokens(one) for one in long if one in self.kept), default=0)
        read -= read % self.prices.granularity_tokens
        written = max(max(map(estimate_tokens, long), default=0) - read, 0) if explicit else 0
        whole = sum(map(estimate_tokens, texts))
        self.tokens.update(read=read, written=written, full=whole - read - written)
        await self.free.wait()
        await turns(20)
        if name in self.failures:
            raise self.failures[name]
        self.kept.update(long)
        return Completion(
            text=f"to {name}",
            model=model,
            input_tokens=whole,
            output_tokens=5,
            cached_tokens=read,
            cache_write_tokens=written,
            cost_micro_usd=None,
        )

    def cost(self) -> float:
        """Returns the cost of all prompts, in tokens at the full price."""
        tokens = self.tokens
        return (
            tokens["full"]
            + self.prices.read * tokens["read"]
            + self.prices.write * tokens["written"]
        )


class Ledger:
    """Keeps replies; beginning takes a while, as it does in a database."""

    def __init__(self) -> None:
        self.replies: dict[bytes, ModelReply] = {}

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        await turns(5)
        return self.replies.get(key) or Lease(fence=1)

    async def renew(self, held: HeldCall) -> bool:
        return True

    async def renew_all(self, held: Sequence[HeldCall]) -> None:
        pass

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        reply = call.as_reply()
        if reply is not None:
            self.replies[call.key] = reply
        return reply


async def turns(count: int) -> None:
    """Lets all others have so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def rest() -> None:
    """Lets all others continue as far as they get."""
    await turns(60)


def gateway(
    provider: Provider,
    index: PrefixIndex | None = None,
    *,
    ledger: Ledger | None = None,
    deployments: int = 0,
    seconds: float = 600,
) -> Gateway:
    index, ledger = index or NullPrefixIndex(), ledger or Ledger()
    executor = CallExecutor(
        provider, ledger, index, prices=lambda _: provider.prices, tries=1, lease_seconds=600
    )
    several = [Deployment(name=f"deployment-{n}", model="m/x") for n in range(deployments)]
    router = Router(several, index, lambda _: provider.prices)
    made = Gateway(ledger, router, executor, prices=lambda _: provider.prices, lease_seconds=600)
    made._coalescer = PrefixCoalescer(lambda _: provider.prices, seconds=seconds)
    return made


def ask(calls: Gateway, one: ModelRequest) -> "asyncio.Task[ModelReply]":
    scope = replace(SCOPE, occasion=f"answer:{one.segments[-1].text}")
    return asyncio.create_task(calls.call(one, model="m/x", scope=scope))


@pytest.mark.parametrize("prices", [EXPLICIT, KEYED])
@pytest.mark.parametrize("index", [NullPrefixIndex, DictIndex])
async def test_questions_at_one_node_pay_for_its_prefix_once(
    prices: ModelPrices, index: type[NullPrefixIndex] | type[DictIndex]
) -> None:
    provider = Provider(prices)
    calls = gateway(provider, index())
    asked = [ask(calls, question(number)) for number in range(8)]
    await rest()
    assert provider.asked == ["question 0"], "the first one goes, the others wait"
    provider.free.set()
    replies = [(await one).text for one in asked]
    assert replies == [f"to question {number}" for number in range(8)]
    found = PREFIX_TOKENS - PREFIX_TOKENS % prices.granularity_tokens
    assert provider.tokens["read"] == 7 * found
    if prices is EXPLICIT:
        assert provider.tokens["written"] == PREFIX_TOKENS


@pytest.mark.parametrize(("prices", "share"), [(EXPLICIT, 0.35), (KEYED, 0.6)])
async def test_it_costs_a_share_of_what_it_cost_without(prices: ModelPrices, share: float) -> None:
    costs = []
    for seconds in (600, 0):
        provider = Provider(prices)
        provider.free.set()
        calls = gateway(provider, seconds=seconds)
        await asyncio.gather(*(ask(calls, question(number)) for number in range(8)))
        costs.append(provider.cost())
    assert costs[0] <= share * costs[1]


@pytest.mark.parametrize(
    ("prices", "one"),
    [
        (replace(EXPLICIT, family=CacheFamily.PLAIN, max_marks=0), question(0)),
        (replace(KEYED, read=1.0), question(0)),
        (EXPLICIT, question(0, node="short")),
        (KEYED, question(0, node="short")),
    ],
)
async def test_no_call_waits_where_nothing_is_gained(
    prices: ModelPrices, one: ModelRequest
) -> None:
    provider = Provider(prices)
    calls = gateway(provider)
    other = Segment(kind=SegmentKind.QUERY, text="question 1", reusable=False)
    asked = [ask(calls, one), ask(calls, replace(one, segments=(*one.segments[:-1], other)))]
    await rest()
    assert len(provider.asked) == 2
    provider.free.set()
    await asyncio.gather(*asked)


async def test_no_call_waits_for_what_is_warm_already() -> None:
    provider = Provider(KEYED)
    provider.free.set()
    calls = gateway(provider, DictIndex())
    await ask(calls, question(0))
    provider.free.clear()
    asked = [ask(calls, question(number)) for number in (1, 2, 3)]
    await rest()
    assert len(provider.asked) == 4
    provider.free.set()
    await asyncio.gather(*asked)


async def test_questions_at_other_nodes_go_on() -> None:
    provider = Provider(KEYED)
    calls = gateway(provider)
    asked = [ask(calls, question(n, node=letter * 6800)) for n, letter in enumerate("AABB")]
    await rest()
    assert provider.asked == ["question 0", "question 2"]
    provider.free.set()
    await asyncio.gather(*asked)


async def test_after_a_common_task_each_node_has_its_own_first() -> None:
    provider = Provider(KEYED)
    calls = gateway(provider)
    task = "T" * 4 * 2000
    asked = [
        ask(calls, question(n, node=letter * 6800, task=task)) for n, letter in enumerate("AABB")
    ]
    await rest()
    assert provider.asked == ["question 0"], "the task is common to all"
    provider.free.set()
    await asyncio.gather(*asked)
    task_and_node, of_task = (3700 // 128) * 128, (2000 // 128) * 128
    assert provider.tokens["read"] == 2 * task_and_node + of_task


async def test_waiting_calls_go_at_once_when_the_first_one_fails() -> None:
    provider = Provider(KEYED, failures={"question 0": ModelFailure("no", retryable=False)})
    calls = gateway(provider)
    asked = [ask(calls, question(number)) for number in range(4)]
    await rest()
    provider.free.set()
    with pytest.raises(ModelFailure):
        await asked[0]
    provider.free.clear()
    await rest()
    assert sorted(provider.asked) == [f"question {number}" for number in range(4)]
    provider.free.set()
    assert [(await one).text for one in asked[1:]] == [f"to question {n}" for n in (1, 2, 3)]


async def test_a_first_one_that_is_cancelled_passes_on() -> None:
    provider = Provider(KEYED)
    calls = gateway(provider)
    asked = [ask(calls, question(number)) for number in range(4)]
    # It is there, and has not begun its call.
    await turns(3)
    assert provider.asked == []
    asked[0].cancel()
    await rest()
    assert provider.asked == ["question 1"]
    asked[2].cancel()
    provider.free.set()
    with pytest.raises(asyncio.CancelledError):
        await asked[2]
    assert [(await asked[n]).text for n in (1, 3)] == ["to question 1", "to question 3"]
    assert calls._coalescer._leads == {}


async def test_a_first_one_whose_reply_is_there_passes_on() -> None:
    ledger = Ledger()
    provider = Provider(KEYED)
    provider.free.set()
    await ask(gateway(provider, ledger=ledger), question(0))
    provider.free.clear()
    provider.asked.clear()
    calls = gateway(provider, ledger=ledger)
    asked = [ask(calls, question(number)) for number in range(3)]
    assert (await asked[0]).text == "to question 0"
    await rest()
    assert provider.asked == ["question 1"]
    provider.free.set()
    await asyncio.gather(*asked)


async def test_no_call_waits_longer_than_allowed() -> None:
    provider = Provider(KEYED)
    calls = gateway(provider, seconds=0)
    asked = [ask(calls, question(number)) for number in range(3)]
    await rest()
    assert len(provider.asked) == 3
    provider.free.set()
    await asyncio.gather(*asked)


async def test_a_call_too_late_for_a_mark_does_not_wait_in_vain() -> None:
    provider = Provider(EXPLICIT)
    calls = gateway(provider)
    first = ask(calls, question(0))
    await rest()
    # It was sent without a mark after the node: no other call was there.
    late = [ask(calls, question(number)) for number in (1, 2)]
    await rest()
    assert provider.asked == ["question 0", "question 1"]
    provider.free.set()
    await asyncio.gather(first, *late)
    assert provider.tokens["read"] == PREFIX_TOKENS


async def test_a_call_that_fails_at_every_deployment_leaves_no_other_waiting() -> None:
    provider = Provider(KEYED)
    busy = ModelFailure("busy", retryable=True)
    provider.failures["question 0"] = busy
    calls = gateway(provider, deployments=2)
    asked = [ask(calls, question(number)) for number in range(3)]
    await rest()
    provider.free.set()
    with pytest.raises(ModelFailure):
        await asked[0]
    assert [(await one).text for one in asked[1:]] == ["to question 1", "to question 2"]
    assert calls._coalescer._leads == {}


async def test_a_first_one_that_goes_elsewhere_in_the_end_passes_on() -> None:
    coalescer = PrefixCoalescer(lambda _: EXPLICIT, seconds=60)
    segments = question(1).segments
    prefix = prefix_of(segments, model="m", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id)
    here, there = Route(deployment="here"), Route(deployment="there")
    with coalescer.ticket(prefix, "m") as first, coalescer.ticket(prefix, "m") as second:
        assert not await first.waited(here)
        waiting = asyncio.create_task(second.waited(here))
        await turns(5)
        assert not waiting.done()
        # Another executor had the call, and by now another deployment is better.
        assert not await first.waited(there)
        assert await waiting
        assert second.warm_segments(here) == 0
        assert not await second.waited(here)
