"""Models that reply slowly, or never: how long calls wait, and what ends them."""

import asyncio
from typing import Any

import pytest

from service.domain.prompting.flows import ModelRequest
from service.llm.embeddings.embedding import EmbeddingFailed
from service.llm.embeddings.litellm_embedder import LitellmEmbedder
from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from tests.support.fake_index import DictIndex
from tests.support.unresponsive_model import UnresponsiveModel, unresponsive_model, warm_litellm
from tests.unit.calls.scripted_calls import BRIEF, SCOPE, Ledger, make_ask

ASK = make_ask("task")


def config(model: UnresponsiveModel, **settings: Any) -> Config:
    return Config(
        model="openai/fake",
        model_base_url=model.url,
        embedding_model="openai/fake-vectors",
        embedding_base_url=model.url,
        **settings,
    )


@pytest.mark.prove
async def test_a_reply_that_drips_is_bounded_as_a_whole() -> None:
    await warm_litellm()
    seconds = 1.0
    async with unresponsive_model(drips_seconds=0.05) as model, asyncio.timeout(250):
        for number, plan in enumerate((CallPlan(), CallPlan(on_text=lambda _: None)), 1):
            # On a busy machine a call may end before it has sent anything.
            while len(model.requests) < number:
                seconds *= 2
                transport = LitellmTransport(config(model, model_timeout_seconds=seconds))
                with pytest.raises(ModelFailure, match="could not be reached") as failed:
                    await transport.complete(ASK, "openai/fake", plan)
                assert failed.value.retryable
            await model.until(left=number)


async def test_vectors_that_drip_are_bounded_as_a_whole() -> None:
    seconds, ledger = 0.5, Ledger()
    async with unresponsive_model(drips_seconds=0.05) as model, asyncio.timeout(250):
        # As above.
        while not model.requests:
            seconds *= 2
            settings = config(model, embedding_timeout_seconds=seconds)
            with pytest.raises(EmbeddingFailed, match="could not be reached"):
                await LitellmEmbedder(settings, ledger).embed_query("a question", scope=SCOPE)
        await model.until(left=1)
    assert not ledger.intents


async def test_a_question_whose_asker_is_gone_leaves_the_model_for_vectors() -> None:
    async with unresponsive_model() as model:
        ledger = Ledger()
        embedder = LitellmEmbedder(config(model), ledger)
        asked = asyncio.create_task(embedder.embed_query("a question", scope=SCOPE))
        async with asyncio.timeout(60):
            await model.until(requests=1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await model.until(left=1)
        # What was reserved for it is free, and it is in the ledger.
        assert not ledger.intents
        assert [call.reply for call in ledger.calls] == [None]


class Failing:
    """A model that is to be left alone for a while after each try."""

    def __init__(self) -> None:
        self.tries = 0

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.tries += 1
        raise ModelFailure("it broke", retryable=True, retry_after_seconds=100)


async def test_a_call_that_waits_for_its_next_try_is_called_off() -> None:
    waits, failing, ledger = asyncio.Event(), Failing(), Ledger()

    async def sleep(_: float) -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    executor = CallExecutor(
        failing, ledger, DictIndex(), prices=lambda _: BRIEF, tries=3, lease_seconds=9, sleep=sleep
    )
    chooser = Router((), DictIndex(), lambda _: BRIEF)
    gateway = Gateway(ledger, chooser, executor, prices=lambda _: BRIEF, lease_seconds=9)
    call = asyncio.create_task(gateway.call(ASK, model="m", scope=SCOPE))
    async with asyncio.timeout(30):
        await waits.wait()
        gateway.call_off(SCOPE)
        with pytest.raises(ModelFailure, match="called off"):
            await call
    assert failing.tries == 1
    assert not ledger.intents
