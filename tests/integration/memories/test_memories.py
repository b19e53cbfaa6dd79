"""Memories and answers over gRPC, kept by a real worker with the offline model."""

import asyncio
from typing import Any
from uuid import uuid4

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import palimpsest
from palimpsest import PositionRange, Reading, Waiting, sync
from tests.support.harness import Servers, api
from tests.support.sending import send

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
TEXTS = [
    "The harbour museum\n====\n\nThe harbour museum is a collection of old ships in the north.",
    "The bakery\n====\n\nThe bakery is the oldest house of the town and sells rolls at night.",
    "The harbour museum\n====\n\nThe harbour museum is closed on Mondays and during the winter.",
]


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"memory-{uuid4().hex}")


async def test_an_ask_with_the_acks_token_sees_what_was_written(session: Any) -> None:
    memory = await session.create_memory(
        "notes", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
    )
    token = await send(session, *TEXTS)
    heard: list[Waiting | Reading] = []
    answer = await memory.ask(
        "When is the harbour museum closed?", after=token, on_event=heard.append
    )
    assert "closed on Mondays" in answer.text
    assert answer.citations[0].position == 3
    assert (answer.read_point.applied_position, answer.model) == (3, "offline/extractive")
    assert isinstance(heard[-1], Reading)
    assert heard[-1].answer == answer.id
    assert await session.answer(answer.id) == answer
    assert answer.usage.calls == 1


async def test_any_revision_can_be_read_and_the_log_explains_it(session: Any) -> None:
    memory = await session.create_memory(
        "notes", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
    )
    await send(session, *TEXTS)
    newest = await memory.get(fully_applied=True)
    assert (newest.revision, newest.applied_position) == (3, 3)
    assert (await memory.get(revision=0)).value == {}
    first = await memory.get(revision=1)
    assert list(first.value["topics"]) == ["harbour museum"]
    assert len(first.value["topics"]["harbour museum"]) == 1
    assert len(newest.value["topics"]["harbour museum"]) == 2
    changes = [change async for change in memory.amendments()]
    assert [(c.revision, c.op, c.positions) for c in changes] == [
        (1, "add", PositionRange(first=1, last=1)),
        (2, "add", PositionRange(first=2, last=2)),
        (3, "add", PositionRange(first=3, last=3)),
    ]
    assert [one async for one in memory.rejections()] == []
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await memory.get(revision=4)
    assert caught.value.metadata == {"revision": "4", "newest": "3"}


async def test_a_late_memory_catches_up_from_the_beginning(session: Any) -> None:
    await send(session, *TEXTS)
    memory = await session.create_memory("late", schema_source=SCHEMA)
    state = await memory.get(fully_applied=True)
    assert (state.applied_position, state.revision) == (3, 1)
    assert [info.id for info in await session.memories()] == ["late"]


async def test_small_chunks_are_taken_together(session: Any) -> None:
    await send(session, *(f"{n} " + "word " * 40 for n in range(10)))
    memory = await session.create_memory("grouped", schema_source=SCHEMA, chunk_tokens=110)
    await memory.get(fully_applied=True)
    kinds = [one.kind async for one in memory.revisions()]
    assert kinds.count("step") == 5


async def test_a_fold_is_a_revision_of_its_own_and_changes_nothing(session: Any) -> None:
    memory = await session.create_memory(
        "folding", schema_source=SCHEMA, chunk_tokens=1, fold_tokens=1
    )
    await send(session, *TEXTS)
    state = await memory.get(fully_applied=True)
    assert state.revision in (5, 6), "three steps, and a fold behind each but maybe the last"
    values = [(await memory.get(revision=n)).value for n in range(state.revision + 1)]
    changed = {change.revision async for change in memory.amendments()}
    for number in range(1, state.revision + 1):
        assert (values[number] != values[number - 1]) == (number in changed)


async def test_usage_counts_every_call_and_predicts_the_cache(session: Any) -> None:
    memory = await session.create_memory(
        "notes", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
    )
    token = await send(session, *TEXTS)
    await memory.ask("What is the bakery?", after=token)
    report = await session.usage("notes")
    assert {line.purpose: line.usage.calls for line in report.lines} == {"answer": 1, "revise": 3}
    assert report.total.cost_micro_usd == 0
    assert report.total.unreported_calls == report.total.calls
    assert not report.total.is_reported
    assert 0 < report.total.predicted_cached_tokens < report.total.input_tokens
    assert report == await session.usage()


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("class A(", "1", "8"),
        ("class A:\n    x: set[int]", "2", "8"),
        ("import os\nos.abort()", "1", "1"),
    ],
)
async def test_a_bad_schema_is_refused_with_its_place(
    session: Any, source: str, line: str, column: str
) -> None:
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await session.create_memory("bad", schema_source=source)
    assert caught.value.reason == "SCHEMA_INVALID"
    assert caught.value.metadata == {"line": line, "column": column}
    assert await session.memories() == []


async def test_names_that_are_taken_or_unknown_are_refused(client: Any, session: Any) -> None:
    await session.create_memory("notes", schema_source=SCHEMA)
    with pytest.raises(palimpsest.AlreadyExists, match="has a memory 'notes' already"):
        await session.create_memory("notes", schema_source=SCHEMA)
    with pytest.raises(palimpsest.AlreadyExists, match="there is a session"):
        await client.create_session(session.id)
    with pytest.raises(palimpsest.NotFound, match="has no memory 'other'"):
        await session.memory("other").get()
    with pytest.raises(palimpsest.NotFound, match="has no memory 'other'"):
        await session.memory("other").ask("?")
    with pytest.raises(palimpsest.NotFound, match="there is no session 'nobody'"):
        await client.session("nobody").memory("notes").get()
    with pytest.raises(palimpsest.NotFound, match="has no answer"):
        await session.answer(str(uuid4()))
    with pytest.raises(
        palimpsest.InvalidArgument, match=r"session\.id: must be printable, without a slash"
    ):
        await client.create_session("no/slashes")
    with pytest.raises(palimpsest.InvalidArgument, match="answer: "):
        await session.answer("7")


async def test_a_session_has_a_bounded_number_of_memories(session: Any) -> None:
    for number in range(64):
        await session.create_memory(f"m{number}", schema_source=SCHEMA)
    with pytest.raises(palimpsest.ResourceExhausted) as caught:
        await session.create_memory("m64", schema_source=SCHEMA)
    assert caught.value.reason == "TOO_MANY_MEMORIES"
    assert len(await session.memories()) == 64


async def test_wrong_tokens_are_refused(client: Any, session: Any) -> None:
    memory = await session.create_memory("notes", schema_source=SCHEMA)
    other = await client.create_session(f"other-{uuid4().hex}")
    foreign = await send(other, "x y z")
    for token in ("nonsense", foreign):
        with pytest.raises(palimpsest.InvalidArgument, match="not issued") as caught:
            await memory.get(after=token)
        assert caught.value.reason == "TOKEN_INVALID"
        with pytest.raises(palimpsest.InvalidArgument, match="not issued"):
            await memory.ask("?", after=token)


async def test_pages_of_sessions_have_no_holes(client: Any) -> None:
    names = sorted([f"page-{uuid4().hex}" for _ in range(5)])
    for name in names:
        await client.create_session(name)
    listed = [info.id async for info in client.sessions()]
    assert [name for name in listed if name in names] == names
    assert listed == sorted(listed)


async def test_the_synchronous_face_does_the_same(address: str) -> None:
    def work() -> tuple[str, int, list[str]]:
        with sync.Client(address) as client:
            session = client.create_session(f"sync-{uuid4().hex}")
            memory = session.create_memory("notes", schema_source=SCHEMA)
            with session.producer("p") as producer:
                producer.append(TEXTS[0])
                ack = producer.flush()
            assert ack is not None
            answer = memory.ask("What is the harbour museum?", after=ack.read_token)
            memory.get()
            return answer.text, len(list(memory.amendments())), [c.text for c in session.chunks()]

    text, amendments, texts = await asyncio.to_thread(work)
    assert "collection of old ships" in text
    assert (amendments, texts) == (1, [TEXTS[0]])


async def test_health_is_served_and_no_reflection(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        status = await health.Check(health_pb2.HealthCheckRequest())
        assert status.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as refused:
        await asyncio.to_thread(_reflected, address)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_setting_turns_reflection_on(servers: Servers) -> None:
    with api(servers.new_database(), PALIMPSEST_REFLECTION="true") as (_, address):
        assert {"palimpsest.v1.SessionService", "palimpsest.v1.OperationService"} <= set(
            await asyncio.to_thread(_reflected, address)
        )


def _reflected(address: str) -> list[str]:
    """Returns the services that a server says it has.

    Asks without asyncio: a call of grpc.aio that is refused before its message was written may end
    with INTERNAL ("Internal error from Core") in place of the refusal.
    """
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return [
            one.name
            for reply in stub.ServerReflectionInfo(iter([question]))
            for one in reply.list_services_response.service
        ]


async def test_a_missing_service_is_one_clear_line() -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        with pytest.raises(
            palimpsest.ConnectionFailed, match=r"^cannot reach Palimpsest at 127.0.0.1:1; start it"
        ):
            await client.call(client._connection.sessions.GetSession, _get_session(), timeout=0.5)


def _get_session() -> Any:
    from palimpsest.v1 import session_service_pb2

    return session_service_pb2.GetSessionRequest(session="s")
