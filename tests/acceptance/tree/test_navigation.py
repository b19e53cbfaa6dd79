"""Navigations by real processes: events while they happen, and workers that are killed."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import palimpsest
from palimpsest import AskEvent, TrajectoryEvent, sync
from tests.acceptance.memories.kept_memory import DEADLINE_SECONDS, scripted
from tests.acceptance.state.held_models import HeldModel, finished_by_another
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, api, eventually, worker

#: Each is a segment, and a chunk.
TEXTS = [
    f"In year {year} the cat of the miller went to the king, and brought him {year} partridges"
    " in a sack that it had tied with its own teeth. The king laughed, and gave it gold; and"
    " the cat went home by the river, where the mill stood and the miller waited for it.\n\n"
    for year in range(1, 8)
]


@dataclass
class Navigator(HeldModel):
    """A model that goes down by the first child, and holds still before one of its moves."""

    @property
    def moves(self) -> list[str]:
        """The prompts of moves so far."""
        return [prompt for prompt in self.model.prompts if "[QUESTION]" in prompt]

    def reply(self, number: int) -> str:
        prompt = self.model.prompts[number - 1]
        if "[QUESTION]" not in prompt:
            return "The cat brings the king partridges."
        if len(self.moves) == self.stop_at:
            self.hold()
        if "[SUMMARIES]\n" in prompt:
            return "Reasoning: it begins there\nAction: 0"
        return "Reasoning: it says so\nAction: -2\nAnswer: 1 partridge"


@pytest.fixture
def navigator() -> Iterator[Navigator]:
    with fake_model() as model:
        made = Navigator(model)
        yield made
        made.go.set()


async def grow(address: str) -> None:
    """A tree with a made-up root, inner nodes, leaves and a tail."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        tree = await session.create_tree("t", segment_tokens=72, max_children=2)
        async with session.producer("p") as producer:
            for text in TEXTS:
                await producer.append(text)
        await tree.get(fully_applied=True, timeout=200)


async def ask(address: str, heard: list[AskEvent]) -> palimpsest.Answer:
    async with palimpsest.connect(address) as client:
        tree = client.session("s").tree("t")
        return await tree.ask("How many partridges?", on_event=heard.append, timeout=200)


def told(heard: list[AskEvent]) -> list[TrajectoryEvent]:
    return [one for one in heard if isinstance(one, TrajectoryEvent)]


async def has_heard(heard: list[AskEvent], events: int) -> None:
    async with asyncio.timeout(150):
        while len(told(heard)) < events:
            await asyncio.sleep(0.02)


def test_events_come_while_the_answer_is_made(servers: Servers, navigator: Navigator) -> None:
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **scripted(navigator.model)):
        asyncio.run(_events_come(address, navigator))


async def _events_come(address: str, navigator: Navigator) -> None:
    await grow(address)
    navigator.stop_at = 3
    heard: list[AskEvent] = []
    asking = asyncio.create_task(ask(address, heard))
    await navigator.until_held()
    await has_heard(heard, 2)
    assert not asking.done()
    assert [(one.ordinal, one.kind, one.action) for one in told(heard)] == [
        (1, "triage", "enter"),
        (2, "triage", "enter"),
    ]
    navigator.go.set()
    answer = await asking
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        stored = [event async for event in session.trajectory(answer.id)]
        examples = [one async for one in session.tree("t").export_trajectories()]
    assert stored == told(heard), "each event once and in order, all of them before the answer"
    assert [one.kind for one in stored[-2:]] == ["leaf", "end"]
    assert answer.text == "1 partridge"
    assert answer.citations[0].position == 1
    assert "brought him 1 partridges" in answer.citations[0].excerpt
    assert answer.statistics is not None
    assert answer.statistics.calls == len(stored) - 1
    assert (stored[0].input_tokens, stored[0].cached_tokens) == (100, 64)
    assert [one.messages[0].content for one in examples] == navigator.moves
    assert examples[-1].messages[1].content.endswith("Answer: 1 partridge")


@pytest.mark.prove
def test_a_worker_killed_on_the_way_is_followed_by_another(
    servers: Servers, navigator: Navigator
) -> None:
    url = servers.new_database()
    with api(url) as (_, address):
        with worker(url, **scripted(navigator.model)) as doomed:
            asyncio.run(grow(address))
            navigator.stop_at = 3
            heard: list[AskEvent] = []

            async def killed_on_the_way() -> palimpsest.Answer:
                asking = asyncio.create_task(ask(address, heard))
                await navigator.until_held()
                doomed.kill()
                navigator.go.set()
                return await finished_by_another(asking, url, scripted(navigator.model))

            answer = asyncio.run(killed_on_the_way())
    events = told(heard)
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    assert (answer.text, events[-1].kind) == ("1 partridge", "end")
    assert len(navigator.moves) == len(set(navigator.moves)), "no move was paid for twice"
    assert len(navigator.moves) == len(events) - 1


@pytest.mark.prove
def test_a_client_that_was_cut_off_finds_the_events(servers: Servers, navigator: Navigator) -> None:
    url = servers.new_database()
    with api(url) as (_, address), worker(url, **scripted(navigator.model)):
        asyncio.run(grow(address))
        navigator.stop_at = 2
        with sync.Client(address) as client:
            session = client.session("s")
            tree = session.tree("t")
            with pytest.raises(palimpsest.DeadlineExceeded) as late:
                tree.ask("How many partridges?", timeout=DEADLINE_SECONDS)
            assert late.value.reason == "ANSWER_NOT_READY_IN_TIME"
            answer_id = late.value.metadata["answer"]

            def kinds() -> list[str]:
                return [one.kind for one in tree.trajectory(answer_id)]

            def is_told() -> bool:
                # Reading it counts as waiting, so that it is begun if it was not.
                return session.answer(answer_id).state == "running" and kinds() == ["triage"]

            eventually("the first move is told", is_told)
            navigator.go.set()
            eventually("it is answered", lambda: session.answer(answer_id).state == "done")
            assert kinds()[-1] == "end"
            (answer,) = tree.ask_all(["How many, then?"], concurrency=2)
            assert isinstance(answer, palimpsest.Answer)
            stored = session.answer(answer_id)
            assert (stored.state, stored.text) == ("done", answer.text)
            assert tree.navigation_statistics().navigations == 2
