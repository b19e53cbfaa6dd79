"""Answers whose clients leave while a worker waits for its model, and a bound of questions."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import palimpsest
from palimpsest import AskEvent, Reading, sync
from tests.acceptance.memories.kept_memory import scripted
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker

#: An answer is abandoned so soon after its client has left.
SOON = {"PALIMPSEST_ABANDONED_ANSWER_SECONDS": "1"}
#: The schema of the answer, which takes a second call.
SCHEMA = '{"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}'
SECONDS = 250


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


class Held:
    """A model that holds its first reply back."""

    def __init__(self, model: FakeModel) -> None:
        self.release = threading.Event()
        model.reply = self.reply

    def reply(self, number: int) -> str:
        if number == 1:
            self.release.wait(SECONDS)
            return "It is closed on Mondays."
        return '{"day": "Monday"}'


async def _ask(session: palimpsest.Session) -> tuple[str, asyncio.Task[object]]:
    """Asks what takes two model calls; returns the answer's id and the waiting task."""
    told: list[AskEvent] = []
    asking: asyncio.Task[object] = asyncio.create_task(
        session.ask(
            "When?",
            reader="whole",
            response_schema=SCHEMA,
            timeout=SECONDS,
            on_event=told.append,
        )
    )
    async with asyncio.timeout(150):
        while not told:
            await asyncio.sleep(0.05)
    (reading,) = told
    assert isinstance(reading, Reading)
    return reading.answer, asking


async def _until_abandoned(session: palimpsest.Session, answer_id: str) -> None:
    """Lists instead of reading it: reading an answer counts as interest."""
    async with asyncio.timeout(150):
        while answer_id not in [one.id async for one in session.answers(state="abandoned")]:
            await asyncio.sleep(0.1)


@pytest.mark.prove
@pytest.mark.timeout(400)
async def test_an_answer_of_a_server_that_was_killed_stops_and_is_resumed(
    servers: Servers, model: FakeModel
) -> None:
    held, url = Held(model), servers.new_database()
    try:
        with worker(url, **SOON, **scripted(model)):
            with api(url, **SOON) as (first, address):
                async with palimpsest.connect(address) as client:
                    session = await client.create_session("s")
                    await session.append("The museum is closed on Mondays.")
                    answer_id, asking = await _ask(session)
                    async with asyncio.timeout(150):
                        while not model.prompts:
                            await asyncio.sleep(0.05)
                    first.kill()
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
            with api(url, **SOON) as (_, address):
                async with palimpsest.connect(address) as client:
                    session = client.session("s")
                    await _until_abandoned(session, answer_id)
                    stored = await session.answer(answer_id)
                    assert (stored.state, stored.text) == ("abandoned", "")
                    assert "resume" in stored.cause
                    held.release.set()
                    resumed = await session.resume_answer(answer_id, timeout=SECONDS)
                    assert resumed.value == {"day": "Monday"}
    finally:
        held.release.set()
    assert len(model.prompts) == 2, "nothing was paid for twice"


@pytest.mark.prove
@pytest.mark.timeout(400)
async def test_who_is_refused_for_want_of_room_comes_again(
    servers: Servers, model: FakeModel
) -> None:
    model.reply = lambda number: "It is closed on Mondays."
    url = servers.new_database()
    one_at_once = {"PALIMPSEST_LIMIT_MAX_PENDING_ANSWERS": "1"}
    with api(url, **one_at_once) as (_, address), sync.Client(address) as there:
        there.create_session("s").append("The museum is closed on Mondays.")
        async with palimpsest.connect(address) as client:
            session = client.session("s")
            _, first = await _ask(session)
            with pytest.raises(palimpsest.ResourceExhausted) as refused:
                await session.ask("When?", reader="whole", timeout=0.5)
            assert refused.value.reason == "TOO_MANY_PENDING"
            assert refused.value.metadata == {"limit": "1"}
            assert refused.value.retry_seconds
            second = asyncio.create_task(session.ask("When?", reader="whole", timeout=SECONDS))
            with worker(url, **scripted(model)):
                assert "Mondays" in (await second).text
                await first
