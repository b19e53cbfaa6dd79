"""Questions to trees, answered by a scripted navigator on a real database."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.app.kinds import KINDS
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.answers.trajectory import (
    Action,
    Event,
    EventKind,
    NoAnswer,
)
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.usecases.answers.answer import Answerer
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.calls import calls
from storage.engine.database import Database
from tests.integration.support.scripted import CONFIG, Script, answerer, die_in_call, fail_at
from tests.integration.support.stored_answers import read_told, store_question
from tests.integration.support.tree_rows import KEY, TREE, make_tree
from tests.support.contents import LeafContent, TriageContent, content_of
from tests.support.gateways import gateway

LEAVES = (
    "A miller had three sons. The youngest got nothing but the cat.",
    "The cat asked for a pair of boots. It went to the king. It brought him partridges.",
    "The king gave the cat gold.",
    "The giant turned into a mouse. The cat ate the mouse at once.",
)
TAIL = ("The youngest son married the princess of Carabas.",)


@dataclass
class Moves:
    """A navigator that goes where a word leads it."""

    #: What it looks for in summaries and texts.
    word: str
    answer: str = "It is so."
    seen: list[object] = field(default_factory=list)

    def __call__(self, ask: ModelRequest, number: int) -> str:
        content = content_of(ask)
        self.seen.append(content)
        match content:
            case TriageContent():
                able = [n for n in content.open if self.word in content.summaries[n]]
                if able or not content.may_revert:
                    return f"Reasoning: it is there\nAction: {(able or content.open)[0]}"
                return "Reasoning: nothing of it\nAction: -1"
            case LeafContent():
                if self.word in content.text:
                    return f"Reasoning: it says so\nAction: -2\nAnswer: {self.answer}"
                return "Reasoning: nothing of it\nAction: -1"
        raise AssertionError(f"not asked for {content}")


async def ask(
    database: Database, *, revision: int = 2, applied: int = 5, **wanted: Any
) -> WorkItem:
    return await store_question(
        database,
        TREE,
        "What of the cat?",
        revision=revision,
        applied_position=applied,
        navigation=NavigationRequest(**wanted),
    )


async def answered(
    database: Database,
    reply: Callable[[ModelRequest, int], str],
    *,
    revision: int = 2,
    applied: int = 5,
    **wanted: Any,
) -> tuple[StoredAnswer, list[Event]]:
    item = await ask(database, revision=revision, applied=applied, **wanted)
    await answerer(database, gateway(Script(reply=reply), database)).make(item)
    return await read_told(database, item)


def path(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(event.kind.value, event.node_id, event.action.value) for event in events]


async def test_a_question_is_answered_from_the_leaf_that_has_it(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    stored, events = await answered(database, Moves("king", answer="It brought partridges."))
    # The summaries are the first 20 characters of the text: only that of leaf 3 has the word.
    assert path(events) == [
        ("triage", "root", "enter"),
        ("triage", "1.1", "enter"),
        ("leaf", "0.3", "answer"),
        ("end", "", "answer"),
    ]
    assert events[0].shown == ("1.1", "0.4", "t.1")
    assert (events[0].input_tokens, events[0].output_tokens) == (9, 3)
    assert (stored.status, stored.text, stored.no_answer) == (
        "complete",
        "It brought partridges.",
        None,
    )
    assert stored.model == "test/scripted"
    assert stored.citations == (
        StoredCitation(
            position=3,
            path="",
            revision=1,
            excerpt="The king gave the cat gold.",
            to_character=27,
            node_id="0.3",
            from_position=3,
            to_position=3,
        ),
    )
    statistics = stored.statistics
    assert statistics is not None
    assert (statistics.calls, statistics.leaves_read, statistics.tokens) == (3, 1, 36)
    assert statistics.text_tokens == sum(map(estimate_tokens, (*LEAVES, *TAIL)))
    async with database.transaction(DEFAULT_TENANT) as tx:
        made = f"answer:{stored.answer_id}"
        (line,) = (await calls.usage_of(tx, KEY, [made], [stored.memory_id]))[made]
    assert (line.purpose, line.calls) == ("navigate", 3)


async def test_a_leaf_that_has_nothing_is_gone_back_from(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)

    def reply(ask: ModelRequest, number: int) -> str:
        return ["Action: 0", "Action: 0", "Action: -1", "Action: 1", "Action: -2\nAnswer: boots"][
            number - 1
        ]

    stored, events = await answered(database, reply)
    assert path(events)[2:] == [
        ("leaf", "0.1", "revert"),
        ("triage", "1.1", "enter"),
        ("leaf", "0.2", "answer"),
        ("end", "", "answer"),
    ]
    assert stored.citations[0].excerpt.startswith("The cat asked for a pair of boots.")
    assert stored.statistics is not None
    assert stored.statistics.reverts == 1


async def test_retrieval_finds_leaves_under_parents_and_in_the_tail(database: Database) -> None:
    await make_tree(database, LEAVES, tail=("A miller's cat lived there. What fun!",))
    moves = Moves("fun", answer="They lived there.")
    stored, events = await answered(database, moves, hybrid_leaves=5)
    assert events[0].kind is EventKind.RETRIEVAL
    assert set(events[0].shown) == {"0.1", "0.2", "0.3", "0.4", "t.1"}
    assert events[0].shown[0] == "t.1", "no other has the word what"
    assert path(events)[1:] == [("leaf", "t.1", "answer"), ("end", "", "answer")]
    assert [one.depth for one in events[1:2]] == [1]
    (cited,) = stored.citations
    assert (cited.position, cited.node_id, cited.revision) == (5, "t.1", 2)
    assert (cited.from_position, cited.to_position) == (5, 5)
    assert cited.excerpt == "A miller's cat lived there. What fun!"


async def test_retrieved_leaves_carry_what_is_above_them(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    moves = Moves("mouse")
    _, events = await answered(database, moves, hybrid_leaves=2, revision=1, applied=4)
    leaf = events[1]
    assert (leaf.kind, leaf.depth) == (EventKind.LEAF, 2 if leaf.node_id != "0.4" else 1)
    first = moves.seen[0]
    assert isinstance(first, LeafContent)
    assert first.notes.startswith("" if leaf.node_id == "0.4" else "about A miller had three s")


async def test_a_question_reads_the_tree_as_it_was(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    _, events = await answered(database, Moves("king"), revision=1, applied=4)
    assert events[0].shown == ("1.1", "0.4")
    none, events = await answered(database, Moves("king"), revision=0, applied=0)
    assert (none.no_answer, none.text, none.failure) == (
        NoAnswer.EMPTY,
        "",
        "There is no answer: the tree has no text yet.",
    )
    assert events == [Event(ordinal=1, kind=EventKind.END, action=Action.NONE, text="empty")]
    assert none.statistics is not None
    assert none.statistics.calls == 0


async def test_what_is_read_and_not_summarized_yet_is_read_as_it_is(database: Database) -> None:
    await make_tree(database, (), tail=LEAVES)
    moves = Moves("mouse", answer="The giant did.")
    stored, events = await answered(database, moves, revision=1, applied=4)
    assert stored.text == "The giant did."
    assert events[-2].node_id in {"root", "t.1", "t.2", "t.3"}
    content = moves.seen[-1]
    assert isinstance(content, LeafContent)
    assert content.text in "\n".join(LEAVES)
    assert stored.citations[0].position == 4


async def test_a_question_without_an_answer_is_complete_and_says_so(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    stored, events = await answered(database, Moves("zebra"), max_calls=40)
    assert (stored.status, stored.no_answer) == ("complete", NoAnswer.NOT_FOUND)
    assert (stored.text, stored.citations) == ("", ())
    assert stored.failure == "There is no answer in the text."
    assert events[-1].text == "not_found"
    unread, _ = await answered(database, lambda ask, number: "hm")
    assert unread.no_answer is NoAnswer.UNREADABLE
    assert "three replies" in unread.failure
    stopped, _ = await answered(database, Moves("zebra"), max_calls=2)
    assert stopped.no_answer is NoAnswer.STEP_LIMIT


async def test_several_leaves_are_read_at_once_and_all_cited(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    together = asyncio.Barrier(3)

    class Together(Script):
        async def complete(self, *arguments: Any) -> Any:
            async with asyncio.timeout(60):
                await together.wait()
            return await super().complete(*arguments)

    def reply(ask: ModelRequest, number: int) -> str:
        if isinstance(content_of(ask), LeafContent):
            return "Action: -2\nAnswer: The cat."
        return "Action: 0, 1" if content_of(ask).open != (0,) else "Action: 0"

    item = await ask(database, hybrid_leaves=3, beam=3)
    await answerer(database, gateway(Together(reply=reply), database)).make(item)
    stored, events = await read_told(database, item)
    assert [event.ordinal for event in events] == list(range(1, len(events) + 1))
    assert {one.node_id for one in stored.citations} == set(events[0].shown)
    assert len(stored.citations) == 3


async def test_a_failed_try_goes_on_where_it_stopped(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    item = await ask(database)
    moves = Moves("king")
    script = Script(reply=moves)
    maker = answerer(database, gateway(script, database))
    fail_at(script, 3)
    await maker.make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.attempts, len(events)) == ("pending", 0, 2)
    await maker.make(item)
    stored, events = await read_told(database, item)
    assert stored.status == "complete"
    assert [event.ordinal for event in events] == [1, 2, 3, 4]
    assert len(script.asked) == 4, "what was paid for is not asked again"


async def test_a_worker_that_dies_is_followed_by_another(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    item = await ask(database)
    first = Script(reply=Moves("king"))

    release = await die_in_call(first, 3, answerer(database, gateway(first, database)).make(item))
    _, before = await read_told(database, item)
    assert [event.ordinal for event in before] == [1, 2]
    release.set()
    second = Script(reply=Moves("king"))
    await answerer(database, gateway(second, database)).make(item)
    stored, events = await read_told(database, item)
    assert stored.status == "complete"
    assert events[:2] == before
    assert [event.ordinal for event in events] == [1, 2, 3, 4]
    assert (len(first.asked), second.asked) == (3, []), "no move is paid for twice"


async def test_two_workers_at_once_store_each_event_once(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    item = await ask(database)
    scripts = [Script(reply=Moves("king")) for _ in range(2)]
    await asyncio.gather(
        *(answerer(database, gateway(script, database)).make(item) for script in scripts)
    )
    stored, events = await read_told(database, item)
    assert stored.text == "It is so."
    assert [event.ordinal for event in events] == [1, 2, 3, 4]
    assert sum(len(script.asked) for script in scripts) == 3


async def test_a_text_that_fits_no_prompt_fails_at_once(database: Database) -> None:
    await make_tree(database, ["word " * 400])

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=700, count=estimate_tokens)

    item = await ask(database, revision=1, applied=1)
    script = Script(reply=Moves("word"))
    config: Config = CONFIG
    await Answerer(database, gateway(script, database), facts, b"marker", config, kinds=KINDS).make(
        item
    )
    stored, _ = await read_told(database, item)
    assert (stored.status, script.asked) == ("failed", [])
    assert "window" in stored.failure


@pytest.mark.parametrize("model", ["test/navigating", ""])
async def test_the_navigating_model_may_be_another_one(database: Database, model: str) -> None:
    await make_tree(database, LEAVES, navigation_model=model)
    stored, _ = await answered(database, Moves("king"), revision=1, applied=4)
    assert stored.model == (model or "test/scripted")
