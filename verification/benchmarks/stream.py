"""Benchmark `stream`: from the model's first token of an answer to the client's first piece.

An API, a worker with its executor, and a model that writes a part each 20 ms. The
clock starts when the model writes the first part that has text of the answer, and stops when
the client of Ask has the first piece. Besides: questions whose text no
client reads as it is written, from the model's whole reply to the answer.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpc import aio

import palimpsest
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from tests.support.fake_model import FakeModel, fake_model
from tests.support.fake_streams import Streaming
from tests.support.harness import Servers, api, worker

PART_SECONDS = 0.02
PART_CHARACTERS = 5
#: Questions before the clock runs: imports, connections, plans.
FIRST_QUESTIONS = 3
#: Questions of each kind at most.
QUESTIONS = 200
GOAL_MS = 250
ADD = '[OBJECTS FOR ADD]\n{"$.topics.ship": {"add": "It lies in the harbour."}}'
HEADER = "[ANSWER]\n"
REPLY = HEADER + "A ship lies in the harbour. " * 5 + "\n[PATHS]\n$.topics.ship\n"


@dataclass
class Clock:
    """When the model wrote, by the clock of all processes of the machine."""

    #: The first part that has text of the answer.
    first: float = 0.0
    #: The whole reply.
    last: float = 0.0

    def before(self, number: int) -> None:
        """The model is about to write a part."""
        time.sleep(PART_SECONDS)
        if number == len(HEADER) // PART_CHARACTERS + 1:
            self.first = time.monotonic()
        self.last = time.monotonic()


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    clock = Clock()
    with Servers.started() as servers, fake_model() as model:
        url = servers.new_database()
        model.streaming = Streaming(part_characters=PART_CHARACTERS, before=clock.before)
        with api(url, **model.settings) as (_, address), worker(url, **model.settings):
            return asyncio.run(_measure(address, model, clock, seconds))


async def _measure(address: str, model: FakeModel, clock: Clock, seconds: float) -> dict[str, Any]:
    await _prepare(address, model)

    def reply(_: int) -> str:
        clock.last = time.monotonic()
        return REPLY

    model.reply = reply
    async with aio.insecure_channel(address) as channel:
        stub = answer_service_pb2_grpc.AnswerServiceStub(channel)

        async def told() -> tuple[float, float]:
            """Returns the seconds after the model's first token, and after its last."""
            heard = 0.0
            async for event in stub.Ask(_question(stream_text=True)):
                if event.HasField("text") and not heard:
                    heard = time.monotonic()
            assert heard, "the text was told"
            return heard - clock.first, time.monotonic() - clock.last

        async def plain() -> tuple[float, float]:
            async for event in stub.Ask(_question(stream_text=False)):
                assert not event.HasField("text")
            return 0.0, time.monotonic() - clock.last

        of_told = await _all(told, seconds / 2)
        of_plain = await _all(plain, seconds / 2)
    first = _figures([one for one, _ in of_told])
    return {
        "value": first["p95_ms"],
        "goal": f"<= {GOAL_MS}",
        "first_piece": first,
        "answer_behind_the_last_token": {
            "told": _figures([one for _, one in of_told]),
            "not_told": _figures([one for _, one in of_plain]),
        },
        "questions": {"told": len(of_told), "not_told": len(of_plain)},
    }


async def _prepare(address: str, model: FakeModel) -> None:
    model.reply = lambda _: ADD
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", "class A:\n    topics: dict[str, str]\n")
        async with session.producer("p") as producer:
            await producer.append("A ship lies in the harbour.")
            ack = await producer.flush()
        assert ack is not None
        await memory.get(after=ack.read_token, timeout=60)


def _question(*, stream_text: bool) -> answer_service_pb2.AskRequest:
    return answer_service_pb2.AskRequest(
        session="s", memory="m", query="What is it?", stream_text=stream_text
    )


async def _all(one: Callable[[], Any], seconds: float) -> list[tuple[float, float]]:
    """Asks as many questions as there is time for, one after the other."""
    for _ in range(FIRST_QUESTIONS):
        await one()
    took: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(took) < QUESTIONS and (len(took) < 2 or time.monotonic() - began < seconds):
        took.append(await one())
    return took


def _figures(seconds: list[float]) -> dict[str, float]:
    return {
        "p50_ms": round(statistics.median(seconds) * 1000, 1),
        "p95_ms": round(statistics.quantiles(seconds, n=20, method="inclusive")[18] * 1000, 1),
    }
