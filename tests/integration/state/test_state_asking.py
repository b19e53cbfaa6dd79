"""Questions to state memories over gRPC, answered by a real worker with the offline model."""

from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Reading, TrajectoryEvent, Waiting

STEPS = (
    ("The hall has nine boxes and a parrot called Amaranta.", "I look around.", "open[box 1]"),
    ("Box 1 holds a rope of forty feet.", "The rope may help later.", "take[rope]"),
    ("Box 2 holds the red key.", "That is the key to the gate.", "take[red key]"),
    ("The gate is behind the salt works.", "I go there.", "go[salt works]"),
    ("A baker with one blue eye stands before the gate.", "I ask him.", "ask[baker]"),
    ("The baker wants forty coins for the way.", "I have none yet.", "think[coins]"),
    ("Under the bench lie sixty coins.", "That is enough.", "take[coins]"),
)


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"states-{uuid4().hex}")


async def played(session: palimpsest.Session, steps: int = len(STEPS)) -> palimpsest.State:
    state = await session.create_state(
        "w", task="Open the gate.", period=2, state_tokens=120, episode_vectors=2
    )
    async with session.producer("agent") as producer:
        for observation, thought, action in STEPS[:steps]:
            await producer.append_step(observation=observation, thought=thought, action=action)
    if steps:
        await state.context(fully_applied=True, timeout=60)
    return state


async def test_a_recent_step_answers_and_is_cited(session: palimpsest.Session) -> None:
    state = await played(session)
    heard: list[object] = []
    answer = await state.ask("What lies under the bench?", on_event=heard.append)
    assert "sixty coins" in answer.text
    assert answer.citations[0].position == len(STEPS)
    assert "sixty coins" in answer.citations[0].excerpt
    (reading,) = heard
    assert isinstance(reading, Reading)
    assert reading.read_point == answer.read_point
    assert answer.read_point.applied_position == len(STEPS)
    assert answer.read_point.revision == (await state.look()).revision
    assert (answer.statistics, answer.no_answer) == (None, None)
    assert await session.answer(answer.id) == answer


async def test_what_a_vector_kept_leads_down_to_its_step(session: palimpsest.Session) -> None:
    state = await played(session)
    answer = await state.ask("What does box 2 hold?")
    assert "red key" in answer.text
    cited = next(one for one in answer.citations if one.position == 3)
    assert cited.node.startswith("1.")
    assert cited.positions is not None
    assert cited.positions.first <= 3 <= cited.positions.last
    vectors = {one.revision: one async for one in state.vectors()}
    new = vectors[cited.revision].new_positions
    assert new is not None
    assert new.first == cited.positions.first


async def test_a_navigation_goes_down_to_the_steps_event_by_event(
    session: palimpsest.Session,
) -> None:
    state = await played(session)
    heard: list[object] = []
    answer = await state.ask(
        "What is the parrot called?", navigate=True, hybrid_leaves=2, on_event=heard.append
    )
    assert "Amaranta" in answer.text
    assert answer.citations[0].position == 1
    events = [one for one in heard if isinstance(one, TrajectoryEvent)]
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    assert (events[0].kind, events[-1].kind) == ("retrieval", "end")
    assert [one async for one in state.trajectory(answer.id)] == events
    statistics = await state.navigation_statistics()
    assert (statistics.navigations, statistics.answered) == (1, 1)
    assert {one.answer async for one in state.export_trajectories()} == {answer.id}


async def test_a_question_has_nothing_to_wait_for(session: palimpsest.Session) -> None:
    state = await played(session, 1)
    async with session.producer("more") as producer:
        await producer.append("The bell rings at noon.")
        ack = await producer.flush()
    assert ack is not None
    heard: list[object] = []
    answer = await state.ask(
        "When does the bell ring?", after=ack.read_token, on_event=heard.append
    )
    assert "at noon" in answer.text
    assert (answer.citations[0].position, answer.read_point.applied_position) == (2, 2)
    assert not any(isinstance(one, Waiting) for one in heard)
    again = await state.ask("When does the bell ring?", fully_applied=True)
    assert "at noon" in again.text
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await state.ask("When?", after="no token")
    assert refused.value.reason == "TOKEN_INVALID"


async def test_an_empty_memory_says_so_in_both_ways(session: palimpsest.Session) -> None:
    state = await session.create_state("empty")
    direct = await state.ask("What?")
    navigated = await state.ask("What?", navigate=True)
    assert [one.no_answer for one in (direct, navigated)] == ["empty", "empty"]
    assert direct.usage.calls == navigated.usage.calls == 0


async def test_what_cannot_be_asked_is_refused(session: palimpsest.Session) -> None:
    state = await played(session, 0)
    with pytest.raises(palimpsest.InvalidArgument):
        await state.ask("What\0?")
    await session.create_memory("notes", schema="class N:\n    facts: list[str]\n")
    with pytest.raises(palimpsest.FailedPrecondition) as refused:
        await session.memory("notes").ask("What?", beam=2)
    assert refused.value.reason == "WRONG_MEMORY_KIND"
    assert refused.value.metadata == {"memory": "notes", "kind": "prism", "wanted": "tree or state"}
