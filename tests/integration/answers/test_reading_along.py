"""Reading along through real sockets: a model that writes slowly, and a client that hears it."""

import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import grpc.aio
import pytest

import palimpsest
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from service.domain.answers.answer_updates import TextPiece, text_of
from tests.support.fake_model import FakeModel, fake_model
from tests.support.fake_streams import Streaming
from tests.support.guides import section
from tests.support.harness import Servers, api, worker

Asked = tuple["answer_service_pb2_grpc.AnswerServiceAsyncStub", answer_service_pb2.AskRequest]

#: Processes that start and import litellm take minutes on a machine with much else to do.
pytestmark = pytest.mark.timeout(600)
#: No test waits so long: what waits fails.
SECONDS = 180.0
ADD = '[OBJECTS FOR ADD]\n{"$.topics.ship": {"add": "It lies in the harbour."}}'
REPLY = "[ANSWER]\nA ship that lies in the harbour.\n[PATHS]\n$.topics.ship\n"
TEXT = "A ship that lies in the harbour."


@pytest.fixture(scope="module")
def service(servers: Servers) -> Iterator[tuple[str, FakeModel]]:
    """Yields the address of a service, and its model."""
    url = servers.new_database()
    with fake_model() as model:
        with api(url, **model.settings) as (_, address), worker(url, **model.settings):
            yield address, model


@pytest.fixture
def model(service: tuple[str, FakeModel]) -> FakeModel:
    """Returns the model, which first revises a memory and then answers."""
    service[1].prompts.clear()
    service[1].streaming = Streaming(part_characters=5)
    service[1].reply = lambda n: ADD if n == 1 else REPLY
    return service[1]


@pytest.fixture
async def asked(service: tuple[str, FakeModel], model: FakeModel) -> AsyncIterator[Asked]:
    """Asks a memory that has read everything, with streamed text."""
    name = f"s-{uuid4().hex}"
    async with palimpsest.connect(service[0]) as client:
        session = await client.create_session(name)
        schema = "class A:\n    topics: dict[str, str]\n"
        memory = await session.create_memory("m", schema)
        async with session.producer("p") as producer:
            await producer.append("A ship lies in the harbour.")
            ack = await producer.flush()
        assert ack is not None
        await memory.get(after=ack.read_token, timeout=SECONDS)
    async with grpc.aio.insecure_channel(service[0]) as channel:
        request = answer_service_pb2.AskRequest(
            session=name, memory="m", query="What is it?", stream_text=True
        )
        yield answer_service_pb2_grpc.AnswerServiceStub(channel), request


def piece_of(event: answer_service_pb2.AskEvent) -> TextPiece | None:
    if event.WhichOneof("event") != "text":
        return None
    one = event.text
    return TextPiece(ordinal=one.ordinal, text=one.text, restarts=one.restarts)


async def told(
    stub: "answer_service_pb2_grpc.AnswerServiceAsyncStub", request: answer_service_pb2.AskRequest
) -> tuple[list[TextPiece], str]:
    """Returns the pieces of a question's answer, and its text."""
    pieces: list[TextPiece] = []
    text = ""
    async for event in stub.Ask(request, timeout=SECONDS):
        assert not text, "the answer is last"
        if (piece := piece_of(event)) is not None:
            pieces.append(piece)
        text = event.answer.text
    return pieces, text


async def test_the_first_piece_comes_while_the_model_is_still_writing(
    model: FakeModel, asked: Asked
) -> None:
    goes_on, has_ended = threading.Event(), threading.Event()

    def before(number: int) -> None:
        if number == 8:
            assert goes_on.wait(SECONDS)
            has_ended.set()

    model.streaming.before = before
    stub, request = asked
    pieces: list[TextPiece] = []
    text = ""
    try:
        async for event in stub.Ask(request, timeout=SECONDS):
            if (piece := piece_of(event)) is not None:
                assert pieces or not has_ended.is_set()
                pieces.append(piece)
                # The model continues when this was heard, and not before.
                goes_on.set()
            text = event.answer.text
    finally:
        goes_on.set()
    assert text == text_of(pieces) == TEXT
    assert TEXT.startswith(pieces[0].text)
    assert pieces[0].text != TEXT
    assert model.requests[-1]["stream"] is True


async def test_a_broken_stream_is_a_failed_call_and_the_text_is_sent_in_any_case(
    model: FakeModel, asked: Asked
) -> None:
    # Long enough that the text before it was streamed.
    model.streaming.before = lambda number: time.sleep(number == 8)

    def reply(number: int) -> str:
        model.streaming.breaks_behind = 8 if number == 2 else None
        return ADD if number == 1 else REPLY

    model.reply = reply
    pieces, text = await told(*asked)
    assert text == text_of(pieces) == TEXT
    assert len(model.prompts) == 3
    assert not pieces[0].restarts


async def test_who_does_not_ask_for_it_hears_no_text(model: FakeModel, asked: Asked) -> None:
    stub, request = asked
    request.stream_text = False
    assert await told(stub, request) == ([], TEXT)
    assert not model.requests[-1].get("stream")


async def test_the_guides_code_reads_along(service: tuple[str, FakeModel], asked: Asked) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", section("asking", "Reading along"), re.DOTALL)
    lines = "\n".join(f"    {line}" for line in code.replace("notes", "m").splitlines())
    names: dict[str, Any] = {}
    exec(f"async def guide(session):\n{lines}\n    return text", names)
    async with palimpsest.connect(service[0]) as client:
        assert await names["guide"](client.session(asked[1].session)) == TEXT
