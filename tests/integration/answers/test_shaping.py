"""Answers in the form that their questions ask for, by a scripted model."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from palimpsest._convert_answers import answer
from service.domain.answers.shaping import SHAPE
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.prompting.flows import ModelRequest
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.rpc.convert.answers import AnswerMessages
from service.usecases.answers.ask import AskDone
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database
from tests.integration.support.compressed_rows import STATE, StateRows, make_state
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.stored_answers import read_told, store_question
from tests.support.gateways import gateway

STEPS = ("Ann puts the red key into box 3.", "Ben takes the red key to box 7.")
BOX = {
    "type": "object",
    "properties": {"box": {"type": "integer"}, "by": {"type": "string"}},
    "required": ["box"],
    "additionalProperties": False,
}


async def ask(rows: StateRows, schema: Any) -> WorkItem:
    return await store_question(
        rows.database,
        STATE,
        "Where is the red key?",
        revision=rows.revision,
        applied_position=rows.head,
        response_schema=schema,
    )


def says(*shapes: str, answer: str = "It is in box 7.") -> Callable[[ModelRequest, int], str]:
    """Returns the answer, and to each ask for its form the next of `shapes`."""
    left = list(shapes)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.template == SHAPE:
            return left.pop(0)
        return f"[ANSWER]\n{answer}\n[STEPS]\n2\n"

    return reply


async def shaped(
    database: Database, schema: Any, *replies: str
) -> tuple[StoredAnswer, list[Event], Script]:
    rows = await make_state(database, STEPS)
    item = await ask(rows, schema)
    script = Script(reply=says(*replies))
    await answerer(database, gateway(script, database)).make(item)
    return *await read_told(database, item), script


@pytest.mark.parametrize(
    ("schema", "reply", "value"),
    [
        (BOX, '{"box": 7, "by": "Ben"}', {"box": 7, "by": "Ben"}),
        ({"type": "array", "items": {"type": "string"}}, '["Ben", "Ann"]', ["Ben", "Ann"]),
        ({"enum": ["box 3", "box 7"]}, '"box 7"', "box 7"),
        ({"type": "boolean"}, "false", False),
        ({"type": ["integer", "null"]}, "null", None),
    ],
)
async def test_an_answer_has_the_form_that_was_asked_for(
    database: Database, schema: Any, reply: str, value: Any
) -> None:
    stored, events, script = await shaped(database, schema, reply)
    assert (stored.status, stored.no_answer, stored.value) == ("complete", None, value)
    told = answer(AnswerMessages(b"k").answer(AskDone(answer=stored, usage=())))
    assert (told.has_value, told.value) == (True, value)
    assert (stored.text, len(stored.citations)) == ("It is in box 7.", 1)
    assert stored.response_schema == schema
    assert script.asked[-1].text.count(STEPS[1]) == 1, "what the answer rests on is shown"
    (event,) = events
    assert (event.ordinal, event.kind, event.action) == (1, EventKind.SHAPING, Action.ANSWER)
    assert (json.loads(event.text), event.reply, event.template) == (value, reply, SHAPE)
    assert (event.input_tokens, event.output_tokens) == (9, 3)


async def test_a_reply_that_does_not_fit_is_asked_for_again(database: Database) -> None:
    stored, events, script = await shaped(database, BOX, '{"box": "7"}', '{"box": 7}')
    assert (stored.value, stored.no_answer) == ({"box": 7}, None)
    assert "at /box: '7' is not of type 'integer'" in script.asked[-1].text
    assert [(one.ordinal, one.action, one.attempt) for one in events] == [
        (1, Action.INVALID, 1),
        (2, Action.ANSWER, 2),
    ]


async def test_after_three_replies_that_do_not_fit_the_text_stays(database: Database) -> None:
    stored, events, _ = await shaped(database, BOX, "box seven", "{}", '{"box": 7, "x": 1}')
    assert (stored.status, stored.no_answer, stored.value) == (
        "complete",
        NoAnswer.UNREADABLE,
        None,
    )
    assert not stored.has_value
    assert (stored.text, len(stored.citations)) == ("It is in box 7.", 1)
    assert [one.action for one in events] == [Action.INVALID] * 3


async def test_what_is_no_answer_is_not_shaped(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(rows, BOX)
    script = Script(reply=says(answer="no answer"))
    assert not (await read_told(database, item))[0].has_value, "there is no answer yet"
    await answerer(database, gateway(script, database)).make(item)
    stored, events = await read_told(database, item)
    assert (stored.no_answer, stored.value, events) == (NoAnswer.NOT_FOUND, None, [])
    assert AnswerMessages(b"k").answer(AskDone(answer=stored, usage=())).value_json == ""
    assert len(script.asked) == 1


async def test_a_worker_that_takes_over_stores_the_same_events(database: Database) -> None:
    rows = await make_state(database, STEPS)
    item = await ask(rows, BOX)
    script = Script(reply=says('{"box": "7"}', '{"box": 7}'))
    first = answerer(database, gateway(script, database))
    async with database.transaction(DEFAULT_TENANT) as tx:
        wanted = await first.find(tx, item)
    assert wanted is not None
    await first.produce(item, wanted)
    # As if it had died before: the other has the same question, and the ledger the replies.
    second = Script(reply=lambda ask, number: pytest.fail("it was paid for already"))
    await asyncio.wait_for(
        answerer(database, gateway(second, database)).produce(item, wanted), timeout=60
    )
    stored, events = await read_told(database, item)
    assert (stored.value, second.asked) == ({"box": 7}, [])
    assert [one.ordinal for one in events] == [1, 2]
