"""The gateway against a scripted transport: what is one call is paid once."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from service.domain.calls.ledger import Call, CallScope, Lease
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose
from service.llm.gateway.gateway import call_key
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.prices import Prices
from service.llm.providers.requests import Requests
from service.settings.config import Config
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import SCOPE, Ledger, Script, gateway, make_ask


async def test_the_same_call_is_paid_once_and_another_occasion_is_another_call() -> None:
    script, ledger = Script(["one", "two", "three"]), Ledger()
    calls = gateway(script, ledger, DictIndex(), [])
    first = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    again = await calls.call(make_ask("a"), model="m/x", scope=SCOPE)
    assert (first.text, again.text, script.asked) == ("one", "one", 1)
    await calls.call(make_ask("a"), model="m/x", scope=replace(SCOPE, occasion="revise:2:2"))
    await calls.call(replace(make_ask("a"), attempt=1), model="m/x", scope=SCOPE)
    assert len({call.key for call in ledger.calls}) == script.asked == 3


async def test_a_reply_says_what_it_took_wherever_it_is_from() -> None:
    script, ledger = Script(["one"], cached_tokens=3), Ledger()
    calls = gateway(script, ledger, DictIndex(), [])
    took = ModelReply(text="one", model="m/x", input_tokens=6, cached_tokens=3, output_tokens=5)
    ask = make_ask("a" * 16)
    assert await calls.call(ask, model="m/x", scope=SCOPE) == took, "the provider"
    assert await calls.call(ask, model="m/x", scope=SCOPE) == took, "the ledger"
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
async def test_whatever_affects_the_output_makes_another_call(other: ModelRequest) -> None:
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
    # Ledgers of the releases before hold this one.
    assert call_key(ask, prefix, "m/x", SCOPE).hex() == (
        "80e60adf3f6787676985bd33e754ace0d8029c73c8987e07c800847918d239b1"
    )


async def test_what_is_configured_of_a_model_makes_another_call() -> None:
    class Settings(Requests):
        settings = b""

        def output_settings(self, model: str, purpose: Purpose) -> bytes:
            return self.settings

        def reply_tokens(self, ask: ModelRequest, model: str) -> int:
            return ask.max_output_tokens

    script, ledger = Script(["one", "two", "three"]), Ledger()
    held = Settings(Config(), Prices(Config()))
    calls = gateway(script, ledger, DictIndex(), [], held)
    texts = []
    for settings in (b"", b"settings:a", b"settings:b", b"settings:a", b""):
        held.settings = settings
        texts.append((await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text)
    assert texts == ["one", "two", "three", "two", "one"]


async def test_the_first_reply_counts() -> None:
    class Late(Ledger):
        async def record(
            self, scope: CallScope, call: Call, lease: Lease, *, last: bool
        ) -> ModelReply | None:
            return ModelReply(text="theirs", model=call.model)

    calls = gateway(Script(["ours"]), Late(), DictIndex(), [])
    assert (await calls.call(make_ask("a"), model="m/x", scope=SCOPE)).text == "theirs"


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
