"""Trajectories read afterwards, of navigations with a scripted model."""

import math
from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg
import pytest

from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.errors import FailedPrecondition, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.facts import ModelFacts
from service.usecases.answers import trajectories as reading
from service.usecases.answers.trajectories import TrainingExample, Trajectories
from storage.engine.database import Database
from tests.integration.support import scripted
from tests.integration.support.scripted import CONFIG, Script, answerer
from tests.integration.support.stored_answers import read_told
from tests.integration.support.tree_rows import KEY, make_tree
from tests.integration.tree.test_navigate import LEAVES, TAIL, Moves, ask
from tests.support.gateways import gateway
from tests.support.harness import Servers


def trajectories(database: Database) -> Trajectories:
    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=32_768, count=estimate_tokens)

    return Trajectories(database, facts, b"marker", CONFIG)


async def answered(
    database: Database, script: Script, *, hybrid: int = 0, beam: int = 1, calls: int = 50
) -> UUID:
    item = await ask(database, hybrid_leaves=hybrid, beam=beam, max_calls=calls)
    await answerer(database, gateway(script, database)).make(item)
    stored, _ = await read_told(database, item)
    assert stored.status == "complete", stored.failure
    return item.item_id


async def exported(database: Database, *ids: UUID) -> list[TrainingExample]:
    examples = trajectories(database).export(DEFAULT_TENANT, "s", "t", list(ids))
    return [one async for one in examples]


def first_wrong(reply: Callable[[ModelRequest, int], str]) -> Callable[[ModelRequest, int], str]:
    return lambda ask, number: "what?" if number == 1 else reply(ask, number)


async def test_examples_are_the_prompts_that_were_asked(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    plain, mixed = Script(reply=Moves("king")), Script(reply=first_wrong(Moves("mouse")))
    wide = Script(reply=Moves("cat"))
    ids = [
        await answered(database, plain),
        await answered(database, mixed, hybrid=2),
        await answered(database, wide, hybrid=3, beam=2),
    ]
    await answered(database, Script(reply=Moves("zebra")))
    examples = await exported(database)
    assert [one.answer_id for one in examples] == sorted(
        (one.answer_id for one in examples), key=ids.index
    ), "oldest first, and none without an answer"
    by_answer = [[one for one in examples if one.answer_id == answer_id] for answer_id in ids]
    assert [one.prompt for one in by_answer[0]] == [ask.text for ask in plain.asked]
    assert [one.prompt for one in by_answer[1]] == [ask.text for ask in mixed.asked[1:]]
    assert by_answer[1][0].ordinal == 3, "retrieval, a reply that was none"
    assert sorted(one.prompt for one in by_answer[2]) == sorted(ask.text for ask in wide.asked)
    assert by_answer[0][0].reply == "Reasoning: it is there\nAction: 0"
    assert by_answer[0][0].template == plain.asked[0].template
    assert await exported(database, ids[1]) == by_answer[1]
    assert await exported(database, uuid4()) == []


async def test_an_export_goes_through_all_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    ids = [await answered(database, Script(reply=Moves("king"))) for _ in range(4)]
    monkeypatch.setattr(reading, "EXPORT_ANSWERS", 2)
    examples = await exported(database)
    assert list(dict.fromkeys(one.answer_id for one in examples)) == ids


async def test_what_other_prompts_led_to_is_left_out(
    database: Database, servers: Servers, url: str
) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    answer_id = await answered(database, Script(reply=Moves("king")))
    assert await exported(database, answer_id) != []
    with psycopg.connect(servers.as_superuser(url)) as connection:
        connection.execute(
            "UPDATE trajectory_event SET event = jsonb_set(event, '{targets}', '[\"0.9\"]')"
            " WHERE ordinal = 1"
        )
    assert await exported(database, answer_id) == []


async def test_events_come_in_pages_and_statistics_are_of_the_tree(database: Database) -> None:
    await make_tree(database, LEAVES, tail=TAIL)
    answer_id = await answered(database, Script(reply=Moves("king")))
    await answered(database, Script(reply=Moves("zebra")), calls=2)
    served = trajectories(database)
    found = await served.events(DEFAULT_TENANT, "s", answer_id, after=1, limit=2, max_bytes=2**20)
    assert [event.ordinal for event in found.items] == [2, 3]
    sums = await served.statistics(DEFAULT_TENANT, "s", "t")
    assert (sums.navigations, sums.answered, sums.statistics.calls) == (2, 1, 5)
    assert math.isclose(sums.statistics.text_tokens / 2, sum(map(estimate_tokens, LEAVES + TAIL)))


async def test_what_is_not_there_or_no_tree_is_refused(database: Database) -> None:
    await scripted.make(database, ["a"])
    served = trajectories(database)
    with pytest.raises(NotFound) as missing:
        await served.events(DEFAULT_TENANT, "s", uuid4(), after=0, limit=1, max_bytes=1)
    assert missing.value.reason is Reason.ANSWER_NOT_FOUND
    with pytest.raises(NotFound) as missing:
        await served.events(DEFAULT_TENANT, "none", uuid4(), after=0, limit=1, max_bytes=1)
    assert missing.value.reason is Reason.SESSION_NOT_FOUND
    for call in (
        served.statistics(DEFAULT_TENANT, "s", "m"),
        anext(served.export(DEFAULT_TENANT, "s", "m")),
    ):
        with pytest.raises(FailedPrecondition) as wrong:
            await call
        assert wrong.value.reason is Reason.WRONG_MEMORY_KIND
    assert KEY == scripted.KEY
