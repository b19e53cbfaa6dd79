"""Memories, answers and drafts whose model gives no reply: they wait, then continue themselves."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from service.domain.calls.conditions import Condition
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.circuits import SEVERAL, Circuits
from service.llm.gateway.routing import deployments_of
from service.llm.providers.facts import ModelFacts
from service.llm.providers.failures import ModelFailure
from service.settings.config import Config
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.recovery import Recovery, StoredConditions
from service.usecases.memories.step_failures import Pauses
from storage.calls import conditions
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories, waiting
from storage.memories.memories import StoredMemory
from storage.operations import doctor
from tests.integration.support.scripted import SPEC, Script
from tests.integration.support.writing import append_texts
from tests.support.gateways import gateway
from tests.support.runnable import runnable as runnable_now
from tests.support.step_engines import step_engine

MODEL = "test/scripted"
WRONG_KEY = ModelFailure("the key is wrong", retryable=False, fault=Fault.KEY_REFUSED)
REFUSED = ModelFailure("no such parameter", retryable=False, fault=Fault.REQUEST_REFUSED)
FAILING = ModelFailure("out of order", retryable=True, fault=Fault.FAILING)
#: A probe is due at once.
CONFIG = Config(step_backoff_seconds=0.001, step_tries=3, model_probe_seconds=0.001)


class Deployment:
    """A worker on memories of sessions of their own, and what looks after what waits."""

    def __init__(self, database: Database, script: Script) -> None:
        self.database = database
        self.script = script
        self.circuits = Circuits(
            StoredConditions(database), probe_seconds=CONFIG.model_probe_seconds
        )
        calls = gateway(script, database, circuits=self.circuits)
        facts = ModelFacts(window_tokens=32_768, count=estimate_tokens)
        self.engine = step_engine(PrismSpec.kind, database, calls, CONFIG, facts)

        async def wake_up(items: object) -> None:
            """Drops wake-ups: the test looks for runnable work itself."""

        self.recovery = Recovery(
            database, self.circuits, WakeUps(wake_up), partial(deployments_of, ())
        )

    async def make(self, number: int, text: str = "The harbour is closed.") -> WorkItem:
        """Returns a memory with one chunk to read."""
        name = f"s{number}"
        key = session_key(DEFAULT_TENANT, name)
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, key, name)
            await memories.create(
                tx,
                session_key=key,
                memory_id=memory_id(key, "m"),
                name="m",
                spec=SPEC,
                head=0,
                digest=b"",
                value='{"topics":{}}',
            )
        await append_texts(self.database, name, [text])
        return WorkItem(
            kind=WorkKind.MEMORY,
            tenant_id=DEFAULT_TENANT,
            session_key=key,
            item_id=memory_id(key, "m"),
        )

    async def read(self, item: WorkItem) -> StoredMemory:
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            found = await memories.get(tx, item.session_key, item.item_id)
        assert found is not None
        return found

    async def runnable(self) -> set[WorkItem]:
        async with self.database.sweeping() as tx:
            return set(await runnable_now(tx, 1000))

    async def conditions(self) -> list[Condition]:
        async with self.database.without_tenant() as tx:
            return list(await conditions.read(tx))

    async def look(self) -> set[WorkItem]:
        """Returns what a look woke."""
        await asyncio.sleep(0.005)
        await self.recovery.look()
        return await self.runnable()


async def drain(deployment: Deployment, *items: WorkItem) -> None:
    for item in items:
        await deployment.engine.drain(item)


@pytest.fixture
async def deployment(database: Database) -> Deployment:
    return Deployment(database, Script())


@pytest.mark.prove
@pytest.mark.parametrize("error", [WRONG_KEY, FAILING, REFUSED])
async def test_all_wait_for_a_model_that_gives_no_replies_and_go_on_when_it_does(
    deployment: Deployment, error: ModelFailure
) -> None:
    items = [await deployment.make(number) for number in range(8)]
    deployment.script.failures = [error] * 1000
    for _ in range(3):
        await drain(deployment, *items)
        await asyncio.sleep(0.005)
    (condition,) = await deployment.conditions()
    assert (condition.deployment, condition.fault, condition.cause) == (
        MODEL,
        error.fault,
        str(error),
    )
    stored = [await deployment.read(item) for item in items]
    assert {one.status for one in stored} == {"active"}, "nothing stalls"
    assert {one.waiting_cause for one in stored} == {str(error)}
    asked = len(deployment.script.asked)
    for _ in range(5):
        # One memory finds out, and waits again.
        (woken,) = await deployment.look()
        await drain(deployment, woken)
    assert len(deployment.script.asked) - asked <= 5, "one call a probe"
    deployment.script.failures = []
    (woken,) = await deployment.look()
    await drain(deployment, woken)
    assert await deployment.conditions() == []
    assert await deployment.look() == set(items) - {woken}
    await drain(deployment, *items)
    stored = [await deployment.read(item) for item in items]
    assert {(one.applied_position, one.waiting_cause) for one in stored} == {(1, None)}


async def test_the_first_to_be_refused_go_on_with_the_others(deployment: Deployment) -> None:
    early = await deployment.make(0)
    deployment.script.failures = [REFUSED] * 1000
    for _ in range(CONFIG.step_tries):
        await drain(deployment, early)
        await asyncio.sleep(0.005)
    stalled = await deployment.read(early)
    assert (stalled.status, await deployment.conditions()) == ("stalled", [])
    # By the others it turns out that it was not its text.
    others = [await deployment.make(number) for number in range(1, SEVERAL + 1)]
    for _ in range(2):
        await drain(deployment, *others)
        await asyncio.sleep(0.005)
    assert len(await deployment.conditions()) == 1
    # It meets the circuit, and waits with them.
    assert early in await deployment.look()
    await drain(deployment, early)
    assert (await deployment.read(early)).waiting_cause is not None
    deployment.script.failures = []
    for _ in range(4):
        await drain(deployment, *await deployment.look())
    stored = [await deployment.read(item) for item in (early, *others)]
    assert {one.applied_position for one in stored} == {1}


async def test_a_memory_whose_text_is_refused_stalls_alone(deployment: Deployment) -> None:
    poisoned, other = await deployment.make(0), await deployment.make(1)
    for _ in range(CONFIG.step_tries):
        deployment.script.failures = [REFUSED]
        await drain(deployment, poisoned)
        await drain(deployment, other)
        await asyncio.sleep(0.005)
    assert (await deployment.read(poisoned)).status == "stalled"
    assert (await deployment.read(other)).applied_position == 1
    assert await deployment.conditions() == []


@pytest.mark.parametrize("number", [1, SEVERAL - 1])
async def test_texts_that_the_model_always_fails_at_delay_no_other_memory(
    deployment: Deployment, database: Database, number: int
) -> None:
    def reply(ask: ModelRequest, at: int) -> str:
        if "poison" in ask.text:
            raise FAILING
        return f'[OBJECTS FOR ADD]\n{{"$.topics.t{at}": {{"add": "x"}}}}'

    deployment.script.reply = reply
    poisoned = [await deployment.make(at, "poison") for at in range(number)]
    for _ in range(10):
        await drain(deployment, *poisoned)
        await asyncio.sleep(0.005)
    asked = len(deployment.script.asked)
    assert asked >= 5 * number, "they are tried again"
    # Nothing was called meanwhile: whatever comes now is not held up.
    other = await deployment.make(number)
    await drain(deployment, other)
    assert (await deployment.read(other)).applied_position == 1
    assert await deployment.conditions() == []
    assert {(await deployment.read(item)).status for item in poisoned} == {"active"}
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await doctor.read_memories(tx)
    assert found.failing == tuple(f"s{at}/m" for at in range(number))
    assert found.failing_by == str(FAILING)


async def test_what_was_backed_off_as_the_condition_passed_is_found(
    deployment: Deployment, database: Database
) -> None:
    item = await deployment.make(0)
    deployment.script.failures = [WRONG_KEY]
    await drain(deployment, item)
    async with database.without_tenant() as tx:
        (condition,) = await conditions.read(tx)
        await conditions.remove(tx, condition)
    woken: set[WorkItem] = set()
    for _ in range(10):
        woken |= await deployment.look()
    assert woken == {item}


async def test_a_condition_that_nothing_waits_for_is_forgotten(
    deployment: Deployment, database: Database
) -> None:
    async with database.without_tenant() as tx:
        await conditions.add(
            tx,
            deployment=MODEL,
            model=MODEL,
            fault=Fault.KEY_REFUSED,
            cause="the key is wrong",
            probe_seconds=-3600,
        )
    await deployment.look()
    assert await deployment.conditions() == []


async def test_an_answer_waits_without_a_counted_try(database: Database, url: str) -> None:
    deployment = Deployment(database, Script())
    memory = await deployment.make(0)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await waiting.back_off(
            tx,
            replace(memory, kind=WorkKind.MEMORY),
            model=MODEL,
            cause="the key is wrong",
            seconds=600,
        )
        assert await waiting.find_cause(tx, memory) == "the key is wrong"
        assert await waiting.count_waiting(tx) == {MODEL: 1}
    assert await deployment.runnable() == set()
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = waiting.WaitingWork(kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, model=MODEL)
        assert list(await waiting.wake(tx, found, 10)) == [memory]
        assert await waiting.find_cause(tx, memory) is None


def test_pauses_grow_up_to_five_minutes_and_begin_anew() -> None:
    pauses, owner = Pauses(1.0), memory_id(session_key(DEFAULT_TENANT, "s"), "m")
    seconds = [pauses.next(owner, FAILING) for _ in range(20)]
    assert seconds[0] <= 1.0
    assert 150 <= seconds[-1] <= 300
    pauses.forget(owner)
    assert pauses.next(owner, FAILING) <= 1.0


async def test_a_condition_is_new_once(deployment: Deployment, database: Database) -> None:
    # The process that learns that it is new counts it, and logs it.
    said = []
    async with database.without_tenant() as tx:
        for _ in range(2):
            said.append(
                await conditions.add(
                    tx,
                    deployment=MODEL,
                    model=MODEL,
                    fault=Fault.KEY_REFUSED,
                    cause="the key is wrong",
                    probe_seconds=3600,
                )
            )
    assert said == [True, False]
