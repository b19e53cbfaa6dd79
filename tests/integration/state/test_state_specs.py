"""The limits of a state memory's spec, over gRPC."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest.v1 import memories_pb2, memory_service_pb2, memory_service_pb2_grpc
from service.domain.state.spec import DEFAULT_PERIOD_TOKENS, StateSpec
from tests.support.harness import Servers, api

STATE = "state"
LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"task": "x" * 32_769}, "memory.state.task"),
    ({"task": "a\0b"}, "memory.state.task"),
    ({"period": 1001}, "memory.state.period"),
    ({"period_kind": 3}, "memory.state.period_kind"),
    ({"period_tokens": 1_000_001}, "memory.state.period_tokens"),
    ({"idle": {"seconds": -1}}, "memory.state.idle"),
    ({"idle": {"nanos": 999_000_000}}, "memory.state.idle"),
    ({"idle": {"seconds": 30 * 86_400 + 1}}, "memory.state.idle"),
    ({"state_tokens": 31}, "memory.state.state_tokens"),
    ({"state_tokens": 32_001}, "memory.state.state_tokens"),
    ({"pinned": ["x"] * 33}, "memory.state.pinned"),
    ({"pinned": [""]}, "memory.state.pinned[0]"),
    ({"pinned": ["x", "é" * 501]}, "memory.state.pinned[1]"),
    ({"pinned": ["a", "b\0"]}, "memory.state.pinned[1]"),
    ({"pinned": ["x" * 900, "y" * 200]}, "memory.state.pinned"),
    ({"pinned": ["x" * 65], "state_tokens": 32}, "memory.state.pinned"),
    ({"episode_vectors": 1}, "memory.state.episode_vectors"),
    ({"episode_vectors": 65}, "memory.state.episode_vectors"),
    ({"model": "m" * 257}, "memory.state.model"),
    ({"model": "a/\0"}, "memory.state.model"),
    ({"reply_format": 9}, "memory.state.reply_format"),
    ({"on_failure": 9}, "memory.state.on_failure"),
]


@pytest.mark.parametrize(("spec", "field"), LIMITS)
async def test_what_is_wrong_with_a_spec_is_said_before_anything_is_made(
    client: palimpsest.Client, spec: dict[str, Any], field: str
) -> None:
    session = await client.create_session(f"run-{uuid4().hex}")
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    wanted = memories_pb2.StateSpec(**spec)
    request = memory_service_pb2.CreateMemoryRequest(
        memory=memories_pb2.Memory(session=session.id, id=STATE, state=wanted)
    )
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await client.call(stub.CreateMemory, request, retry=False)
    assert refused.value.reason == "FIELD_INVALID"
    assert list(refused.value.fields) == [field]
    assert "\n" not in str(refused.value)
    assert await session.memories() == []


async def test_a_new_memory_is_bounded_by_tokens_and_a_stored_one_as_it_was(
    client: palimpsest.Client,
) -> None:
    session = await client.create_session(f"run-{uuid4().hex}")
    info = (await (await session.create_state(STATE)).get()).info
    assert info.state is not None
    assert info.state.period_tokens == DEFAULT_PERIOD_TOKENS == 4000
    stored = StateSpec().to_json()
    assert StateSpec.from_json(stored).period_tokens == stored["period_tokens"] == 0


async def test_a_memory_that_is_never_compressed_for_its_tokens_stays_so_when_it_is_rebuilt(
    client: palimpsest.Client,
) -> None:
    session = await client.create_session(f"run-{uuid4().hex}")
    state = await session.create_state(STATE, period_tokens=0)
    settings = (await state.get()).info.state
    assert settings is not None
    assert settings.period_tokens == 0
    for name, changed, kept in (
        ("same", None, 0),
        ("other", replace(settings, period=3), 0),
        ("bounded", replace(settings, period_tokens=7), 7),
        ("default", replace(settings, period_tokens=None), DEFAULT_PERIOD_TOKENS),
    ):
        await state.rebuild(name, settings=changed)
        made = (await session.state(name).get()).info.state
        assert made is not None
        assert made.period_tokens == kept
    await session.create_state(STATE, period_tokens=0, exist_ok=True)
    with pytest.raises(palimpsest.AlreadyExists, match="period_tokens"):
        await session.create_state(STATE, period_tokens=5, exist_ok=True)


async def test_the_largest_spec_is_made(client: palimpsest.Client) -> None:
    session = await client.create_session(f"run-{uuid4().hex}")
    made = await session.create_state(
        STATE,
        task="t" * 32_768,
        period=1000,
        period_kind="adaptive",
        period_tokens=1_000_000,
        idle_seconds=30 * 86_400,
        state_tokens=32_000,
        pinned=("p" * 1000,) * 32,
        episode_vectors=64,
        model=f"offline/{'m' * 192}",
    )
    info = (await made.get()).info
    assert info.state is not None
    assert (info.state.period, info.state.idle_seconds) == (1000, 30 * 86_400)
    assert (await made.context()).text == "Task:\n" + "t" * 32_768


@pytest.mark.parametrize(("kind", "period"), [("fixed", 10), ("adaptive", 3)])
async def test_a_period_that_would_stop_producers_is_refused(
    servers: Servers, kind: Any, period: int
) -> None:
    with api(servers.new_database(), PALIMPSEST_LIMIT_BACKLOG_CHUNKS="10") as (_, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            with pytest.raises(
                palimpsest.InvalidArgument, match="producers are stopped"
            ) as refused:
                await session.create_state(STATE, period=period, period_kind=kind)
            assert list(refused.value.fields) == ["memory.state.period"]
            assert await session.memories() == []
