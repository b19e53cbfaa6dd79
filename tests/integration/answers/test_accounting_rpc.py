"""The accounting as clients get it: real agents, a real worker, the offline model."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Accounting, CostReport, WorkingContext, sync
from service.domain.prompting.tokens import estimate_tokens

TASK = "Find the red key and open the gate."


def observed(number: int) -> str:
    return f"Room {number} is cold. " + f"On shelf {number} lies key {number}. " * (number % 5)


async def lived(
    client: palimpsest.Client, session: str, steps: int, *, period: int, episode_vectors: int = 0
) -> tuple[list[WorkingContext], list[int]]:
    """Returns an agent's loop: the context before each step, and the tokens of each step."""
    contexts, sizes = [], []
    agent = client.agent(
        session, task=TASK, period=period, state_tokens=40, episode_vectors=episode_vectors
    )
    async with agent:
        for number in range(1, steps + 1):
            context = await agent.context()
            assert not context.compression_due
            contexts.append(context)
            await agent.record(observed(number), f"I try key {number}.", f"go to {number}")
            text = (
                f"Observation: {observed(number)}\n"
                f"Thought: I try key {number}.\nAction: go to {number}"
            )
            sizes.append(estimate_tokens(text))
        await agent.context()
    return contexts, sizes


async def told(
    session: palimpsest.Session, system_tokens: int = 0
) -> tuple[CostReport, Accounting]:
    found = await session.cost_report("state", system_tokens=system_tokens)
    assert found.accounting is not None
    return found, found.accounting


@pytest.mark.parametrize(
    ("steps", "period", "episode_vectors"), [(1, 4, 0), (3, 4, 0), (22, 4, 0), (16, 2, 2)]
)
async def test_it_is_what_an_agent_was_given(
    client: palimpsest.Client, steps: int, period: int, episode_vectors: int
) -> None:
    session = client.session(f"told-{uuid4().hex}")
    contexts, sizes = await lived(
        client, session.id, steps, period=period, episode_vectors=episode_vectors
    )
    cost, found = await told(session)
    task = estimate_tokens(TASK)
    assert (found.steps, found.task_tokens) == (steps, task)
    assert found.step_tokens == sum(sizes) / steps
    assert found.period == (period if steps >= period else 0)
    assert found.pcc.context_tokens == sum(one.tokens for one in contexts)
    assert found.pcc.max_context_tokens == max(one.tokens for one in contexts)
    assert found.pcc.processed_tokens == found.pcc.context_tokens + sum(sizes)
    whole = sum(size * (steps - number) for number, size in enumerate(sizes))
    assert found.standard.processed_tokens == steps * task + whole
    assert found.standard.compression_tokens == 0
    used = await session.usage("state")
    compressed = [line.usage for line in used.lines if line.purpose == "compress"]
    paid = sum(one.input_tokens + one.output_tokens for one in compressed)
    assert found.pcc.compression_tokens == paid
    assert cost.reading.total_tokens == sum(one.input_tokens for one in compressed)
    assert found.standard_ratio == found.standard.total_tokens / found.pcc.total_tokens
    assert found.recursive_ratio == found.recursive.total_tokens / found.pcc.total_tokens
    if steps >= period:
        assert paid > 0
        held = [
            one.memory_tokens
            for one in contexts
            if one.vectors[-1].revision or one.read_point.revision
        ]
        assert found.state_tokens == pytest.approx(sum(held) / len(held))
    _, instructed = await told(session, system_tokens=3_000)
    assert (found.system_tokens, instructed.system_tokens) == (0, 3_000)
    for before, after in (
        (found.standard, instructed.standard),
        (found.recursive, instructed.recursive),
        (found.pcc, instructed.pcc),
    ):
        assert after.processed_tokens == before.processed_tokens + 3_000 * steps
        assert after.max_context_tokens == before.max_context_tokens + 3_000
    assert abs(instructed.standard_ratio - 1) <= abs(found.standard_ratio - 1)


async def test_answers_cost_what_they_cost_and_no_compression(client: palimpsest.Client) -> None:
    session = client.session(f"told-{uuid4().hex}")
    await lived(client, session.id, 5, period=4)
    _, before = await told(session)
    await session.state("state").ask("Where is key 3?")
    _, after = await told(session)
    assert "answer" in {line.purpose for line in (await session.usage("state")).lines}
    assert after == before


async def test_it_is_of_one_state_memory_with_a_step_and_of_all_days(
    client: palimpsest.Client,
) -> None:
    session = await client.create_session(f"told-{uuid4().hex}")
    await session.create_state("state", task=TASK)
    assert (await session.cost_report("state")).accounting is None, "there is no step"
    await session.create_memory("m", schema_source="class N:\n    a: str\n")
    async with session.producer("p") as producer:
        await producer.append("Pier 1 is a pier of stone.")
        await producer.append_message("user", "Which pier?")
    _, found = await told(session)
    sizes = [estimate_tokens("Pier 1 is a pier of stone."), estimate_tokens("user: Which pier?")]
    assert (found.steps, found.step_tokens) == (2, sum(sizes) / 2)
    assert found.standard.context_tokens == found.pcc.context_tokens, "nothing is compressed"
    today = datetime.now(UTC).date()
    of_days = await session.cost_report("state", first_day=today - timedelta(1))
    assert of_days.accounting is None
    assert (await session.cost_report()).accounting is None
    assert (await session.cost_report("m")).accounting is None


async def test_a_memory_beside_it_has_an_accounting_of_its_own(client: palimpsest.Client) -> None:
    session = client.session(f"told-{uuid4().hex}")
    await lived(client, session.id, 9, period=4)
    _, before = await told(session)
    await session.create_state("often", task=TASK, period=1, state_tokens=40)
    await session.state("often").context(fully_applied=True, timeout=100.0)
    often = (await session.cost_report("often")).accounting
    assert often is not None
    assert often.period == 1
    assert often.pcc.context_tokens < before.pcc.context_tokens
    assert often.pcc.compression_tokens > before.pcc.compression_tokens
    assert often.standard == before.standard
    assert (await told(session))[1] == before


def test_the_synchronous_client_has_it(address: str) -> None:
    with sync.Client(address) as client:
        name = f"told-{uuid4().hex}"
        with client.agent(name, task=TASK) as agent:
            agent.record(observed(1))
        found = client.session(name).cost_report("state").accounting
        assert found is not None
        assert (found.steps, found.period) == (1, 0)
