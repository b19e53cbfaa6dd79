"""Core 14: many clients ask and disconnect at once, so that workers answer in vain."""

import asyncio
import threading

import psycopg

import palimpsest
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import api, worker
from verification.attacks.attack import Attack, Outcome, Stage

#: Questions whose clients leave, and how many of them ask at once.
ASKS, SHORT_ASKS = 2000, 300
AT_ONCE = 25
#: The worker's concurrency: what it may have begun while a client was still there.
CONCURRENCY = 4
#: What an honest client waits for its answer, once the model replies; it waited forever else.
SECONDS = 300

_OPEN = "SELECT count(*) FROM answer WHERE status = 'pending' AND waiter IS NOT NULL"


async def _run(stage: Stage) -> Outcome:
    asks = SHORT_ASKS if stage.short else ASKS
    url = stage.servers.new_database()
    release = threading.Event()

    def reply(number: int) -> str:
        release.wait(600)
        return "It is closed on Mondays."

    with fake_model() as model:
        model.reply = reply
        settings = {
            **model.settings,
            "PALIMPSEST_WORKER_CONCURRENCY": str(CONCURRENCY),
            "PALIMPSEST_MODEL_TIMEOUT_SECONDS": "600",
            # All of its places may wait for the model, which does not reply for now.
            "PALIMPSEST_SILENT_SECONDS": "600",
        }
        try:
            with api(url) as (_, address), worker(url, **settings):
                rows = stage.servers.as_superuser(url)
                return await _attack(address, rows, model, release, asks)
        finally:
            release.set()


async def _attack(
    address: str, rows: str, model: FakeModel, release: threading.Event, asks: int
) -> Outcome:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        await session.append("The museum is closed on Mondays.")
        left = await _flood(address, asks)
        honest = asyncio.create_task(session.ask("When is it closed?", reader="whole", timeout=600))
        # What its clients left is written down; the one that waits is not.
        async with await psycopg.AsyncConnection.connect(rows, autocommit=True) as database:
            async with asyncio.timeout(SECONDS):
                while True:
                    row = await (await database.execute(_OPEN)).fetchone()
                    if row is not None and row[0] <= 1 and len(model.prompts) >= 1:
                        break
                    await asyncio.sleep(0.1)
        release.set()
        async with asyncio.timeout(SECONDS):
            answer = await honest
        calls = len(model.prompts)
        resumed = await session.resume_answer(left[-1], timeout=SECONDS)
    # One more for the honest client.
    may = CONCURRENCY + 1
    held = calls <= may and answer.state == resumed.state == "done"
    return Outcome(
        held=held,
        found=f"{asks} asks whose clients left at once: {calls} model calls (may: {may}); a client"
        f" that stayed was answered, and so was one that came back",
    )


async def _flood(address: str, asks: int) -> list[str]:
    """Asks, and leaves as soon as each answer has an id; the ids."""
    left: list[str] = []
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(client: palimpsest.Client, number: int) -> None:
        stub = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
        request = answer_service_pb2.AskRequest(
            session="s", query=f"Question {number}?", reader=answer_service_pb2.READER_WHOLE
        )
        async with places:
            call = stub.Ask(request, timeout=SECONDS)
            async for told in call:
                if told.WhichOneof("event") == "reading":
                    left.append(told.reading.answer)
                    break
            call.cancel()

    async with palimpsest.connect(address) as client:
        await asyncio.gather(*(ask(client, number) for number in range(asks)))
    return left


ATTACK = Attack(
    name="abandoned_asks",
    finding="core 14",
    summary="asks questions and leaves as soon as each is stored",
    goal="the model is called for no more than a worker had begun before their clients left",
    before="300 asks: 301 model calls",
    run=_run,
)
