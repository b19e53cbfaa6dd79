"""Browsing by real processes: events while they happen, and workers that are killed."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import palimpsest
from palimpsest import AskEvent, BrowseSettings, BrowseStrategy, TrajectoryEvent
from service.domain.prompting.tokens import estimate_tokens
from tests.acceptance.memories.kept_memory import scripted
from tests.acceptance.state.held_models import HeldModel, finished_by_another
from tests.acceptance.tree.test_navigation import has_heard, told
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, api, worker

WINDOW = 768
#: Two of them make a piece.
TEXTS = [
    f"In year {year} the cat of the miller went to the king, and brought him {year} partridges"
    " in a sack that it had tied with its own teeth. The king laughed, and gave it gold; and"
    " the cat went home by the river, where the mill stood and the miller waited for it."
    for year in range(1, 13)
]


@dataclass
class Reader(HeldModel):
    """A model that notes the partridges of each piece, and holds still before one prompt."""

    #: Pieces wait until so many prompts are under way for the first time.
    at_once: int = 0
    together: threading.Event = field(default_factory=threading.Event)
    #: Prompts under way, now and at most.
    now: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, number: int) -> str:
        prompt = self.model.prompts[number - 1]
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now >= self.at_once:
                self.together.set()
        try:
            if number == self.stop_at:
                self.hold()
            elif "[TEXT]\n" in prompt:
                self.together.wait(150)
                # Long enough for one more to come meanwhile.
                self.go.wait(0.2)
        finally:
            with self.lock:
                self.now -= 1
        if "[TEXT]\n" not in prompt:
            return "Text: twelve partridges at most\nSources: 1"
        year = next(year for year in range(1, 13) if f"In year {year} " in prompt)
        return f"Text: {year} partridges\nQuotes:\n[{year}] brought him {year} partridges"


@pytest.fixture
def reader() -> Iterator[Reader]:
    with fake_model() as model:
        made = Reader(model)
        yield made
        made.go.set()


async def grow(address: str) -> None:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        async with session.producer("p") as producer:
            for text in TEXTS:
                await producer.append(text)


async def ask(
    address: str, heard: list[AskEvent], strategy: BrowseStrategy = "independent"
) -> palimpsest.Answer:
    browsing = BrowseSettings(
        strategy=strategy,
        actions=("append", "merge", "answer", "move", "retrieve"),
        window_tokens=WINDOW,
    )
    async with palimpsest.connect(address) as client:
        return await client.session("s").ask(
            "How many partridges?",
            reader="dciso",
            browsing=browsing,
            on_event=heard.append,
            timeout=200,
        )


def prompts_within(reader: Reader) -> bool:
    """Returns whether each request that the server saw keeps to the window, its reply included."""
    tokens = [
        estimate_tokens(prompt) + int(request.get("max_tokens") or request["max_completion_tokens"])
        for prompt, request in zip(reader.model.prompts, reader.model.requests, strict=True)
    ]
    return max(tokens) <= WINDOW


@pytest.mark.prove
def test_pieces_are_read_in_parallel_within_the_window(servers: Servers, reader: Reader) -> None:
    url = servers.new_database()
    reader.at_once = 2
    environment = {**scripted(reader.model), "PALIMPSEST_BROWSE_CONCURRENCY": "3"}
    with api(url) as (_, address), worker(url, **environment):
        asyncio.run(_in_parallel(address, reader))


async def _in_parallel(address: str, reader: Reader) -> None:
    await grow(address)
    heard: list[AskEvent] = []
    answer = await ask(address, heard)
    events: list[TrajectoryEvent] = told(heard)
    pieces = [one for one in events if one.kind == "piece"]
    assert len(pieces) == len(reader.model.prompts) - 1
    assert 1 < reader.most <= 3
    assert prompts_within(reader)
    assert answer.text == "twelve partridges at most"
    cited = answer.citations[0]
    assert (cited.position, cited.excerpt) == (1, "brought him 1 partridges")
    assert cited.characters is not None
    assert TEXTS[0][cited.characters.start : cited.characters.end] == cited.excerpt
    assert cited.node == "p.1"
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        stored = [event async for event in session.trajectory(answer.id)]
        await session.rate(answer.id, good=True, comment="well read")
        examples = [one async for one in session.export_trajectories(good=True)]
        none = [one async for one in session.export_trajectories(good=False)]
    assert stored == events
    assert sorted(one.messages[0].content for one in examples) == sorted(reader.model.prompts)
    assert none == []
    assert examples[0].rating is not None
    assert examples[0].rating.comment == "well read"


@pytest.mark.prove
def test_a_worker_killed_on_the_way_is_followed_by_another(
    servers: Servers, reader: Reader
) -> None:
    url = servers.new_database()
    reader.stop_at = 3
    heard: list[AskEvent] = []
    with api(url) as (_, address), worker(url, **scripted(reader.model)) as doomed:

        async def killed_on_the_way() -> palimpsest.Answer:
            await grow(address)
            asking = asyncio.create_task(ask(address, heard, "carry"))
            await reader.until_held()
            await has_heard(heard, 2)
            doomed.kill()
            reader.go.set()
            return await finished_by_another(asking, url, scripted(reader.model))

        answer = asyncio.run(killed_on_the_way())
    events = told(heard)
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    assert (answer.text, events[-1].kind) == ("twelve partridges at most", "end")
    prompts = reader.model.prompts
    assert len(prompts) == len(set(prompts)), "nothing was paid for twice"
    assert len(prompts) == len(events) - 1
    assert prompts_within(reader)
