"""Memories that become full: consolidated long before, and reported to readers."""

import asyncio
import json
import re

import pytest
from typer.testing import CliRunner

import palimpsest
from service.app.kinds import memories_of
from service.cli.commands import app
from service.domain.prism.amendments import Op
from service.domain.prism.losses import LossKind, losses_of
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import BYTE_SHARE
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.memories import history
from storage.operations import doctor
from storage.prism import states
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
    read,
)
from tests.integration.support.stored_answers import store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.gateways import gateway
from tests.support.harness import api

LIMIT = 4000
SMALL = CONFIG.model_copy(update={"limits": Limits(max_memory_bytes=LIMIT)})
#: Bytes of what each step adds.
FACT = 300
NOTHING = "[OBJECTS FOR UPDATE]\n{}\n"


def fact(number: int, size: int = FACT) -> str:
    return "[OBJECTS FOR ADD]\n" + json.dumps({f"$.topics.t{number}": {"add": "x" * size}})


def idle(ask: ModelRequest, number: int) -> str:
    """Returns a model that cannot make a memory shorter."""
    return NOTHING if ask.purpose is Purpose.CONSOLIDATE else fact(number)


def tidy(ask: ModelRequest, number: int) -> str:
    """Returns a model that takes away all but one topic when it is asked to."""
    if ask.purpose is not Purpose.CONSOLIDATE:
        return fact(number)
    topics = sorted(set(re.findall(r'"(t\d+)"', ask.text)))
    gone = "".join(f"$.'topics'.'{topic}'\n" for topic in topics[1:])
    return f"[OBJECTS FOR REMOVE]\n{gone}"


async def kinds(database: Database) -> list[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [one.kind for one in await history.list_revisions(tx, KEY, MEMORY, -1, 1000)]


async def rejected(database: Database) -> int:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch("SELECT count(*) FROM rejection")
        return int(found[0][0])


async def load(database: Database) -> PrismMemory:
    stored = await read(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_nearest(tx, KEY, MEMORY, stored.revision)
    assert rows is not None
    return PrismMemory.load(
        PrismSpec.of(stored).schema(),
        base_json=rows.base,
        amendments=rows.amendments,
        encoding=Encoding.IN_PLACE,
        count=estimate_tokens,
    )


def editor(database: Database) -> Editor:
    wake_ups = WakeUps(drop_wake_ups)
    watcher = ProgressWatcher(database)
    memories = memories_of(database, wake_ups, watcher, b"token", SMALL.limits)
    return Editor(database, memories, SMALL.limits)


async def test_a_memory_is_consolidated_long_before_its_limit_of_bytes(database: Database) -> None:
    await make(database, ["a"] * 40)
    sizes = []

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is Purpose.CONSOLIDATE:
            sizes.append(len(ask.text))
        return tidy(ask, number)

    await prism_method(database, Script(reply=reply), SMALL).drain(ITEM)
    assert await rejected(database) == 0, "nothing was lost"
    assert (await read(database)).losses is None
    assert len(sizes) >= 4, "it was made shorter each time that it had half of what it may have"
    assert (await load(database)).live_bytes <= BYTE_SHARE * LIMIT + 2 * FACT


async def test_a_consolidation_that_makes_nothing_shorter_is_not_repeated_for_each_step(
    database: Database,
) -> None:
    await make(database, ["a"] * 60)
    script = Script(reply=idle)
    await prism_method(database, script, SMALL).drain(ITEM)
    asked = [ask.purpose for ask in script.asked]
    assert (await read(database)).applied_position == 60
    assert asked.count(Purpose.CONSOLIDATE) < 12, "the memory grew by a tenth between two of them"
    tail = (await kinds(database))[-40:]
    assert set(tail) == {"step"}, "and when it is full they end"


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_what_finds_no_room_is_reported_where_the_memory_is_read(
    database: Database, encoding: Encoding
) -> None:
    await make(database, ["a"] * 30, encoding=encoding)
    await prism_method(database, Script(reply=idle), SMALL).drain(ITEM)
    stored = await read(database)
    assert stored.status == "active"
    (loss,) = losses_of(stored.losses)
    assert loss.kind is LossKind.NO_ROOM
    assert loss.count == loss.steps == await rejected(database) > 10
    assert loss.since_position == 30 - loss.count + 1
    assert f"{loss.count} proposals found no room" in loss.sentence()
    async with database.transaction(DEFAULT_TENANT) as tx:
        ((name, told),) = await doctor.read_losses(tx)
    assert (name, losses_of(told)) == ("s/m", (loss,))


async def test_the_sign_goes_when_there_is_room_again(database: Database) -> None:
    await make(database, ["a"] * 30)
    await prism_method(database, Script(reply=idle), SMALL).drain(ITEM)
    topics = json.loads((await load(database)).value_json)["topics"]
    edits = [Edit(op=Op.REMOVE, path=f"$.topics.{one}", value_json="") for one in topics]
    target = Target(session="s", memory="m")
    shorter = Edit(op=Op.UPDATE, path=edits[-1].path, value_json=json.dumps("x" * 250))
    await editor(database).revise(DEFAULT_TENANT, target, [shorter])
    assert losses_of((await read(database)).losses), "there is hardly any room"
    await editor(database).revise(DEFAULT_TENANT, target, edits[:4])
    assert losses_of((await read(database)).losses) == ()
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert list(await doctor.read_losses(tx)) == []


async def test_nothing_is_lost_that_a_consolidation_makes_room_for(database: Database) -> None:
    await make(database, ["a"] * 3)

    def reply(ask: ModelRequest, number: int) -> str:
        # A step may add more than is left of the limit.
        return tidy(ask, number) if ask.purpose is Purpose.CONSOLIDATE else fact(number, 1900)

    script = Script(reply=reply)
    await prism_method(database, script, SMALL).drain(ITEM)
    stored = await read(database)
    assert (stored.applied_position, stored.losses, await rejected(database)) == (3, None, 0)
    made = await kinds(database)
    assert made == ["create", "step", "step", "consolidation", "step"]


async def test_a_step_without_room_is_not_paid_for_again_after_a_takeover(
    database: Database,
) -> None:
    await make(database, ["a"] * 3)
    wide = CONFIG.model_copy(update={"limits": Limits(max_memory_bytes=3000)})
    calls: list[Purpose] = []

    def reply(ask: ModelRequest, number: int) -> str:
        calls.append(ask.purpose)
        if ask.purpose is Purpose.CONSOLIDATE and calls.count(Purpose.CONSOLIDATE) == 1:
            raise ModelFailure("busy", retryable=True)
        return tidy(ask, number) if ask.purpose is Purpose.CONSOLIDATE else fact(number, 1300)

    script = Script(reply=reply)
    while (await read(database)).applied_position < 3:
        await prism_method(database, script, wide).drain(ITEM)
    assert (await read(database)).losses is None
    assert calls.count(Purpose.CONSOLIDATE) == 2, "the one that failed was tried again"
    assert calls.count(Purpose.REVISE) <= 4, "and the step before it was read from the ledger"


async def test_a_run_of_rejections_is_reported_until_a_step_adds_something(
    database: Database,
) -> None:
    await make(database, ["a"] * 2)
    wrong = '[OBJECTS FOR ADD]\n{"$.nothing": {"add": "x"}}\n{"$.more": {"add": "x"}}'
    script = Script(reply=lambda ask, number: wrong)
    await prism_method(database, script).drain(ITEM)
    assert losses_of((await read(database)).losses) == (), "two steps may be wrong"
    await append_texts(database, "s", ["a"] * 2, first=3)
    await prism_method(database, script).drain(ITEM)
    (loss,) = losses_of((await read(database)).losses)
    assert (loss.kind, loss.count, loss.steps, loss.since_position) == (LossKind.INVALID, 8, 4, 1)
    assert "8 proposals of 4 steps" in loss.sentence()
    await append_texts(database, "s", ["a"], first=5)
    await prism_method(database, Script(reply=lambda ask, number: NOTHING)).drain(ITEM)
    assert losses_of((await read(database)).losses) == (loss,), "what brings nothing ends nothing"
    await append_texts(database, "s", ["a"], first=6)
    await prism_method(database, Script(reply=lambda ask, number: fact(number))).drain(ITEM)
    assert losses_of((await read(database)).losses) == ()


async def test_what_is_there_already_is_no_loss(database: Database) -> None:
    await make(database, ["a"] * 8)
    same = '[OBJECTS FOR ADD]\n{"$.topics.t": {"add": "x"}}'
    await prism_method(database, Script(reply=lambda ask, number: same)).drain(ITEM)
    assert await rejected(database) == 7
    assert (await read(database)).losses is None


async def test_reads_lists_and_answers_carry_the_sign(database: Database, url: str) -> None:
    await make(database, ["a"] * 30)
    script = Script(reply=idle)
    await prism_method(database, script, SMALL).drain(ITEM)
    stored = await read(database)
    (expected,) = losses_of(stored.losses)
    item = await store_question(
        database,
        MEMORY,
        "How many?",
        revision=stored.revision,
        applied_position=stored.applied_position,
    )
    script.reply = lambda ask, number: "[ANSWER]\nMany.\n[PATHS]\n"
    await answerer(database, gateway(script, database)).make(item)
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            session = client.session("s")
            state = await session.memory("m").get(fully_applied=True)
            (listed,) = await session.memories()
            answered = await session.answer(str(item.item_id))
        for losses in (state.info.losses, listed.losses, answered.losses):
            ((kind, count, since),) = [(x.kind, x.count, x.since_position) for x in losses]
            assert (kind, count, since) == ("no_room", expected.count, expected.since_position)
        said = {"--session": "s", "--address": address}
        options = [part for pair in said.items() for part in pair]
        show, table = [
            await asyncio.to_thread(CliRunner().invoke, app, ["memory", *words, *options])
            for words in (["show", "m"], ["list"])
        ]
    assert f"it is full: {expected.count} proposals found no room" in " ".join(show.output.split())
    assert "active, full" in table.output
