"""Answers that are cancelled while a real worker waits for a model, which is slow."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

import palimpsest
from palimpsest import AskEvent, Reading
from tests.acceptance.memories.kept_memory import scripted
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


@pytest.mark.timeout(400)
async def test_a_worker_is_free_again_when_its_answer_is_cancelled(
    servers: Servers, model: FakeModel
) -> None:
    release = threading.Event()

    def reply(number: int) -> str:
        if number == 1:
            release.wait(250)
        return "It is closed on Mondays."

    model.reply = reply
    url = servers.new_database()
    one_at_once = {"PALIMPSEST_WORKER_CONCURRENCY": "1", **scripted(model)}
    with api(url) as (_, address), worker(url, **one_at_once):
        try:
            async with palimpsest.connect(address) as client:
                await _cancel_the_first(client, model)
        finally:
            release.set()


async def _cancel_the_first(client: palimpsest.Client, model: FakeModel) -> None:
    session = await client.create_session("s")
    state = await session.create_state("state")
    async with session.producer("p") as producer:
        await producer.append("The museum is closed on Mondays.")
    told: list[AskEvent] = []
    first = asyncio.create_task(state.ask("When?", timeout=250, on_event=told.append))
    async with asyncio.timeout(150):
        # The client gets its events by another way than the model its prompt.
        while not (model.prompts and told):
            await asyncio.sleep(0.05)
    (reading,) = told
    assert isinstance(reading, Reading)
    # It waits for the only place of the only worker, whose model does not reply.
    second = asyncio.create_task(state.ask("When is it closed?", timeout=250))
    cancelled = await session.cancel_answer(reading.answer)
    assert cancelled.state == "cancelled"
    with pytest.raises(palimpsest.Cancelled):
        await first
    assert "Mondays" in (await second).text
    assert len(model.prompts) == 2
    # The call that was under way is in the ledger once it has ended.
    after = await session.answer(reading.answer)
    assert replace(after, usage=cancelled.usage) == cancelled
    assert [one.state async for one in session.answers()] == ["done", "cancelled"]
