"""Trajectories of browsings, read afterwards and exported."""

from dataclasses import replace
from uuid import UUID

import pytest

from service.domain.answers.browse.spec import BrowseOption, BrowseRequest
from service.domain.answers.trajectory import Action, Event, EventKind
from service.domain.prompting.flows import ModelRequest
from service.domain.values.errors import NotFound
from service.domain.values.memory_specs import ReaderName
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.answers.readers.browsed_log import BrowseHit
from service.usecases.answers.trajectories import TrainingExample
from storage.answers import answers, ratings, trajectories
from storage.answers.answers import Chosen
from storage.engine.database import Database
from tests.integration.answers.test_browse import TEXTS
from tests.integration.answers.test_trajectory_reading import trajectories as served
from tests.integration.support.asked import WINDOW, Words, ask_log
from tests.integration.support.browse import KEY, write
from tests.integration.support.ranks import Ranked
from tests.integration.support.scripted import Script, answerer
from tests.integration.support.stored_answers import item_of, read_told
from tests.support.gateways import gateway


async def browsed(
    database: Database, script: Script, option: BrowseOption, *, chosen: Chosen | None = None
) -> UUID:
    item = await ask_log(database, up_to=12, option=option, pieces=3)
    if chosen is not None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await answers.choose(tx, KEY, item.item_id, chosen)
            await trajectories.append(
                tx,
                (KEY, item.item_id),
                Event(
                    ordinal=1, kind=EventKind.CHOICE, action=Action.NONE, template="u/1", reply="x"
                ),
            )
    ranks = Ranked([BrowseHit(position=p, from_character=0) for p in (5, 1, 9)])
    await answerer(database, gateway(script, database), ranks=lambda *_: ranks).make(item)
    stored, _ = await read_told(database, item)
    assert (stored.status, stored.no_answer) == ("complete", None), stored.failure
    return item.item_id


async def exported(
    database: Database, *ids: UUID, good: bool | None = None
) -> list[TrainingExample]:
    examples = served(database).export(DEFAULT_TENANT, "s", "", list(ids), good=good)
    return [one async for one in examples]


def unsure(reply: Words) -> Script:
    """Returns a model whose second reply is useless."""

    def said(ask: ModelRequest, number: int) -> str:
        return "" if number == 2 else reply(ask, number)

    return Script(reply=said)


@pytest.mark.parametrize("option", [one for one in BrowseOption if one is not BrowseOption.AUTO])
async def test_examples_are_the_prompts_that_were_asked(
    database: Database, option: BrowseOption
) -> None:
    await write(database, TEXTS)
    script = unsure(Words("mouse"))
    answer_id = await browsed(database, script, option)
    examples = await exported(database, answer_id)
    valid = [ask.text for number, ask in enumerate(script.asked, 1) if number != 2]
    assert sorted(one.prompt for one in examples) == sorted(valid)
    assert examples[0].prompt == script.asked[0].text
    _, events = await read_told(database, item_of(answer_id))
    by_ordinal = {event.ordinal: event for event in events}
    assert [one.reply for one in examples] == [by_ordinal[one.ordinal].reply for one in examples]
    assert {one.rating for one in examples} == {None}


async def test_what_was_chosen_and_shaped_is_no_example(database: Database) -> None:
    await write(database, TEXTS)
    chosen = Chosen(
        reader=ReaderName.DCISO,
        memory_id=None,
        memory_name="",
        revision=0,
        applied_position=12,
        reason="There is no memory.",
        expected_tokens=1,
        browsing=BrowseRequest(
            window_tokens=WINDOW, option=BrowseOption.SCAN, rewritten_query="Where is a mouse?"
        ),
    )
    script = Script(reply=Words("mouse"))
    answer_id = await browsed(database, script, BrowseOption.AUTO, chosen=chosen)
    _, events = await read_told(database, item_of(answer_id))
    assert [one.kind for one in events[:2]] == [EventKind.CHOICE, EventKind.PIECE]
    shaping = replace(events[0], ordinal=len(events) + 1, kind=EventKind.SHAPING)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await trajectories.append(tx, (KEY, answer_id), shaping)
    examples = await exported(database)
    assert [one.prompt for one in examples] == [ask.text for ask in script.asked]
    assert [one.ordinal for one in examples] == list(range(2, 2 + len(examples)))


async def test_examples_are_chosen_by_ratings(database: Database) -> None:
    await write(database, TEXTS)
    ids = [
        await browsed(database, Script(reply=Words(word)), BrowseOption.SCAN)
        for word in ("year 1 ", "year 3 ", "year 5 ")
    ]
    async with database.transaction(DEFAULT_TENANT) as tx:
        for answer_id, good in zip(ids, (True, False), strict=False):
            await ratings.rate(
                tx, KEY, answer_id, good=good, comment="c", expected="e" if not good else ""
            )
    everything = await exported(database)
    assert list(dict.fromkeys(one.answer_id for one in everything)) == ids
    found = {good: await exported(database, good=good) for good in (True, False)}
    assert {one.answer_id for one in found[True]} == {ids[0]}
    assert {one.answer_id for one in found[False]} == {ids[1]}
    rating = found[False][0].rating
    assert rating is not None
    assert (rating.good, rating.comment, rating.expected) == (False, "c", "e")
    assert [one for one in everything if one.rating is not None] == found[True] + found[False]


async def test_events_of_any_answer_are_listed(database: Database) -> None:
    await write(database, TEXTS)
    answer_id = await browsed(database, Script(reply=Words("mouse")), BrowseOption.SCAN)
    _, events = await read_told(database, item_of(answer_id))
    found = await served(database).events(
        DEFAULT_TENANT, "s", answer_id, after=1, limit=2, max_bytes=2**20
    )
    # What the model replied is for exports; no list shows it.
    assert list(found.items) == [replace(one, reply="") for one in events[1:3]]


async def test_a_session_that_is_not_there_is_refused(database: Database) -> None:
    with pytest.raises(NotFound) as missing:
        await anext(served(database).export(DEFAULT_TENANT, "none", ""))
    assert missing.value.reason is Reason.SESSION_NOT_FOUND
