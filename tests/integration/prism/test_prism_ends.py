"""Replies that a PRISM memory cannot use lose no text, and the reason is reported."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.usecases.answers.readers.prism import NO_ANSWER_TEXT
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database
from storage.memories import stalls
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
    read,
)
from tests.integration.support.stored_answers import read_told, store_question
from tests.support.completions import completion
from tests.support.contents import content_of
from tests.support.gateways import gateway

PROSE = "I'm sorry, I can't help with that."
ADD = '[OBJECTS FOR ADD]\n{"$.topics.t%d": {"add": "x"}}'
NOTHING = '{"changes": []}'


@dataclass
class Ending(Script):
    """A model whose first replies are these, by their text and end; then it adds a topic a call."""

    replies: list[tuple[str, End]] = field(default_factory=list)
    #: Of those that refuse.
    said: str = "It is against my rules."

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        if not self.replies:
            return await super().complete(ask, model, plan)
        self.asked.append(ask)
        text, end = self.replies.pop(0)
        said = self.said if end.is_refused else ""
        return completion(text, model, end=end, said=said)


#: Replies that no step can be made of, and words of the reported cause.
USELESS: list[tuple[list[tuple[str, End]], str]] = [
    ([(PROSE, End.COMPLETE)] * 3, PROSE),
    ([("{}", End.COMPLETE)] * 3, "no revision in 3 replies"),
    ([("", End.EMPTY)] * 3, "it was empty"),
    ([(ADD % 9, End.REFUSAL)], "It is against my rules."),
    ([("", End.FILTER)], "the provider's filter refused the text"),
    ([(ADD % 9, End.LENGTH)] * 2, "cut off before its end"),
    ([("", End.THINKING)] * 2, "nothing was said"),
    ([("", End.TOOL_CALL)] * 3, "it called a tool"),
    ([(ADD % 9, End.UNKNOWN)] * 3, "it was broken off"),
]


async def dead_letters(database: Database) -> list[tuple[Any, ...]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(
            "SELECT from_position, to_position, cause, resolution FROM dead_letter ORDER BY 1"
        )
        return [tuple(row) for row in found]


@pytest.mark.parametrize(("replies", "words"), USELESS)
async def test_a_step_without_a_revision_stalls_its_memory_until_it_is_asked_anew(
    database: Database, replies: list[tuple[str, End]], words: str
) -> None:
    await make(database, ["a", "b"])
    script = Ending(replies=list(replies))
    await prism_method(database, script).drain(ITEM)
    stalled = await read(database)
    assert (stalled.status, stalled.applied_position, stalled.revision) == ("stalled", 0, 0)
    assert stalled.stall is not None
    assert words in stalled.stall.cause
    ((first, last, cause, resolution),) = await dead_letters(database)
    assert (first, last, resolution) == (0, 1, None)
    assert words in cause
    assert len(script.asked) == len(replies), "what was paid for is not asked once more"
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    await prism_method(database, script).drain(ITEM)
    again = await read(database)
    assert (again.status, again.applied_position, again.revision) == ("active", 2, 2)
    assert script.asked[len(replies)].text == script.asked[0].text, "it is asked anew"


@pytest.mark.parametrize(("replies", "words"), USELESS[:5])
async def test_a_memory_that_skips_reports_what_it_skipped_and_continues(
    database: Database, replies: list[tuple[str, End]], words: str
) -> None:
    await make(database, ["a", "b"], on_failure=OnFailure.SKIP)
    await prism_method(database, Ending(replies=list(replies))).drain(ITEM)
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("active", 2)
    ((first, last, cause, resolution),) = await dead_letters(database)
    assert (first, last, resolution) == (0, 1, "skipped")
    assert words in cause


async def test_a_reply_is_asked_for_again_with_what_was_wrong(database: Database) -> None:
    await make(database, ["a"])
    script = Ending(replies=[(PROSE, End.COMPLETE), ("", End.EMPTY)])
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 1
    first, second, third = (ask.text for ask in script.asked)
    assert "no change could be read in it" in second.removeprefix(first)
    assert "it was empty" in third.removeprefix(first)
    assert PROSE not in second, "what a model said is not put into its prompt"


async def test_only_an_explicit_nothing_is_a_step_without_changes(database: Database) -> None:
    await make(database, ["a"])
    script = Ending(replies=[(NOTHING, End.COMPLETE)])
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.applied_position, stored.revision, len(script.asked)) == (1, 1, 1)


async def test_a_cut_group_is_read_in_halves_and_a_worker_that_takes_over_pays_nothing_twice(
    database: Database,
) -> None:
    await make(database, ["a", "b", "c"], chunk_tokens=100)

    script = Ending(replies=[(ADD % 8, End.LENGTH), (ADD % 9, End.LENGTH), (ADD % 1, End.COMPLETE)])
    script.failures = [ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)]
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 0
    assert len(script.asked) == 4, "it failed at the second half"
    await asyncio.sleep(0.01)
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.applied_position, stored.revision) == (3, 1)
    assert len(script.asked) == 5, "the first half was in the ledger"
    shown = [len(content_of(ask).texts) for ask in script.asked]
    assert shown == [3, 3, 1, 2, 2]


async def told(database: Database, script: Script) -> tuple[StoredAnswer, list[Event]]:
    """Returns a question to the memory at its head, what came of it, and the events."""
    stored = await read(database)
    item = await store_question(
        database,
        MEMORY,
        "What is it?",
        revision=stored.revision,
        applied_position=stored.applied_position,
    )
    await answerer(database, gateway(script, database)).make(item)
    return await read_told(database, item)


async def asked(database: Database, script: Script) -> StoredAnswer:
    """Returns a question to the memory at its head, and what came of it."""
    answer, _ = await told(database, script)
    return answer


@pytest.mark.parametrize(
    ("reply", "text", "no_answer"),
    [
        ("[ANSWER]\nno answer\n[PATHS]\n", "", NoAnswer.NOT_FOUND),
        ("The memory does not say.", "", NoAnswer.NOT_FOUND),
        ("<think>\nIs it y?\n</think>\n[ANSWER]\nIt is x.\n[PATHS]\n", "It is x.", None),
    ],
)
async def test_an_answer_is_what_it_says(
    database: Database, reply: str, text: str, no_answer: NoAnswer | None
) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    answer = await asked(database, Ending(replies=[(reply, End.COMPLETE)]))
    assert (answer.status, answer.text, answer.no_answer) == ("complete", text, no_answer)
    assert answer.failure == (NO_ANSWER_TEXT if no_answer else "")


async def test_an_answer_that_was_cut_off_says_so(database: Database) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    cut = ("[ANSWER]\nIt is a long", End.LENGTH)
    script = Ending(replies=[cut, cut])
    answer, (event,) = await told(database, script)
    assert (answer.status, answer.text) == ("complete", "It is a long …")
    assert (event.kind, event.action, event.end) == (EventKind.END, Action.ANSWER, End.LENGTH)
    assert event.text == answer.text
    first, second = (ask.max_output_tokens for ask in script.asked)
    assert second > first


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([("", End.EMPTY)] * 3, "it was empty"),
        ([("It is", End.REFUSAL)], "It is against my rules."),
        ([("", End.FILTER)], "the provider's filter"),
        ([("", End.THINKING)] * 3, "nothing was said"),
    ],
)
async def test_a_question_without_an_answer_fails_and_says_why(
    database: Database, replies: list[tuple[str, End]], words: str
) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    script = Ending(replies=list(replies))
    answer = await asked(database, script)
    assert answer.status == "failed"
    assert words in (answer.failure)
    assert [ask.purpose for ask in script.asked] == [Purpose.ANSWER] * len(replies)
