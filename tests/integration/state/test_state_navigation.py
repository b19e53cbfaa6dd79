"""Questions to state memories that are navigated, by a scripted model on a real database."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from uuid import UUID

from service.domain.answers.trajectory import (
    Event,
    NoAnswer,
)
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import BestLeaves, Children, NodeView, Text
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.facts import ModelFacts
from service.usecases.answers.readers.state_reading import StateReader
from service.usecases.answers.trajectories import Trajectories
from storage.answers import trajectories
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.engine.database import Database
from tests.integration.state.test_state_questions import STEPS, ask, episodes, two_generations
from tests.integration.support.compressed_rows import KEY, StateRows, make_state
from tests.integration.support.scripted import CONFIG, Script, answerer
from tests.integration.support.stored_answers import read_answer, read_told
from tests.integration.tree.test_navigate import Moves, path
from tests.support.contents import LeafContent
from tests.support.gateways import gateway


async def navigated(
    rows: StateRows, reply: Callable[[ModelRequest, int], str], **wanted: Any
) -> tuple[StoredAnswer, list[Event]]:
    item = await ask(rows, **{"max_calls": 50, **wanted})
    await answerer(rows.database, gateway(Script(reply=reply), rows.database)).make(item)
    return await read_told(rows.database, item)


async def events(database: Database, answer_id: UUID) -> list[Event]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return list(await trajectories.list_events(tx, (KEY, answer_id), 0))


async def opened(rows: StateRows) -> StateReader | None:
    asked = await read_answer(rows.database, await ask(rows, max_calls=1))
    return await StateReader.open(
        rows.database,
        DEFAULT_TENANT,
        asked,
        spec=rows.spec.as_tree(),
        count=estimate_tokens,
        tail_bytes=1 << 23,
    )


async def leaves_of(reader: StateReader) -> list[tuple[NodeView, str]]:
    """Returns everything that has text, from left to right."""
    found: list[tuple[NodeView, str]] = []
    waiting = [reader.root]
    while waiting:
        view = waiting.pop(0)
        if view.is_leaf:
            found.append((view, (await reader.fetch(Text(node_id=view.node_id))).text))
            held = await reader.hold(view.node_id)
            assert held.view == view
        else:
            children = await reader.fetch(Children(node_id=view.node_id))
            assert [child.node_id for child in children] == list(view.children)
            waiting[:0] = children
    return found


async def test_a_question_goes_down_through_episodes_to_the_steps(database: Database) -> None:
    rows = await episodes(database)
    stored, told = await navigated(rows, Moves("the red key is", answer="In box 3."))
    assert stored.no_answer is NoAnswer.NOT_FOUND, "no text has these very words"
    stored, told = await navigated(rows, Moves("red key", answer="In box 3."))
    assert path(told) == [
        ("triage", "root", "enter"),
        ("triage", "2.6", "enter"),
        ("leaf", "1.4", "answer"),
        ("end", "", "answer"),
    ]
    assert told[0].shown == ("2.3", "2.6", "t.1")
    assert told[1].shown == ("1.4", "1.5")
    assert (told[1].level, told[1].from_position, told[1].to_position) == (2, 3, 4)
    assert (stored.text, stored.revision, stored.applied_position) == ("In box 3.", 6, 6)
    assert stored.citations == (
        StoredCitation(
            position=3,
            path="",
            revision=4,
            excerpt=STEPS[2],
            to_character=len(STEPS[2]),
            node_id="1.4",
            from_position=3,
            to_position=3,
        ),
    )
    assert stored.statistics is not None
    assert stored.statistics.text_tokens >= sum(len(text) for text in STEPS) // 4


async def test_recent_steps_are_the_tail(database: Database) -> None:
    rows = await two_generations(database)
    stored, told = await navigated(rows, Moves("Ben", answer="In box 7."))
    assert told[0].shown == ("1.1", "1.2", "t.1")
    assert path(told)[1] == ("leaf", "t.1", "answer")
    (cited,) = stored.citations
    assert (cited.position, cited.node_id, cited.revision) == (5, "t.1", 2)
    assert (cited.from_position, cited.to_position) == (5, 6)


async def test_nothing_is_shown_of_what_no_vector_covers(database: Database) -> None:
    rows = await two_generations(database)
    await rows.roll_back(1)
    reader = await opened(rows)
    assert reader is not None
    found = [(view.node_id, text) for view, text in await leaves_of(reader)]
    assert found == [("1.1", "\n".join(STEPS[:2])), ("t.1", "\n".join(STEPS[4:]))]
    await rows.compress("The key is in box 7.", 2)
    await rows.steps("The rain is over.")
    reader = await opened(rows)
    assert reader is not None
    found = [(view.node_id, text) for view, text in await leaves_of(reader)]
    assert found == [
        ("1.1", "\n".join(STEPS[:2])),
        ("1.4", "\n".join(STEPS[4:])),
        ("t.1", "The rain is over."),
    ]
    await rows.roll_back(0)
    reader = await opened(rows)
    assert reader is not None
    assert [view.node_id for view, _ in await leaves_of(reader)] == ["t.1"]


async def test_an_undone_episode_leaves_its_children_on_top(database: Database) -> None:
    rows = await episodes(database)
    await rows.roll_back(5)
    reader = await opened(rows)
    assert reader is not None
    assert reader.root.children == ("2.3", "1.4", "1.5", "t.1")
    assert [view.node_id for view, _ in await leaves_of(reader)] == [
        "1.1",
        "1.2",
        "1.4",
        "1.5",
        "t.1",
    ]


async def test_every_step_is_in_one_leaf_whatever_its_size(database: Database) -> None:
    texts = [f"Step {n}. " + f"word{n} " * (3000 if n in (2, 7) else 20) for n in range(1, 9)]
    rows = await make_state(database, texts)
    await rows.compress("A.", 1)
    await rows.compress("B.", 3)
    await rows.compress("C.", 1)
    reader = await opened(rows)
    assert reader is not None
    found = await leaves_of(reader)
    assert "".join(text for _, text in found) == "".join(texts)
    limit = rows.spec.as_tree().segment_tokens
    assert all(estimate_tokens(text) <= limit for _, text in found)
    assert all(before.end == after.start for (before, _), (after, _) in pairwise(found))
    under = [view for view, _ in found if view.node_id.startswith("1.2.")]
    assert [view.node_id for view in under] == [f"1.2.{n}" for n in range(1, len(under) + 1)]
    assert len(under) > 3
    assert (await reader.hold("1.2.1")).revision == 2
    again = await opened(rows)
    assert again is not None
    assert await leaves_of(again) == found, "it is the same whenever it is read"


async def test_one_vector_alone_is_the_root(database: Database) -> None:
    rows = await make_state(database, STEPS)
    await rows.compress("All.", len(STEPS))
    reader = await opened(rows)
    assert reader is not None
    assert (reader.root.node_id, reader.root.is_leaf) == ("1.1", True)
    stored, told = await navigated(rows, Moves("Ben", answer="Ben took it to box 7."))
    assert path(told)[0] == ("leaf", "1.1", "answer")
    assert stored.citations[0].position == 5


async def test_retrieval_names_steps_under_episodes_and_in_the_tail(database: Database) -> None:
    rows = await episodes(database)
    reader = await opened(rows)
    assert reader is not None
    paths = await reader.fetch(BestLeaves(query="Who gives a map?", count=2))
    assert [[view.node_id for view in one] for one in paths] == [["2.3", "1.1"], ["2.3", "1.2"]]
    paths = await reader.fetch(BestLeaves(query="Does it rain? It rains.", count=1))
    assert [[view.node_id for view in one] for one in paths] == [["t.1"]]
    assert await reader.fetch(BestLeaves(query="?", count=3)) == ()
    stored, told = await navigated(rows, Moves("Box 3", answer="In box 3."), hybrid_leaves=2)
    assert told[0].kind.value == "retrieval"
    assert stored.citations[0].node_id == "1.4"


async def test_retrieval_finds_pieces_of_long_steps(database: Database) -> None:
    rows = await make_state(
        database, ["Much ado. " * 1500 + "The zebra sings. " + "So so. " * 1500]
    )
    await rows.compress("A.", 1)
    reader = await opened(rows)
    assert reader is not None
    (found,) = await reader.fetch(BestLeaves(query="Which zebra?", count=4))
    assert "zebra" in (await reader.fetch(Text(node_id=found[-1].node_id))).text


async def test_a_navigation_is_as_of_the_question(database: Database) -> None:
    rows = await two_generations(database)
    item = await ask(rows, max_calls=50)
    await rows.compress("Ben took the red key.", 2)
    await rows.steps("The red key breaks.")
    moves = Moves("red key", answer="In box 3.")
    await answerer(database, gateway(Script(reply=moves), database)).make(item)
    told = await events(database, item.item_id)
    assert told[0].shown == ("1.1", "1.2", "t.1")
    assert not any("breaks" in c.text for c in moves.seen if isinstance(c, LeafContent))


async def test_an_empty_memory_has_nothing_to_navigate(database: Database) -> None:
    rows = await make_state(database)
    stored, told = await navigated(rows, Moves("x"))
    assert (stored.no_answer, stored.text, stored.failure) == (
        NoAnswer.EMPTY,
        "",
        "There is no answer: the memory has no text yet.",
    )
    assert [event.text for event in told] == ["empty"]


async def test_trajectories_of_state_memories_are_read_summed_and_exported(
    database: Database,
) -> None:
    rows = await episodes(database)
    script = Script(reply=Moves("red key", answer="In box 3."))
    item = await ask(rows, max_calls=50)
    await answerer(database, gateway(script, database)).make(item)
    direct = await ask(rows)
    await answerer(
        database, gateway(Script(reply=lambda ask, number: "[ANSWER]\nIn box 3."), database)
    ).make(direct)

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=32_768, count=estimate_tokens)

    reading = Trajectories(database, facts, b"marker", CONFIG)
    part = {"after": 0, "limit": 10, "max_bytes": 2**20}
    told = await reading.events(DEFAULT_TENANT, "s", item.item_id, **part)
    assert [event.kind.value for event in told.items] == ["triage", "triage", "leaf", "end"]
    assert not (await reading.events(DEFAULT_TENANT, "s", direct.item_id, **part)).items
    sums = await reading.statistics(DEFAULT_TENANT, "s", "w")
    assert (sums.navigations, sums.answered, sums.statistics.calls) == (1, 1, 3)
    examples = [one async for one in reading.export(DEFAULT_TENANT, "s", "w")]
    assert [one.prompt for one in examples] == [asked.text for asked in script.asked]
    assert {one.answer_id for one in examples} == {item.item_id}
