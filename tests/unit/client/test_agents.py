"""The agent's loop over a service of the test's own: steps, contexts, restarts, refusals."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import palimpsest
from palimpsest import sync
from palimpsest.v1 import memories_pb2
from tests.unit.client.agent_service import Service
from tests.unit.client.server import serving

#: Whether a context waited for what was due.
LATEST, WAIT = False, True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._producer.STREAM_BACKOFF_SECONDS", (0.001, 0.01))


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[palimpsest.Client]:
    async with (
        serving(service.register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        yield client


def actions(service: Service) -> list[str]:
    return [chunk.agent_step.action or chunk.message.text for chunk in service.chunks]


async def test_a_loop_makes_its_memory_and_sees_each_step_it_recorded() -> None:
    service = Service()
    async with connected(service) as client:
        async with client.agent("run", task="Find the key.", period=5, pinned=["key"]) as agent:
            assert agent.step == 1
            for number in range(1, 8):
                context = await agent.context()
                assert context.text.split() == [f"go{n}" for n in range(1, number)]
                ack = await agent.record("a wall", "hm", f"go{number}", metadata={"tool": "legs"})
                assert (ack.position, agent.step) == (number, number + 1)
        assert service.asked == [WAIT] * 7
    made = service.memories[0]
    assert (made.id, made.state.task, made.state.period) == ("state", "Find the key.", 5)
    assert list(made.state.pinned) == ["key"]
    step = service.chunks[0].agent_step
    assert (step.observation, step.thought, step.action) == ("a wall", "hm", "go1")
    assert dict(service.chunks[0].metadata) == {"tool": "legs"}


async def test_a_restarted_loop_goes_on_after_what_is_durable() -> None:
    service = Service()
    for last in (4, 9):
        async with connected(service) as client, client.agent("run", period=5) as agent:
            while agent.step <= last:
                await agent.record(action=f"go{agent.step}")
    assert actions(service) == [f"go{n}" for n in range(1, 10)]


@pytest.mark.parametrize("cuts", [1, 3])
async def test_a_lost_ack_neither_loses_nor_repeats_a_step(cuts: int) -> None:
    service = Service()
    async with connected(service) as client, client.agent("run") as agent:
        await agent.record(action="go1")
        service.cuts = cuts
        assert (await agent.record(action="go2")).position == 2
        assert (await agent.record(action="go3")).position == 3
    assert actions(service) == ["go1", "go2", "go3"]


@pytest.mark.parametrize(
    "refusal",
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "NOT_APPLIED_IN_TIME"),
        (grpc.StatusCode.FAILED_PRECONDITION, "MEMORY_STALLED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED"),
    ],
)
async def test_what_is_not_compressed_leaves_the_latest(
    refusal: tuple[grpc.StatusCode, str],
) -> None:
    service = Service()
    service.not_made = refusal
    async with connected(service) as client, client.agent("run") as agent:
        await agent.record(action="go1")
        assert (await agent.context()).text == "go1"
    assert service.asked == [WAIT, LATEST]


async def test_a_context_need_not_wait_at_all() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run", wait_seconds=0) as agent:
        await agent.context()
    assert service.asked == [LATEST]


async def test_a_context_may_wait_for_ever() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run", wait_seconds=math.inf) as agent:
        await agent.context()
        with pytest.raises(ValueError, match="not nan"):
            await agent.memory.context(timeout=math.nan)
    assert service.asked == [WAIT]


async def test_another_refusal_of_a_context_is_raised() -> None:
    service = Service()
    service.not_made = grpc.StatusCode.RESOURCE_EXHAUSTED, "CONTEXT_TOO_LARGE"
    async with connected(service) as client, client.agent("run") as agent:
        with pytest.raises(palimpsest.ResourceExhausted) as caught:
            await agent.context()
    assert caught.value.reason == "CONTEXT_TOO_LARGE"


async def test_a_refused_step_is_not_stored_and_the_next_one_is() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run") as agent:
        for empty in (agent.record(), agent.note("user", "")):
            with pytest.raises(ValueError, match="needs a"):
                await empty
        with pytest.raises(palimpsest.InvalidArgument, match="a NUL"):
            await agent.record(action="\0")
        with pytest.raises(palimpsest.InvalidArgument, match="5000010 bytes") as caught:
            await agent.record(action="x" * 5_000_000)
        assert caught.value.reason == "CHUNK_TOO_LARGE"
        with pytest.raises(TypeError, match="thought is of another type: 5"):
            await agent.record("a wall", 5)  # type: ignore[arg-type]
        with pytest.raises(UnicodeEncodeError, match="in action"):
            await agent.record(action="\ud800")
        for wrong in ({"position": "x"}, {"position": 2**63}):
            with pytest.raises((TypeError, ValueError), match="position"):
                await agent.memory.context(**wrong)
        with pytest.raises(ValueError, match="level cannot be 2147483648"):
            await anext(agent.memory.vectors(level=2**31))
        assert (agent.step, service.chunks) == (1, [])
        await agent.record(action="go1")
        await agent.note("user", "wait")
        assert agent.step == 3
    assert actions(service) == ["go1", "wait"]


async def test_the_loop_that_was_opened_later_goes_on() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run") as first:
        await first.record(action="go1")
        async with client.agent("run") as second:
            assert second.step == 2
            await second.record(action="go2")
            with pytest.raises(palimpsest.Aborted, match="another loop has taken over") as caught:
                await first.record(action="lost")
            assert caught.value.reason == "PRODUCER_FENCED"
            await second.record(action="go3")
    assert actions(service) == ["go1", "go2", "go3"]


async def test_a_clock_that_was_ahead_keeps_no_loop_out() -> None:
    service = Service()
    service.epoch = 2**60
    async with connected(service) as client, client.agent("run") as agent:
        await agent.record(action="go1")
    assert service.epoch == 2**60 + 1


async def test_steps_of_several_tasks_come_one_after_the_other() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run") as agent:
        acks = await asyncio.gather(*(agent.record(action=f"go{n}") for n in range(1, 21)))
    assert [ack.position for ack in acks] == list(range(1, 21))
    assert actions(service) == [f"go{n}" for n in range(1, 21)]


async def test_a_setting_that_there_is_not_is_refused_whatever_its_value() -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="there is no setting 'perid'; there are task, period"):
            client.agent("s", perid=0)  # type: ignore[call-arg]


def state_memory(**settings: Any) -> memories_pb2.Memory:
    return memories_pb2.Memory(id="state", state=memories_pb2.StateSpec(**settings))


@pytest.mark.parametrize(
    ("there", "given", "about"),
    [
        (
            state_memory(period=10, task="Find the key."),
            {"period": 20, "task": "Find it.", "pinned": ["key"]},
            "memory 'state' exists already, and task is 'Find the key.', not 'Find it.'; period"
            " is 10, not 20; pinned is (), not ('key',). Use it as it is (session.memory,"
            " session.tree or session.state), choose another id, or build one with these"
            " settings from the whole log (rebuild)",
        ),
        (
            memories_pb2.Memory(id="state", tree=memories_pb2.TreeSpec()),
            {},
            "memory 'state' exists already, and is a tree memory, not a state memory. Use it as"
            " it is (session.memory, session.tree or session.state), choose another id, or"
            " build one with these settings from the whole log (rebuild)",
        ),
    ],
)
async def test_a_memory_that_is_not_what_was_asked_for_is_refused(
    there: memories_pb2.Memory, given: dict[str, Any], about: str
) -> None:
    service = Service([there])
    async with connected(service) as client:
        with pytest.raises(palimpsest.AlreadyExists) as caught:
            async with client.agent("run", **given):
                pass
    assert (str(caught.value), caught.value.reason) == (about, "MEMORY_EXISTS")


async def test_a_memory_that_is_there_is_used_as_it_is() -> None:
    service = Service([state_memory(period=7, task="Find the key.", pinned=["key"])])
    same: list[dict[str, Any]] = [{}, {"period": 7}, {"pinned": ["key"], "period": 0}]
    async with connected(service) as client:
        for given in same:
            async with client.agent(client.session("run"), **given) as agent:
                assert agent.memory.id == "state"
    assert len(service.memories) == 1


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"perod": 5}, TypeError),
        ({"pinned": "key"}, ValueError),
        ({"period_kind": "weekly"}, ValueError),
        ({"idle_seconds": -1.0}, ValueError),
        ({"period": 2**40}, ValueError),
        ({"period": 2.5}, TypeError),
        ({"task": 5}, TypeError),
        ({"task": "\ud800"}, UnicodeEncodeError),
        ({"pinned": [5]}, TypeError),
        ({"wait_seconds": -1.0}, ValueError),
        ({"wait_seconds": math.nan}, ValueError),
    ],
)
async def test_settings_that_cannot_be_are_refused_at_once(
    given: dict[str, Any], kind: type[Exception]
) -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        with pytest.raises(kind, match=next(iter(given))):
            client.agent("run", **given)


async def test_what_is_not_open_says_so() -> None:
    service = Service()
    async with connected(service) as client:
        agent = client.agent("run")
        with pytest.raises(palimpsest.ProducerClosed, match="this agent is not open"):
            await agent.record(action="go1")
        async with agent:
            pass
        with pytest.raises(palimpsest.ProducerClosed, match="this agent is not open"):
            await agent.record(action="go1")


async def test_the_same_without_await() -> None:
    service = Service()

    def loop(port: int) -> list[str]:
        with sync.Client(f"127.0.0.1:{port}") as client:
            with client.agent("run", task="Find the key.", period=5) as agent:
                agent.record("a wall", action="go1")
                agent.note("user", "wait")
                assert agent.step == 3
                said = agent.context().text
            with client.agent(client.session("run")) as agent:
                agent.record(action="go3")
                assert agent.memory.context().text == agent.context().text
            assert client.session("run").state("state").context(fully_applied=True).head == 3
            return [said, client.session("run").state("state").context().text]

    async with serving(service.register) as port:
        said = await asyncio.get_running_loop().run_in_executor(None, loop, port)
    assert said == ["go1\nwait", "go1\nwait\ngo3"]


async def test_zero_tokens_are_asked_for_and_other_zeros_are_not() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run", period_tokens=0, period=0):
        pass
    (made,) = service.memories
    assert made.state.HasField("period_tokens")
    assert made.state.period_tokens == 0
