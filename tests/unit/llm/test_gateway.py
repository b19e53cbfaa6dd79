"""The gateway against a scripted transport: paid once, retried, predicted, recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.flows import ModelAsk, ModelReply, Purpose, Segment, SegmentKind
from service.domain.ledger import Busy, Call, CallScope, Lease, Reservation
from service.domain.prices import CacheFamily, ModelPrices
from service.llm import prefix_cache
from service.llm.caller import BACKOFF_SECONDS, JITTER, MAX_RETRY_AFTER_SECONDS, Caller
from service.llm.gateway import Gateway, KnowsForms, OneDeployment, call_key
from service.llm.plans import Plan
from service.llm.prefix_cache import REMEMBERED_CHARACTERS, predict, prefix_of
from service.llm.transport import Completion, ModelFailure

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

    async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ModelFailure):
            raise outcome
        return Completion(
            text=outcome,
            model=model,
            input_tokens=1000,
            output_tokens=5,
            cached_tokens=None,
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
                return ModelReply(text=call.reply, model=call.model)
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
        return self.find_reply(call.key)


@dataclass
class Index:
    warm: set[bytes] = field(default_factory=set)

    async def lookup(self, memory_key: str, group_key: str, ids: Sequence[bytes]) -> set[bytes]:
        return self.warm & set(ids)

    async def touch(
        self, memory_key: str, group_key: str, ids: Sequence[bytes], ttl_seconds: int
    ) -> None:
        self.warm |= set(ids)


def gateway(
    script: Script,
    ledger: Ledger,
    index: Index,
    waits: list[float],
    forms: KnowsForms | None = None,
) -> Gateway:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    caller = Caller(
        script, ledger, index, prices=lambda _: PLAIN, tries=3, lease_seconds=9, sleep=sleep
    )
    chooser = OneDeployment(index, lambda _: PLAIN)
    return Gateway(
        ledger, chooser, caller, prices=lambda _: PLAIN, lease_seconds=9, forms=forms, sleep=sleep
    )


async def test_the_same_call_is_paid_once_and_another_occasion_is_another_call() -> None:
    script, ledger = Script(["one", "two", "three"]), Ledger()
    calls = gateway(script, ledger, Index(), [])
    first = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    again = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (first.text, again.text, script.asked) == ("one", "one", 1)
    await calls.call(make_ask("a"), model="m/x", scope=replace(SCOPE, occasion="revise:2:2"))
    await calls.call(replace(make_ask("a"), attempt=1), model="m/x", scope=SCOPE)
    assert len({call.key for call in ledger.calls}) == script.asked == 3


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
    calls = gateway(script, ledger, Index(), [])
    await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    await calls.call(other, model="m/x", scope=SCOPE)
    assert script.asked == 2


async def test_asks_that_differ_in_their_replys_schema_only_are_different_calls() -> None:
    schemas: list[dict[str, Any] | None] = [None, {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    ledger = Ledger()
    calls = gateway(Script(["" for _ in schemas]), ledger, Index(), [])
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

    knowing = gateway(Script([]), Ledger(), Index(), [], Forms())
    assert knowing.structured("m/strict")
    assert not knowing.structured("m/loose")
    assert not gateway(Script([]), Ledger(), Index(), []).structured("m/strict")


async def test_what_is_configured_of_a_model_makes_another_call() -> None:
    class Forms:
        settings = b""

        def structured(self, model: str) -> bool:
            return False

        def output_settings(self, model: str) -> bytes:
            return self.settings

    script, ledger, forms = Script(["one", "two", "three"]), Ledger(), Forms()
    calls = gateway(script, ledger, Index(), [], forms)
    texts = []
    for settings in (b"", b"settings:a", b"settings:b", b"settings:a", b""):
        forms.settings = settings
        texts.append((await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text)
    assert texts == ["one", "two", "three", "two", "one"]


async def test_what_may_pass_is_tried_again_and_every_try_is_in_the_ledger() -> None:
    waits: list[float] = []
    busy = ModelFailure("busy", retryable=True, retry_after_seconds=4.0)
    ledger = Ledger()
    calls = gateway(Script([busy, busy, "at last"]), ledger, Index(), waits)
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "at last"
    assert [call.failure for call in ledger.calls] == ["busy", "busy", None]
    assert all(4.0 <= wait <= 4.0 * (1 + JITTER) for wait in waits)
    assert len(set(waits)) == 2


async def test_waits_double_and_differ_between_calls_but_not_between_runs() -> None:
    async def waits_of(text: str) -> list[float]:
        waits: list[float] = []
        script = Script([ModelFailure("busy", retryable=True) for _ in range(2)] + ["done"])
        calls = gateway(script, Ledger(), Index(), waits)
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
    calls = gateway(Script([*far, "done"]), Ledger(), Index(), waits)
    await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert waits[0] >= 60.0
    assert waits[1] <= MAX_RETRY_AFTER_SECONDS * (1 + JITTER)


async def test_the_reply_of_whoever_was_first_counts() -> None:
    class Late(Ledger):
        async def record(
            self, scope: CallScope, call: Call, lease: Lease, *, last: bool
        ) -> ModelReply | None:
            return ModelReply(text="theirs", model=call.model)

    calls = gateway(Script(["ours"]), Late(), Index(), [])
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "theirs"


@pytest.mark.parametrize(("retryable", "tries"), [(False, 1), (True, 3)])
async def test_what_does_not_pass_is_raised(retryable: bool, tries: int) -> None:
    script = Script([ModelFailure("no", retryable=retryable) for _ in range(5)])
    with pytest.raises(ModelFailure, match="no"):
        await gateway(script, Ledger(), Index(), []).call(make_ask("a"), model="m/x", scope=SCOPE)
    assert script.asked == tries


async def test_the_prompt_before_is_predicted_to_be_cached() -> None:
    ledger, index = Ledger(), Index()
    calls = gateway(Script(["", "", ""]), ledger, index, [])
    for number, texts in enumerate((("a" * 400,), ("a" * 400, "b" * 80), ("c",))):
        scope = replace(SCOPE, occasion=f"revise:{number}:1")
        await calls.call(make_ask(*texts), model="m/x", scope=scope)
    assert [call.predicted_cached_tokens for call in ledger.calls] == [0, 100, 0]


async def test_calls_that_no_memory_makes_belong_to_their_session() -> None:
    calls = gateway(Script(["one", "two", "three"]), Ledger(), Index(), [])
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
    def prefix(texts: list[str], tenant: UUID = SCOPE.tenant_id, model: str = "m") -> object:
        return prefix_of(
            make_ask(*texts).segments, model=model, tenant_id=tenant, owner_id=SCOPE.owner_id
        )

    before, after = prefix(sent), prefix(now)
    warm = set(before.ids)  # type: ignore[attr-defined]
    common = 0
    for one, other in zip(sent, now, strict=False):
        if one != other:
            break
        common += len(one) // 4
    assert predict(after, warm, PLAIN) == common  # type: ignore[arg-type]
    assert predict(prefix(now, tenant=uuid4()), warm, PLAIN) == 0  # type: ignore[arg-type]
    assert predict(prefix(now, model="other"), warm, PLAIN) == 0  # type: ignore[arg-type]


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
    one = prefix_of(
        make_ask("x" * 8000).segments, model="m", tenant_id=UUID(int=1), owner_id=UUID(int=1)
    )
    coarse = replace(PLAIN, granularity_tokens=128, min_tokens=1024)
    assert predict(one, set(one.ids), coarse) == 1920
    assert predict(one, set(one.ids), replace(coarse, min_tokens=2001)) == 0
