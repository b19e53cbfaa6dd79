"""Reading along with a call: failed tries, stored replies, cancelled calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.flows import ModelRequest
from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.streamed_reply import StreamedReply
from service.llm.providers.transport import Completion
from tests.support.completions import completion
from tests.support.fake_index import DictIndex
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger, make_ask

ASK = make_ask("task")
FAILED = ModelFailure("it broke", retryable=True)


@dataclass
class Heard:
    """What a reader gets while a reply is written."""

    text: str = ""
    restarts: int = 0
    pieces: int = 0

    def on_text(self, text: str, restarts: bool) -> None:
        self.text = text if restarts else self.text + text
        self.restarts += restarts
        self.pieces += 1


@dataclass
class Writing:
    """Writes the parts of each try, and fails where it says so."""

    tries: list[tuple[list[str], ModelFailure | None]]
    plans: list[CallPlan] = field(default_factory=list)
    waits: Callable[[], asyncio.Future[None]] | None = None

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.plans.append(plan)
        parts, failure = self.tries.pop(0)
        for part in parts:
            if plan.on_text is not None:
                plan.on_text(part)
            await asyncio.sleep(0)
        if self.waits is not None:
            await self.waits()
        if failure is not None:
            raise failure
        return completion(
            "".join(parts), model, output_tokens=5, cached_tokens=None, cost_micro_usd=7
        )

    async def until_asked(self) -> None:
        """Waits until a try is under way."""
        async with asyncio.timeout(60):
            while not self.plans:
                await asyncio.sleep(0)


async def at_once(_: float) -> None:
    """Lets the others continue, and waits for nothing."""
    await asyncio.sleep(0)


def gateway(writing: Writing, ledger: Ledger) -> Gateway:
    index = DictIndex()
    executor = CallExecutor(
        writing, ledger, index, prices=lambda _: BRIEF, tries=3, lease_seconds=9, sleep=at_once
    )
    chooser = Router((), index, lambda _: BRIEF)
    return Gateway(
        ledger, chooser, executor, prices=lambda _: BRIEF, lease_seconds=9, sleep=at_once
    )


async def test_a_reply_is_heard_as_it_is_written() -> None:
    heard = Heard()
    one = gateway(Writing([(["a", "b", "c"], None)]), Ledger())
    reply = await one.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text)
    assert (heard.text, heard.restarts, heard.pieces) == (reply.text, 0, 3)


async def test_a_call_without_a_reader_streams_nothing() -> None:
    writing = Writing([(["a"], None)])
    await gateway(writing, Ledger()).call(ASK, model="m", scope=SCOPE)
    assert [plan.on_text for plan in writing.plans] == [None]


async def test_a_try_that_broke_is_void_when_the_next_one_begins() -> None:
    heard, ledger = Heard(), Ledger()
    writing = Writing([(["a", "b"], FAILED), ([], FAILED), (["x", "y"], None)])
    reply = await gateway(writing, ledger).call(ASK, model="m", scope=SCOPE, on_text=heard.on_text)
    assert (heard.text, heard.restarts) == ("xy", 1)
    assert reply.text == "xy"
    assert [call.failure for call in ledger.calls] == ["it broke", "it broke", None]
    assert [call.cost_micro_usd for call in ledger.calls] == [None, None, 7]


async def test_a_reply_that_is_there_is_heard_at_once() -> None:
    ledger = Ledger()
    one = gateway(Writing([(["a", "b"], None)]), ledger)
    await one.call(ASK, model="m", scope=SCOPE)
    heard = Heard()
    await one.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text)
    assert (heard.text, heard.pieces) == ("ab", 1)
    assert len(ledger.calls) == 1


async def test_who_waits_for_another_ones_call_hears_it_at_once() -> None:
    ledger, heard = Ledger(), Heard()
    lasts: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writing = Writing([(["a", "b"], None)], waits=lambda: lasts)
    one = gateway(writing, ledger)
    first = asyncio.create_task(one.call(ASK, model="m", scope=SCOPE))
    await writing.until_asked()
    other = gateway(Writing([]), ledger)
    second = asyncio.create_task(other.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text))
    await asyncio.sleep(0.01)
    assert not heard.pieces
    lasts.set_result(None)
    assert (await first).text == (await second).text == heard.text == "ab"
    assert (heard.pieces, len(ledger.calls)) == (1, 1)


async def test_a_call_that_is_called_off_fails_for_good_and_is_accounted() -> None:
    ledger, heard = Ledger(), Heard()
    writing = Writing([(["a"], None)], waits=lambda: asyncio.get_running_loop().create_future())
    one = gateway(writing, ledger)
    call = asyncio.create_task(one.call(ASK, model="m", scope=SCOPE, on_text=heard.on_text))
    while not heard.pieces:
        await asyncio.sleep(0)
    one.call_off(replace(SCOPE, occasion="answer:another"))
    await asyncio.sleep(0.01)
    assert not call.done()
    one.call_off(SCOPE)
    with pytest.raises(ModelFailure, match="called off") as caught:
        await call
    assert not caught.value.retryable
    assert [(one.failure, one.reply) for one in ledger.calls] == [(str(caught.value), None)]
    assert not ledger.intents, "its reservation is free"


async def test_a_call_that_is_only_not_waited_for_goes_on() -> None:
    ledger = Ledger()
    lasts: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writing = Writing([(["a"], None)], waits=lambda: lasts)
    one = gateway(writing, ledger)
    call = asyncio.create_task(one.call(ASK, model="m", scope=SCOPE))
    await writing.until_asked()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    lasts.set_result(None)
    while not ledger.calls:
        await asyncio.sleep(0)
    assert ledger.calls[0].reply == "a"


async def test_to_call_off_what_is_not_there_does_nothing() -> None:
    one = gateway(Writing([(["a"], None)]), Ledger())
    one.call_off(SCOPE)
    assert (await one.call(ASK, model="m", scope=SCOPE)).text == "a"
    one.call_off(SCOPE)


PARTS = st.lists(st.text("ab", max_size=2), max_size=4)


@given(st.lists(PARTS), PARTS, st.booleans())
def test_whatever_tries_say_the_whole_reply_is_heard_at_the_end(
    tries: list[list[str]], last: list[str], is_copy: bool
) -> None:
    heard = Heard()
    streamed = StreamedReply(heard.on_text)
    for parts in [*tries, *([] if is_copy else [last])]:
        streamed.begin()
        for part in parts:
            streamed.more(part)
    streamed.whole("".join(last))
    assert heard.text == "".join(last)
