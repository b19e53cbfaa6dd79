"""The automatic reader: its choice, the reason it gives, and that the choice stays."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from service.app.kinds import KINDS
from service.domain.answers import whole
from service.domain.answers.browse.spec import BrowseOption
from service.domain.answers.browse.wording import UNDERSTAND
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.answers.whole import WHOLE
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state import asking as pcc
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem
from service.llm.providers.facts import ModelFacts
from service.llm.providers.failures import ModelFailure
from service.usecases.answers.answer import Answerer
from service.usecases.answers.readers import reading_facts
from service.usecases.answers.readers.answering import AnswerCalls, MadeAnswer, ReaderKit
from service.usecases.answers.readers.auto import AutoReader
from service.usecases.answers.readers.reading_facts import Knowledge
from storage.answers.answers import StoredAnswer, StoredCitation
from storage.calls import calls
from storage.engine.database import Database
from tests.integration.answers.test_trajectory_reading import trajectories as served
from tests.integration.support import tree_rows
from tests.integration.support.compressed_rows import KEY, STATE, StateRows, make_state
from tests.integration.support.scripted import CONFIG, SPEC, Script, add_memory, answerer
from tests.integration.support.stored_answers import read_told, store_question
from tests.integration.tree import test_navigate
from tests.support.contents import LeafContent, TriageContent, content_of
from tests.support.gateways import gateway

STEPS = (
    "Ann gives me a map of the cellar.",
    "The map shows nine boxes.",
    "Ben takes the red key to box 7.",
)
QUERY = "Where is the red key?"
#: No log is small enough to be read whole.
NEVER_WHOLE = CONFIG.model_copy(update={"auto_whole_tokens": 1, "model": "test/scripted"})
SMALL = CONFIG.model_copy(update={"model": "test/scripted"})


async def ask(database: Database, head: int, **said: Any) -> WorkItem:
    values: dict[str, Any] = {
        "memory_id": None,
        "query": QUERY,
        "revision": 0,
        "applied_position": head,
        "reader": ReaderName.AUTO,
        **said,
    }
    return await store_question(database, **values)


def without_browsing(database: Database, script: Script) -> Answerer:
    """Returns a worker's answerer that cannot browse, so that memories are all there is."""

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=32_768, count=estimate_tokens)

    return Answerer(database, gateway(script, database), facts, b"marker", NEVER_WHOLE, kinds=KINDS)


def says(subject: str = "state", answer: str = "It is in box 7.") -> Any:
    """Returns a model that understands each question so, and answers it so."""

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.template == UNDERSTAND:
            return f"Subject: {subject}\nOption: rank\nOrder: forward\nQuery: The red key?"
        if ask.template == WHOLE:
            return f'[ANSWER]\n{answer}\n[QUOTES]\n3: "the red key to box 7"\n9: "made up"\n'
        return f"[ANSWER]\n{answer}\n[STEPS]\n3\n"

    return reply


async def notes(database: Database, head: int) -> UUID:
    """Returns a PRISM memory that has read nothing yet."""
    identity = memory_id(KEY, "notes")
    await add_memory(database, identity, "notes", SPEC, head=head)
    return identity


def told(events: list[Event]) -> list[tuple[int, str, str]]:
    return [(event.ordinal, event.kind.value, event.text) for event in events]


async def test_a_log_that_fits_is_read_whole(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head)
    script = Script(reply=says())
    await answerer(database, gateway(script, database), SMALL).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.text) == ("complete", "It is in box 7.")
    assert [one.template for one in script.asked] == [WHOLE], "no understanding is paid for"
    assert told(events) == [(1, "choice", "whole"), (2, "end", "It is in box 7.")]
    assert events[0].reasoning.startswith("All of the log fits into one prompt of ")
    assert (events[1].template, events[1].input_tokens) == (WHOLE, 9)
    assert stored.chosen is not None
    assert (stored.chosen.reader, stored.chosen.memory_id) == (ReaderName.WHOLE, None)
    assert (stored.asked_memory, stored.revision, stored.applied_position) == (None, 0, 3)
    (cited,) = stored.citations
    assert (cited.position, cited.excerpt) == (3, "the red key to box 7")
    assert STEPS[2][cited.from_character : cited.to_character] == cited.excerpt


@pytest.mark.parametrize("room", [0, -1])
async def test_whole_up_to_the_last_token_of_the_window(database: Database, room: int) -> None:
    rows = await make_state(database, STEPS)
    chunks = list(enumerate(STEPS, 1))
    for window in range(1, 4000):
        needed = whole.needed_tokens(
            chunks, QUERY, marker_key=b"marker", window_tokens=window, count=estimate_tokens
        )
        if needed is not None:
            break
    else:
        raise AssertionError("a small log fits into some window")
    config = SMALL.model_copy(update={"auto_whole_tokens": window + room})
    item = await ask(database, rows.head)
    await answerer(database, gateway(Script(reply=says()), database), config).make(item)
    stored, _ = await read_told(database, item)
    assert stored.chosen is not None
    assert stored.chosen.reader is (ReaderName.PCC if room else ReaderName.WHOLE)


async def test_a_log_without_text_says_so(database: Database) -> None:
    await make_state(database, ())
    item = await ask(database, 0)
    script = Script()
    await answerer(database, gateway(script, database), SMALL).make(item)
    stored, events = await read_told(database, item)
    assert (stored.no_answer, script.asked) == (NoAnswer.EMPTY, [])
    assert [one.kind for one in events] == [EventKind.CHOICE, EventKind.END]


async def test_the_reader_whole_refuses_a_log_that_does_not_fit(database: Database) -> None:
    rows = await make_state(database, ("word " * 300,) * 3)
    item = await ask(database, rows.head, reader=ReaderName.WHOLE)

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=2000, count=estimate_tokens)

    script = Script()
    calling = gateway(script, database)
    await Answerer(database, calling, facts, b"marker", SMALL, kinds=KINDS).make(item)
    stored, _ = await read_told(database, item)
    assert (stored.status, stored.attempts, script.asked) == ("failed", 0, [])
    assert "the log has " in stored.failure
    assert "has room for 1372 tokens" in stored.failure


async def test_how_things_are_is_asked_of_the_working_context(database: Database) -> None:
    rows = await make_state(database, STEPS)
    await rows.compress("Ann gave a map: nine boxes.", 2)
    item = await ask(database, rows.head)
    script = Script(reply=says("state"))
    await answerer(database, gateway(script, database), NEVER_WHOLE).make(item)
    stored, events = await read_told(database, item)
    assert [one.template for one in script.asked] == [UNDERSTAND, pcc.ANSWER]
    assert (stored.text, [one.position for one in stored.citations]) == ("It is in box 7.", [3])
    chosen = stored.chosen
    assert chosen is not None
    assert (chosen.reader, chosen.memory_id, chosen.memory_name) == (ReaderName.PCC, STATE, "w")
    assert (chosen.revision, chosen.applied_position) == (1, 3)
    (event,) = events
    assert (event.kind, event.action, event.text) == (EventKind.CHOICE, Action.NONE, "pcc of w")
    assert (event.reasoning, event.targets) == (chosen.reason, ("w",))
    assert (event.template, event.input_tokens, event.output_tokens) == (UNDERSTAND, 9, 3)
    assert event.reply.startswith("Subject: state")
    async with database.transaction(DEFAULT_TENANT) as tx:
        made = f"answer:{item.item_id}"
        lines = (await calls.usage_of(tx, KEY, [made], [STATE]))[made]
    assert sorted((line.purpose, line.calls) for line in lines) == [("answer", 1), ("browse", 1)]


async def test_a_named_memory_is_read_without_a_call_to_choose(database: Database) -> None:
    rows = await make_state(database, STEPS)
    identity = await notes(database, rows.head)
    item = await ask(database, rows.head, memory_id=identity)
    script = Script()
    await without_browsing(database, script).make(item)
    stored, events = await read_told(database, item)
    assert (stored.text, len(script.asked)) == ("It is x.", 1)
    assert told(events) == [(1, "choice", "prism of notes")]
    assert stored.chosen is not None
    assert (stored.chosen.applied_position, stored.memory_name) == (0, "notes")


async def test_a_named_memory_that_is_not_as_fresh_as_asked_leaves_the_log(
    database: Database,
) -> None:
    rows = await make_state(database, STEPS)
    identity = await notes(database, rows.head)
    item = await ask(database, rows.head, memory_id=identity, wanted_position=3)
    await answerer(database, gateway(Script(reply=says()), database), SMALL).make(item)
    stored, events = await read_told(database, item)
    assert (stored.text, events[0].text) == ("It is in box 7.", "whole")
    assert "memory 'notes' is not as far as was asked for" in events[0].reasoning


async def test_a_fact_is_looked_for_in_the_tree(database: Database) -> None:
    await tree_rows.make_tree(database, test_navigate.LEAVES, tail=test_navigate.TAIL)
    item = await ask(database, 5, query="What of the cat?")
    moves = test_navigate.Moves("king", answer="It brought partridges.")

    def reply(ask: ModelRequest, number: int) -> str:
        return says("fact")(ask, number) if ask.template == UNDERSTAND else moves(ask, number)

    await without_browsing(database, Script(reply=reply)).make(item)
    stored, events = await read_told(database, item)
    assert stored.text == "It brought partridges."
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    kinds = [one.kind for one in events]
    assert kinds[:2] == [EventKind.CHOICE, EventKind.RETRIEVAL]
    assert kinds[-1] is EventKind.END
    assert stored.chosen is not None
    assert stored.chosen.navigation is not None
    assert stored.chosen.navigation.hybrid_leaves > 0
    assert stored.statistics is not None


async def test_the_first_choice_stays(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head)
    reply = says("state")
    failing = ModelFailure("it is away", retryable=True)

    def fails_late(ask: ModelRequest, number: int) -> str:
        if ask.template != UNDERSTAND:
            raise failing
        return str(reply(ask, number))

    script = Script(reply=fails_late)
    await answerer(database, gateway(script, database), NEVER_WHOLE).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, [one.kind for one in events]) == ("pending", [EventKind.CHOICE])
    assert stored.chosen is not None
    # By now all of it would be read whole.
    again = Script(reply=reply)
    await answerer(database, gateway(again, database), SMALL).make(item)
    later, events = await read_told(database, item)
    assert (later.status, later.chosen) == ("complete", stored.chosen)
    assert [one.template for one in again.asked] == [pcc.ANSWER]
    assert [one.kind for one in events] == [EventKind.CHOICE]


async def test_after_a_navigation_that_finds_nothing_the_log_is_browsed(
    database: Database,
) -> None:
    await tree_rows.make_tree(database, test_navigate.LEAVES, tail=test_navigate.TAIL)
    wanted = NavigationRequest(hybrid_leaves=2)
    item = await ask(
        database,
        5,
        query="What of the cat?",
        memory_id=tree_rows.TREE,
        revision=2,
        navigation=wanted,
    )
    moves = test_navigate.Moves("zebra")

    def reply(ask: ModelRequest, number: int) -> str:
        is_move = isinstance(content_of(ask), TriageContent | LeafContent)
        return moves(ask, number) if is_move else "Text: It ate the mouse at once."

    script = Script(reply=reply)
    await answerer(database, gateway(script, database), NEVER_WHOLE).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.text) == ("complete", "It ate the mouse at once.")
    assert [one.position for one in stored.citations] == [4]
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    choices = [one for one in events if one.kind is EventKind.CHOICE]
    assert [one.text for one in choices] == ["memwalker of t", "dciso, rank"]
    ends = [one.ordinal for one in events if one.kind is EventKind.END]
    assert ends == [choices[1].ordinal - 1, len(events)]
    # The navigation found nothing: its moves are none to learn from.
    assert [one async for one in served(database).export(DEFAULT_TENANT, "s", "t")] == []


@dataclass
class Browsing:
    """Stands in for the reader that browses: one event, one answer."""

    calls: AnswerCalls
    no_answer: NoAnswer | None = None
    asked: list[StoredAnswer] = field(default_factory=list)

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        self.asked.append(asked)
        end = Event(ordinal=1, kind=EventKind.END, action=Action.ANSWER, text="browsed")
        await self.calls.tell(item, asked, end)
        cited = StoredCitation(position=3, path="", revision=0, excerpt="box 7")
        return MadeAnswer(
            text="browsed",
            citations=() if self.no_answer else (cited,),
            model="test/scripted",
            no_answer=self.no_answer,
        )


async def browsed(
    rows: StateRows, script: Script, item: WorkItem, no_answer: NoAnswer | None = None
) -> tuple[MadeAnswer, list[Event], Browsing]:
    """Returns what the automatic reader makes of a question where logs can be browsed."""
    database = rows.database
    calling = gateway(script, database)
    answering = AnswerCalls(database, calling)
    browser = Browsing(answering, no_answer)

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=32_768, count=estimate_tokens)

    others = Answerer(database, calling, facts, b"marker", NEVER_WHOLE, kinds=KINDS)
    kit = ReaderKit(
        database=database,
        calls=answering,
        facts=facts,
        marker_key=b"marker",
        config=NEVER_WHOLE,
    )
    auto = AutoReader(
        Knowledge(kit=kit, kinds=KINDS, prices=None, browses=True),
        lambda asked: browser if asked.reader is ReaderName.DCISO else others._reader(asked),
    )
    stored, _ = await read_told(database, item)
    made = await auto.answer(item, stored)
    _, events = await read_told(database, item)
    return made, events, browser


async def test_code_is_looked_up_in_the_log(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head)
    made, events, browser = await browsed(rows, Script(reply=says("code")), item)
    assert (made.text, told(events)) == (
        "browsed",
        [(1, "choice", "dciso, rank"), (2, "end", "browsed")],
    )
    (asked,) = browser.asked
    assert asked.browsing is not None
    assert asked.browsing.option is BrowseOption.RANK
    assert asked.browsing.rewritten_query == "The red key?"
    assert (asked.asked_memory, asked.revision, asked.applied_position) == (None, 0, 3)


async def test_where_a_memory_has_no_answer_the_log_is_browsed_once(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head)
    script = Script(reply=says("state", answer="no answer"))
    made, events, browser = await browsed(rows, script, item)
    assert (made.text, made.no_answer, len(browser.asked)) == ("browsed", None, 1)
    assert told(events) == [
        (1, "choice", "pcc of w"),
        (2, "choice", "dciso, rank"),
        (3, "end", "browsed"),
    ]
    assert events[1].reasoning == "Memory 'w' has no answer; so the log itself is browsed."
    stored, _ = await read_told(database, item)
    assert stored.chosen is not None
    assert stored.chosen.reader is ReaderName.PCC, "the first choice stays"
    # A worker that takes over makes the same of it, from the ledger.
    again = Script(reply=lambda ask, number: pytest.fail("it was paid for already"))
    made, later, _ = await browsed(rows, again, item)
    assert (made.text, later, again.asked) == ("browsed", events, [])


async def test_a_memory_that_names_nothing_it_rests_on_has_no_answer(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head, memory_id=await notes(database, rows.head))
    script = Script(reply=lambda ask, number: "[ANSWER]\nIt does not say.\n[PATHS]\n")
    made, events, _ = await browsed(rows, script, item)
    assert made.text == "browsed"
    assert [one.text for one in events] == ["prism of notes", "dciso, rank", "browsed"]


async def test_the_first_reader_says_that_none_finds_it(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(database, rows.head)
    script = Script(reply=says("state", answer="no answer"))
    made, events, _ = await browsed(rows, script, item, NoAnswer.NOT_FOUND)
    assert (made.text, made.no_answer) == ("", NoAnswer.NOT_FOUND)
    assert made.failure == "There is no answer in the working context."
    assert len(events) == 3


async def test_a_fact_is_looked_for_in_a_tree_where_the_search_has_no_answer(
    database: Database,
) -> None:
    await tree_rows.make_tree(database, test_navigate.LEAVES, tail=test_navigate.TAIL)
    item = await ask(database, 5, query="What of the cat?")
    moves = test_navigate.Moves("king", answer="It brought partridges.")

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.template == UNDERSTAND:
            return str(says("fact")(ask, number))
        is_move = isinstance(content_of(ask), TriageContent | LeafContent)
        return moves(ask, number) if is_move else '{"action": "null", "text": ""}'

    def fails_late(ask: ModelRequest, number: int) -> str:
        if isinstance(content_of(ask), LeafContent):
            raise ModelFailure("it is away", retryable=True)
        return reply(ask, number)

    script = Script(reply=fails_late)
    await answerer(database, gateway(script, database), NEVER_WHOLE).make(item)
    stored, before = await read_told(database, item)
    assert (stored.status, before[-1].kind) == ("pending", EventKind.RETRIEVAL)
    # Another worker does not pay again for what found nothing.
    again = Script(reply=reply)
    await answerer(database, gateway(again, database), NEVER_WHOLE).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.text) == ("complete", "It brought partridges.")
    assert events[: len(before)] == before
    assert {type(content_of(one)) for one in again.asked} <= {LeafContent, TriageContent}
    choices = [one for one in events if one.kind is EventKind.CHOICE]
    assert [one.text for one in choices] == ["dciso, rank", "memwalker of t"]
    assert choices[1].reasoning == "The search has no answer; so the tree 't' is read."
    assert [one.ordinal for one in events] == list(range(1, len(events) + 1))
    assert stored.chosen is not None
    assert stored.chosen.reader is ReaderName.DCISO, "the first choice stays"
    assert stored.citations
    # The moves of the first reader found nothing: they are none to learn from.
    assert [one async for one in served(database).export(DEFAULT_TENANT, "s", "")] == []


async def test_while_a_search_leaves_chunks_out_a_fact_is_looked_for_in_the_tree(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tree_rows.make_tree(database, test_navigate.LEAVES, tail=test_navigate.TAIL)
    # No chunk is indexed; five are few enough to be searched without.
    monkeypatch.setattr(reading_facts, "TAIL_CHUNKS", 2)
    item = await ask(database, 5, query="What of the cat?")
    moves = test_navigate.Moves("king", answer="It brought partridges.")

    def reply(ask: ModelRequest, number: int) -> str:
        return says("fact")(ask, number) if ask.template == UNDERSTAND else moves(ask, number)

    await answerer(database, gateway(Script(reply=reply), database), NEVER_WHOLE).make(item)
    stored, events = await read_told(database, item)
    assert (stored.text, events[0].text) == ("It brought partridges.", "memwalker of t")
    assert "no search reads 3 of its chunks yet" in events[0].reasoning
