"""Questions to trees over gRPC, answered by a real worker with the offline model."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Reading, TrajectoryEvent, sync
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc

#: Each is a segment of its own, by its length.
TEXTS = [
    "The harbour museum shows old ships. Its captain keeps a parrot that can count to nine, and"
    " children bring it nuts on Sundays. In winter the house smells of tar and of rope, and the"
    " doors are heavy. Nobody remembers who built the tower beside it.\n\n",
    "The bakery opens at four in the night. Its rolls are sold by a baker with one blue eye, who"
    " sings while the oven warms. Fishermen come first, then the teachers, and last the mayor in"
    " a coat that is too long. There is a cat as well, asleep on the flour.\n\n",
    "The lighthouse is painted green and white. Its keeper writes letters to a cousin in Lisbon"
    " and never sends them. When fog comes he plays the trumpet, which is heard as far as the"
    " salt works. The stairs have two hundred and twelve steps.\n\n",
    "The salt works lie behind the dunes. Women in straw hats rake the salt in August, when the"
    " ponds are pink, and carts with wooden wheels bring it to the station. The owner is called"
    " Amaranta, and she lends money without asking for it back.\n\n",
]


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"questions-{uuid4().hex}")


async def grown(session: palimpsest.Session, texts: list[str] = TEXTS) -> palimpsest.Tree:
    tree = await session.create_tree("t", segment_tokens=72, max_children=2)
    async with session.producer("p") as producer:
        for text in texts:
            await producer.append(text)
    await tree.get(fully_applied=True, timeout=60)
    return tree


async def test_a_tree_is_asked_and_shows_the_way_to_the_answer(
    session: palimpsest.Session,
) -> None:
    tree = await grown(session)
    heard: list[object] = []
    answer = await tree.ask("What is the owner called?", hybrid_leaves=2, on_event=heard.append)
    assert "Amaranta" in answer.text
    (cited,) = answer.citations
    assert (cited.position, cited.path) == (4, "")
    assert "Amaranta" in cited.excerpt
    assert cited.node.startswith(("0.", "t."))
    assert cited.positions is not None
    assert cited.positions.first <= 4 <= cited.positions.last
    assert isinstance(heard[0], Reading)
    assert heard[0].answer == answer.id
    events = [one for one in heard[1:] if isinstance(one, TrajectoryEvent)]
    assert [one.ordinal for one in events] == list(range(1, len(heard)))
    assert (events[0].kind, events[-1].kind) == ("retrieval", "end")
    assert [one async for one in tree.trajectory(answer.id)] == events
    assert await session.answer(answer.id) == answer
    assert answer.statistics is not None
    assert answer.statistics.calls == answer.usage.calls


async def test_options_bound_the_answer(session: palimpsest.Session) -> None:
    tree = await grown(session)
    options = ["a dog", "a parrot that can count to nine"]
    answer = await tree.ask("What does the captain keep?", options=options, hybrid_leaves=2)
    assert answer.text == options[1]


async def test_a_tree_without_text_says_so(session: palimpsest.Session) -> None:
    tree = await session.create_tree("t")
    answer = await tree.ask("What?")
    assert (answer.state, answer.no_answer, answer.citations) == ("done", "empty", ())
    assert answer.statistics is not None
    assert (answer.statistics.answered, answer.statistics.read_share) == (0, None)
    assert [one.text async for one in tree.trajectory(answer.id)] == ["empty"]


async def test_many_questions_are_answered_in_their_order(session: palimpsest.Session) -> None:
    tree = await grown(session)
    queries = ["What is green and white?", "", "Who sings while the oven warms?"]
    first, second, third = await tree.ask_all(queries, concurrency=2, hybrid_leaves=3)
    assert isinstance(first, palimpsest.Answer)
    assert isinstance(second, palimpsest.InvalidArgument)
    assert isinstance(third, palimpsest.Answer)
    assert (first.query, third.query) == (queries[0], queries[2])
    statistics = await tree.navigation_statistics()
    assert statistics.navigations == 2
    assert statistics.calls == sum(
        one.statistics.calls for one in (first, third) if one.statistics is not None
    )
    examples = [one async for one in tree.export_trajectories()]
    by_answer = {one.answer for one in examples}
    assert by_answer == {one.id for one in (first, third) if one.no_answer is None}
    only = [one async for one in tree.export_trajectories([first.id])]
    assert {one.answer for one in only} == {first.id}
    assert [turn.role for turn in only[0].messages] == ["user", "assistant"]
    with pytest.raises(ValueError, match="concurrency"):
        await tree.ask_all(queries, concurrency=0)


async def test_events_come_in_pages(session: palimpsest.Session, address: str) -> None:
    tree = await grown(session)
    answer = await tree.ask("What is green and white?")
    events = [one async for one in tree.trajectory(answer.id)]
    async with palimpsest.connect(address) as client:
        stub = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
        request = answer_service_pb2.ListTrajectoryEventsRequest(
            session=session.id, answer=answer.id, page_size=1
        )
        ordinals = [
            [one.ordinal for one in page.events]
            async for page in client._connection.pages(stub.ListTrajectoryEvents, request)
        ]
    assert ordinals == [[one.ordinal] for one in events]


async def test_a_closed_tree_answers_and_refuses_to_wait_for_more(
    session: palimpsest.Session,
) -> None:
    tree = await grown(session)
    await (await tree.seal()).wait(timeout=60)
    answer = await tree.ask("What is the owner called?", fully_applied=True, hybrid_leaves=1)
    assert "Amaranta" in answer.text
    async with session.producer("late") as producer:
        await producer.append("More.")
        ack = await producer.flush()
    assert ack is not None
    with pytest.raises(palimpsest.FailedPrecondition) as refused:
        await tree.ask("What?", after=ack.read_token)
    assert refused.value.reason == "MEMORY_SEALED"


async def collected(events: Any) -> list[Any]:
    return [one async for one in events]


@pytest.mark.parametrize(
    "call",
    [
        lambda memory, answer: memory.ask("?", beam=1),
        lambda memory, answer: memory.ask("?", beam=2),
        lambda memory, answer: memory.navigation_statistics(),
        lambda memory, answer: collected(memory.export_trajectories()),
    ],
)
async def test_other_memories_are_refused(
    session: palimpsest.Session, call: Callable[[palimpsest.Memory, str], Awaitable[Any]]
) -> None:
    memory = await session.create_memory(
        "m", schema_source="class N:\n    topics: dict[str, str]\n"
    )
    answer = await memory.ask("?")
    assert (answer.statistics, answer.no_answer) == (None, "not_found")
    assert await collected(memory.trajectory(answer.id)) == []
    before = (await session.usage()).total.calls
    with pytest.raises(palimpsest.FailedPrecondition) as refused:
        await call(memory, answer.id)
    assert refused.value.reason == "WRONG_MEMORY_KIND"
    assert (await session.usage()).total.calls == before


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"options": [str(n) for n in range(27)]}, "options: must contain no more than 26"),
        ({"options": ["a", ""]}, "options[1]: "),
        ({"options": ["é" * 501]}, "options[0]: "),
        ({"options": ["a", "a"]}, "options: "),
        ({"options": ["a", " "]}, "options: each must have a character that is no blank"),
        ({"options": ["a"]}, "options: give two or more to choose from, or none"),
        ({"options": ["a\0b"]}, "options[0]: must have no NUL character"),
        ({"hybrid_leaves": 33}, "navigation.hybrid_leaves: "),
        ({"beam": 9}, "navigation.beam: "),
        ({"max_calls": 1001}, "navigation.max_calls: "),
    ],
)
async def test_what_cannot_be_asked_is_one_clear_error(
    session: palimpsest.Session, wanted: dict[str, Any], said: str
) -> None:
    tree = await session.create_tree("t")
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await tree.ask("?", **wanted)
    assert str(refused.value).startswith(said)
    assert (await tree.navigation_statistics()).navigations == 0


async def test_what_is_not_there_is_refused(session: palimpsest.Session) -> None:
    tree = await session.create_tree("t")
    with pytest.raises(ValueError, match="must be a collection of strings"):
        await tree.ask("?", options="abc")
    for events, reason in (
        (tree.trajectory(str(uuid4())), "ANSWER_NOT_FOUND"),
        (session.tree("none").export_trajectories(), "MEMORY_NOT_FOUND"),
        (tree.trajectory("no id"), "FIELD_INVALID"),
        (tree.export_trajectories(["no id"]), "FIELD_INVALID"),
        (tree.export_trajectories([str(uuid4())] * 1001), "FIELD_INVALID"),
    ):
        with pytest.raises(palimpsest.PalimpsestError) as refused:
            await collected(events)
        assert refused.value.reason == reason
    assert await collected(tree.export_trajectories([str(uuid4())])) == []


async def test_the_client_without_await_does_the_same(
    session: palimpsest.Session, address: str
) -> None:
    await grown(session)
    with sync.Client(address) as client:
        told = client.session(session.id)
        tree = told.tree("t")
        answer = tree.ask("What is the owner called?", hybrid_leaves=1)
        assert list(tree.trajectory(answer.id)) == list(told.trajectory(answer.id))
        (again,) = tree.ask_all([answer.query], hybrid_leaves=1)
        assert isinstance(again, palimpsest.Answer)
        assert again.text == answer.text
        assert tree.navigation_statistics().navigations == 2
        assert len({one.answer for one in tree.export_trajectories()}) == 2
