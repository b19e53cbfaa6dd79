"""The client without `await`: blocking calls, and threads where the other has tasks."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest import sync
from palimpsest.v1 import answer_service_pb2, common_pb2
from tests.support.properties import examples
from tests.unit.client.agent_service import Service
from tests.unit.client.server import add, serving
from tests.unit.client.test_producer import Log

T = TypeVar("T")
LOST = st.sampled_from([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_producer", "_history"):
        monkeypatch.setattr(f"palimpsest._sync.{module}.STREAM_BACKOFF_SECONDS", (0.001, 0.01))


async def used(register: Any, use: Callable[[sync.Client], T]) -> T:
    """Uses a client in a thread: the loop of this one is the server's."""

    def run(port: int) -> T:
        with sync.connect(f"127.0.0.1:{port}") as client:
            return use(client)

    async with serving(register) as port:
        return await asyncio.to_thread(run, port)


@settings(max_examples=examples(15))
@given(cuts=st.lists(st.tuples(st.integers(0, 4), LOST), max_size=6))
async def test_wherever_streams_end_each_chunk_is_stored_once(
    cuts: list[tuple[int, grpc.StatusCode]],
) -> None:
    log = Log(cuts)
    texts = [f"chunk {number}" for number in range(12)]

    def use(client: sync.Client) -> palimpsest.Ack | None:
        with client.session("s").producer("p") as producer:
            assert [producer.append(text) for text in texts] == list(range(1, 13))
            return producer.flush()

    ack = await used(log.register, use)
    assert log.texts == texts
    assert ack is not None
    assert ack.producer_sequence == 12


async def test_threads_share_a_producer() -> None:
    log = Log([(3, grpc.StatusCode.UNAVAILABLE)])

    def use(client: sync.Client) -> list[int]:
        with client.session("s").producer("p") as producer, ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: producer.append(str(n)), range(200)))

    numbers = await used(log.register, use)
    assert sorted(numbers) == list(range(1, 201))
    # What a call returned is where its chunk is.
    assert [log.texts[number - 1] for number in numbers] == [str(n) for n in range(200)]


async def test_a_refusal_ends_a_producer_and_is_raised_once() -> None:
    log = Log([(1, grpc.StatusCode.ABORTED)])

    def use(client: sync.Client) -> None:
        with client.session("s").producer("p") as producer:
            producer.append("a")
            with pytest.raises(palimpsest.Aborted, match="as the test says"):
                producer.flush()
            with pytest.raises(palimpsest.ProducerClosed, match="has ended"):
                producer.append("b")

    await used(log.register, use)


async def test_no_thread_is_left() -> None:
    log = Log([])

    def use(client: sync.Client) -> None:
        for _ in range(3):
            with client.session("s").producer("p") as producer:
                producer.append("a")

    await used(log.register, use)
    assert not [one.name for one in threading.enumerate() if one.name == "palimpsest"]


def test_a_producer_of_a_closed_client_says_so() -> None:
    with sync.connect("127.0.0.1:1") as client:
        session = client.session("s")
    with pytest.raises(palimpsest.ProducerClosed, match="client of this producer is closed"):
        with session.producer("p"):
            pass


async def test_an_agents_loop_goes_on_where_it_was() -> None:
    service = Service()

    def use(client: sync.Client) -> list[int]:
        steps = []
        for number in range(2):
            with client.agent("run") as agent:
                steps.append(agent.step)
                assert agent.record(action=f"go{number}").position == number + 1
                assert f"go{number}" in agent.context().text
        return steps

    assert await used(service.register, use) == [1, 2]


async def test_answers_are_resumed_where_their_call_was_lost() -> None:
    asked: list[Any] = []
    reading = answer_service_pb2.AskEvent.Reading(answer="a")
    answer = answer_service_pb2.Answer(
        id="a", text="On Mondays.", state=common_pb2.OPERATION_STATE_DONE
    )

    async def Ask(request: answer_service_pb2.AskRequest, context: Any) -> Any:
        asked.append(request)
        yield answer_service_pb2.AskEvent(reading=reading)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test says")

    async def ResumeAnswer(request: answer_service_pb2.ResumeAnswerRequest, context: Any) -> Any:
        asked.append(request)
        yield answer_service_pb2.AskEvent(answer=answer)

    def register(server: Any) -> None:
        add(server, "AnswerService", "told", Ask, answer_service_pb2.AskRequest)
        add(server, "AnswerService", "told", ResumeAnswer, answer_service_pb2.ResumeAnswerRequest)

    events: list[palimpsest.AskEvent] = []
    callers: set[int] = set()

    def use(client: sync.Client) -> tuple[palimpsest.Answer, bool]:
        def note(event: palimpsest.AskEvent) -> None:
            events.append(event)
            callers.add(threading.get_ident())

        made = client.session("s").ask("When?", on_event=note)
        return made, callers == {threading.get_ident()}

    made, own = await used(register, use)
    assert (made.text, [type(one) for one in events]) == ("On Mondays.", [palimpsest.Reading])
    assert own, "callbacks come in the caller's thread"
    assert [type(one).__name__ for one in asked] == ["AskRequest", "ResumeAnswerRequest"]


async def test_calls_block_without_a_loop() -> None:
    def use(client: sync.Client) -> bool:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        client.session("s").info()
        return isinstance(client.channel, grpc.Channel)

    assert await used(Service().register, use)
