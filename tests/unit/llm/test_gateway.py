"""The gateway against a scripted transport: paid once, retried, predicted, recorded."""

import asyncio
import time
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.deployment_config import Deployment
from service.domain.flows import ModelAsk, ModelReply, Purpose, Segment, SegmentKind
from service.domain.ledger import Busy, Call, CallScope, Lease, Reservation
from service.domain.prices import CacheFamily, ModelPrices
from service.domain.tokens import estimate_tokens
from service.domain.warmth import Sent
from service.llm import prefix_cache
from service.llm.caller import BACKOFF_SECONDS, JITTER, MAX_RETRY_AFTER_SECONDS, Caller
from service.llm.gateway import Gateway, KnowsForms, call_key
from service.llm.plans import CallOrder, Plan, Route
from service.llm.prefix_cache import (
    REMEMBERED_CHARACTERS,
    Prefix,
    calibrated,
    expected_tokens,
    prefix_of,
)
from service.llm.routing import Router
from service.llm.transport import Completion, ModelFailure
from tests.fake_index import DictIndex

SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=UUID(int=3), occasion="revise:1:1"
)


def make_ask(*texts: str, chunk: str = "chunk") -> ModelAsk:
    stable = [Segment(kind=SegmentKind.BASE, text=text) for text in texts]
    last = Segment(kind=SegmentKind.CHUNK, text=chunk, reusable=False)
    return ModelAsk(
        purpose=Purpose.REVISE,
        template="t/1",
        segments=(*stable, last),
        content=None,
        max_output_tokens=10,
    )


@dataclass
class Script:
    """Gives its replies, or raises its failures, one after the other."""

    outcomes: list[str | ModelFailure]
    asked: int = 0
    cached_tokens: int | None = None

    async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ModelFailure):
            raise outcome
        return Completion(
            text=outcome,
            model=model,
            input_tokens=sum(estimate_tokens(one.text) for one in ask.segments),
            output_tokens=5,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=None,
            cost_micro_usd=7,
        )


@dataclass
class Ledger:
    calls: list[Call] = field(default_factory=list)

    #: Who may make which call, by fence.
    intents: dict[bytes, int] = field(default_factory=dict)

    def find_reply(self, key: bytes) -> ModelReply | None:
        for call in self.calls:
            if call.key == key and call.reply is not None:
                return call.as_reply()
        return None

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | Busy | Lease:
        known = self.find_reply(key)
        if known is not None:
            return known
        if key in self.intents:
            return Busy(seconds=0)
        self.intents[key] = 1
        return Lease(fence=1)

    async def renew(self, scope: CallScope, key: bytes, lease: Lease) -> bool:
        return self.intents.get(key) == lease.fence

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        known = self.find_reply(call.key)
        if known is None:
            self.calls.append(call)
        if call.reply is not None or last:
            self.intents.pop(call.key, None)
        return None if call.reply is None else self.find_reply(call.key)


def gateway(
    script: Script,
    ledger: Ledger,
    index: DictIndex,
    waits: list[float],
    forms: KnowsForms | None = None,
) -> Gateway:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    caller = Caller(
        script, ledger, index, prices=lambda _: PLAIN, tries=3, lease_seconds=9, sleep=sleep
    )
    chooser = Router((), index, lambda _: PLAIN)
    return Gateway(
        ledger, chooser, caller, prices=lambda _: PLAIN, lease_seconds=9, forms=forms, sleep=sleep
    )


async def test_the_same_call_is_paid_once_and_another_occasion_is_another_call() -> None:
    script, ledger = Script(["one", "two", "three"]), Ledger()
    calls = gateway(script, ledger, DictIndex(), [])
    first = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    again = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (first.text, again.text, script.asked) == ("one", "one", 1)
    await calls.call(make_ask("a"), model="m/x", scope=replace(SCOPE, occasion="revise:2:2"))
    await calls.call(replace(make_ask("a"), attempt=1), model="m/x", scope=SCOPE)
    assert len({call.key for call in ledger.calls}) == script.asked == 3


async def test_a_reply_says_what_it_took_whoever_gives_it() -> None:
    script, ledger, index = Script(["one"], cached_tokens=3), Ledger(), DictIndex()
    calls = gateway(script, ledger, index, [])
    took = ModelReply(text="one", model="m/x", input_tokens=6, cached_tokens=3, output_tokens=5)
    ask = make_ask("a" * 16)
    assert await calls.call(ask, model="m/x", scope=SCOPE) == took, "the provider"
    assert await calls.call(ask, model="m/x", scope=SCOPE) == took, "its copy"
    index.replies.clear()
    assert await calls.call(ask, model="m/x", scope=SCOPE) == took, "the journal"
    assert script.asked == 1


@pytest.mark.parametrize(
    "other",
    [
        make_ask("b"),
        make_ask("a", chunk="other"),
        make_ask("a", ""),
        replace(make_ask("a"), template="t/2"),
        replace(make_ask("a"), max_output_tokens=11),
        replace(make_ask("a"), reply_schema={}),
        replace(make_ask("a"), reply_schema={"type": "object"}),
    ],
)
async def test_whatever_affects_the_output_makes_another_call(other: ModelAsk) -> None:
    script, ledger = Script(["one", "two"]), Ledger()
    calls = gateway(script, ledger, DictIndex(), [])
    await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    await calls.call(other, model="m/x", scope=SCOPE)
    assert script.asked == 2


async def test_asks_that_differ_in_their_replys_schema_only_are_different_calls() -> None:
    schemas: list[dict[str, Any] | None] = [None, {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    ledger = Ledger()
    calls = gateway(Script(["" for _ in schemas]), ledger, DictIndex(), [])
    for schema in schemas:
        await calls.call(replace(make_ask("a"), reply_schema=schema), model="m/x", scope=SCOPE)
    assert len({call.key for call in ledger.calls}) == len(schemas)


def test_the_key_of_a_call_without_a_schema_is_what_it_always_was() -> None:
    ask = make_ask("a")
    prefix = prefix_of(
        ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
    )
    # Journals of the releases before hold this one.
    assert call_key(ask, prefix, "m/x", SCOPE).hex() == (
        "80e60adf3f6787676985bd33e754ace0d8029c73c8987e07c800847918d239b1"
    )


def test_it_is_told_which_models_keep_to_a_schema() -> None:
    class Forms:
        def structured(self, model: str) -> bool:
            return model == "m/strict"

        def output_settings(self, model: str) -> bytes:
            return b""

    knowing = gateway(Script([]), Ledger(), DictIndex(), [], Forms())
    assert knowing.structured("m/strict")
    assert not knowing.structured("m/loose")
    assert not gateway(Script([]), Ledger(), DictIndex(), []).structured("m/strict")


async def test_what_is_configured_of_a_model_makes_another_call() -> None:
    class Forms:
        settings = b""

        def structured(self, model: str) -> bool:
            return False

        def output_settings(self, model: str) -> bytes:
            return self.settings

    script, ledger, forms = Script(["one", "two", "three"]), Ledger(), Forms()
    calls = gateway(script, ledger, DictIndex(), [], forms)
    texts = []
    for settings in (b"", b"settings:a", b"settings:b", b"settings:a", b""):
        forms.settings = settings
        texts.append((await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text)
    assert texts == ["one", "two", "three", "two", "one"]


async def test_what_may_pass_is_tried_again_and_every_try_is_in_the_ledger() -> None:
    waits: list[float] = []
    busy = ModelFailure("busy", retryable=True, retry_after_seconds=4.0)
    ledger = Ledger()
    calls = gateway(Script([busy, busy, "at last"]), ledger, DictIndex(), waits)
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "at last"
    assert [call.failure for call in ledger.calls] == ["busy", "busy", None]
    assert all(4.0 <= wait <= 4.0 * (1 + JITTER) for wait in waits)
    assert len(set(waits)) == 2


async def test_a_lease_that_was_lost_between_two_tries_is_not_paid_on() -> None:
    ledger = Ledger()

    class Stopped(Script):
        async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
            try:
                return await super().complete(ask, model, plan)
            finally:
                if self.asked == 1:
                    # Somebody took it over meanwhile, and was paid for by the time we go on.
                    ledger.intents.clear()
                    theirs = Script(["theirs"])
                    other = gateway(theirs, ledger, DictIndex(), [])
                    await other.call(make_ask("a"), model="m/x", scope=SCOPE)

    script = Stopped([ModelFailure("busy", retryable=True), "paid twice"])
    calls = gateway(script, ledger, DictIndex(), [])
    reply = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (reply.text, script.asked) == ("theirs", 1)


async def test_a_call_that_breaks_leaves_no_intent_and_its_error_as_it_is() -> None:
    class Broken(Script):
        async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
            raise ZeroDivisionError("a prompt's text")

    ledger = Ledger()
    calls = gateway(Broken([]), ledger, DictIndex(), [])
    with pytest.raises(ZeroDivisionError):
        await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert not ledger.intents
    assert [one.failure for one in ledger.calls] == ["the call broke: ZeroDivisionError"]


@pytest.mark.parametrize(("left", "renewed"), [(0.9, 0), (0.2, 1)])
async def test_an_order_that_waited_is_renewed_before_it_is_made(left: float, renewed: int) -> None:
    ledger = Ledger(intents={b"k": 1})
    renewals: list[bytes] = []

    async def renew(scope: CallScope, key: bytes, lease: Lease) -> bool:
        renewals.append(key)
        return True

    ledger.renew = renew  # type: ignore[method-assign]
    ask, lease_seconds = make_ask("a"), 30.0
    caller = Caller(
        Script(["a reply"]),
        ledger,
        DictIndex(),
        prices=lambda _: PLAIN,
        tries=1,
        lease_seconds=lease_seconds,
    )
    prefix = prefix_of(
        ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
    )
    order = CallOrder(
        ask=ask,
        model="m/x",
        scope=SCOPE,
        key=b"k",
        lease=Lease(fence=1),
        lease_deadline=time.monotonic() + left * lease_seconds,
        prefix=prefix,
        route=Route(),
        plan=Plan(),
    )
    await caller.make(order)
    assert len(renewals) == renewed


async def test_waits_double_and_differ_between_calls_but_not_between_runs() -> None:
    async def waits_of(text: str) -> list[float]:
        waits: list[float] = []
        script = Script([ModelFailure("busy", retryable=True) for _ in range(2)] + ["done"])
        calls = gateway(script, Ledger(), DictIndex(), waits)
        await calls.call(make_ask(text), model="m/x", scope=SCOPE)
        return waits

    first, second = await waits_of("a")
    assert BACKOFF_SECONDS <= first <= BACKOFF_SECONDS * (1 + JITTER)
    assert BACKOFF_SECONDS * 2 <= second <= BACKOFF_SECONDS * 2 * (1 + JITTER)
    assert await waits_of("a") == [first, second]
    assert await waits_of("b") != [first, second]


async def test_a_provider_may_ask_for_a_long_wait_but_not_for_any() -> None:
    waits: list[float] = []
    far = [ModelFailure("busy", retryable=True, retry_after_seconds=s) for s in (60.0, 1e9)]
    calls = gateway(Script([*far, "done"]), Ledger(), DictIndex(), waits)
    await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert waits[0] >= 60.0
    assert waits[1] <= MAX_RETRY_AFTER_SECONDS * (1 + JITTER)


def shared(script: Script, ledger: Ledger, waits: list[float], places: int) -> Gateway:
    """A gateway for a model with several deployments."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    index = DictIndex()
    deployments = [Deployment(name=f"place-{n}", model="m/x") for n in range(places)]
    caller = Caller(
        script, ledger, index, prices=lambda _: PLAIN, tries=2, lease_seconds=9, sleep=sleep
    )
    router = Router(deployments, index, lambda _: PLAIN)
    return Gateway(
        ledger, router, caller, prices=lambda _: PLAIN, lease_seconds=9, forms=None, sleep=sleep
    )


async def test_a_call_that_fails_goes_on_to_another_deployment_at_once() -> None:
    busy, waits, ledger = ModelFailure("busy", retryable=True), list[float](), Ledger()
    calls = shared(Script([busy, busy, "at last"]), ledger, waits, 3)
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "at last"
    assert waits == []
    assert {call.deployment for call in ledger.calls} == {"place-0", "place-1", "place-2"}
    assert [call.failure for call in ledger.calls] == ["busy", "busy", None]
    assert len({call.key for call in ledger.calls}) == 1, "the same model, the same answer"
    assert ledger.intents == {}


async def test_where_all_deployments_fail_the_last_is_tried_as_a_single_one_is() -> None:
    busy, waits = ModelFailure("busy", retryable=True), list[float]()
    script, ledger = Script([busy] * 9), Ledger()
    with pytest.raises(ModelFailure, match="busy"):
        await shared(script, ledger, waits, 3).call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (script.asked, len(waits)) == (2 + 2, 1)
    assert ledger.intents == {}


async def test_what_is_refused_is_not_asked_of_another_deployment() -> None:
    script = Script([ModelFailure("bad", retryable=False), "never"])
    with pytest.raises(ModelFailure, match="bad"):
        await shared(script, Ledger(), [], 3).call(make_ask("a"), model="m/x", scope=SCOPE)
    assert script.asked == 1


async def test_a_copy_of_the_reply_is_as_good_as_the_durable_one() -> None:
    script, ledger, index = Script(["one", "two"]), Ledger(), DictIndex()
    calls = gateway(script, ledger, index, [])
    first = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    ledger.calls.clear()
    assert await calls.call(make_ask("a"), model="m/x", scope=SCOPE) == first
    assert (script.asked, ledger.intents) == (1, {})
    index.replies.clear()
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "two"


async def test_the_reply_of_whoever_was_first_counts() -> None:
    class Late(Ledger):
        async def record(
            self, scope: CallScope, call: Call, lease: Lease, *, last: bool
        ) -> ModelReply | None:
            return ModelReply(text="theirs", model=call.model)

    calls = gateway(Script(["ours"]), Late(), DictIndex(), [])
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "theirs"


@pytest.mark.parametrize(("retryable", "tries"), [(False, 1), (True, 3)])
async def test_what_does_not_pass_is_raised(retryable: bool, tries: int) -> None:
    script = Script([ModelFailure("no", retryable=retryable) for _ in range(5)])
    with pytest.raises(ModelFailure, match="no"):
        await gateway(script, Ledger(), DictIndex(), []).call(
            make_ask("a"), model="m/x", scope=SCOPE
        )
    assert script.asked == tries


async def test_the_prompt_before_is_predicted_to_be_cached() -> None:
    ledger, index = Ledger(), DictIndex()
    calls = gateway(Script(["", "", ""]), ledger, index, [])
    for number, texts in enumerate((("a" * 400,), ("a" * 400, "b" * 80), ("c",))):
        scope = replace(SCOPE, occasion=f"revise:{number}:1")
        await calls.call(make_ask(*texts), model="m/x", scope=scope)
    assert [call.predicted_cached_tokens for call in ledger.calls] == [0, 100, 0]


async def test_calls_that_no_memory_makes_belong_to_their_session() -> None:
    calls = gateway(Script(["one", "two", "three"]), Ledger(), DictIndex(), [])
    scope = replace(SCOPE, memory_id=None, occasion="schema:1")
    elsewhere = replace(scope, session_key=UUID(int=9))
    texts = [(await calls.call(make_ask("x"), model="m/x", scope=s)).text for s in (scope,) * 2]
    other = await calls.call(make_ask("x"), model="m/x", scope=elsewhere)
    memory = await calls.call(
        make_ask("x"), model="m/x", scope=replace(scope, memory_id=UUID(int=3))
    )
    assert (texts, other.text, memory.text) == (["one", "one"], "two", "three")
    keys = {
        prefix_of(make_ask("x").segments, model="m", tenant_id=s.tenant_id, owner_id=s.owner_id)
        for s in (scope, elsewhere, SCOPE)
    }
    assert len({one.memory_key for one in keys}) == 3
    assert len({one.group_key for one in keys}) == 1, "they share the template"


TEXTS = st.lists(st.sampled_from(["aaaa", "bbbb", "cccccccc"]), min_size=1, max_size=8)
PLAIN = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=None,
    read=0.1,
    write=1.0,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=1,
)


@given(TEXTS, TEXTS)
def test_a_prediction_is_the_length_of_the_common_prefix(sent: list[str], now: list[str]) -> None:
    def prefix(texts: list[str], tenant: UUID = SCOPE.tenant_id, model: str = "m") -> Prefix:
        return prefix_of(
            make_ask(*texts).segments, model=model, tenant_id=tenant, owner_id=SCOPE.owner_id
        )

    async def check() -> None:
        index, before = DictIndex(), prefix(sent)
        router = Router((), index, lambda _: PLAIN, clock=lambda: 1000.0)

        async def predicted(now: Prefix, model: str = "m") -> int:
            return (await router.choose(now, model, "t:key"))[0].predicted_tokens

        await index.sent(
            Sent(
                memory_key=before.memory_key,
                group_key=before.group_key,
                boundaries=tuple(zip(before.ids, before.tokens, strict=True)),
                with_group=True,
                place="m",
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


def test_long_segments_are_told_apart_and_not_kept() -> None:
    def ids(*texts: str) -> tuple[bytes, ...]:
        tenant, owner = SCOPE.tenant_id, SCOPE.owner_id
        segments = make_ask(*texts).segments
        return prefix_of(segments, model="m", tenant_id=tenant, owner_id=owner).ids

    long = "x" * (REMEMBERED_CHARACTERS + 1)
    kept = prefix_cache._extend_remembered.cache_info().currsize
    assert ids(long) == ids(long) != ids(long + "x")
    assert prefix_cache._extend_remembered.cache_info().currsize == kept
    assert ids(long, "a")[0] == ids(long, "b")[0]


def test_predictions_respect_the_providers_minimum_and_granularity() -> None:
    coarse = replace(PLAIN, granularity_tokens=128, min_tokens=1024)
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
