"""Steps under trouble: failures, stalls, skips, retries, and the ledger."""

import asyncio
from typing import Any

import pytest

from service.app.kinds import memories_of
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.memories import stalls
from storage.prism import amendment_log
from tests.integration.support.ledger_sums import usage_of_session
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
from tests.integration.support.statements import statements
from tests.integration.support.stored_answers import read_answer, store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.gateways import gateway


async def test_a_failing_step_backs_off_and_then_goes_on(database: Database) -> None:
    await make(database, ["a", "b"])
    script = Script([ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)])
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 0
    await asyncio.sleep(0.01)
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.applied_position, stored.revision, stored.status) == (2, 2, "active")


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)] * 3, "busy"),
        ([ModelFailure("wrong key", retryable=False)], "wrong key"),
        ([KeyError("a defect")] * 3, "'a defect'"),
    ],
)
async def test_a_step_that_fails_for_good_stalls_its_memory_until_it_is_retried(
    database: Database, failures: list[Exception], cause: str
) -> None:
    await make(database, ["a", "b"])
    script = Script(list(failures))
    for _ in failures:
        await prism_method(database, script).drain(ITEM)
        await asyncio.sleep(0.01)
    stalled = await read(database)
    assert stalled.status == "stalled"
    assert stalled.stall is not None
    assert (stalled.stall.position, stalled.stall.cause) == (1, cause)
    assert stalled.stall.attempts == len(failures)
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 0, "it waits"
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    await prism_method(database, script).drain(ITEM)
    again = await read(database)
    assert (again.status, again.applied_position, again.stall) == ("active", 2, None)


async def test_a_memory_that_skips_records_what_it_skipped(database: Database) -> None:
    await make(database, ["a", "b"], on_failure=OnFailure.SKIP)
    script = Script([ModelFailure("no", retryable=False)])
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.status, stored.applied_position, stored.revision) == ("active", 2, 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        changes = await amendment_log.list_amendments(tx, KEY, MEMORY, (0, 0), 10)
    assert [change.revision for change in changes] == [2]


async def test_a_paid_reply_is_used_after_a_crash_though_more_has_come(
    database: Database,
) -> None:
    await make(database, ["a"], chunk_tokens=100)
    script = Script()

    class Crash(BaseException):
        """Ends a worker as SIGKILL ends a process."""

    dying = prism_method(database, script)

    async def crash(*_: Any, **__: Any) -> None:
        raise Crash

    dying._commit = crash  # type: ignore[method-assign]
    with pytest.raises(Crash):
        await dying.drain(ITEM)
    assert len(script.asked) == 1
    await append_texts(database, "s", ["b", "c"], first=2)
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.applied_position, stored.revision) == (3, 2)
    assert len(script.asked) == 2, "the first step was not paid for again"
    assert script.asked[0].text != script.asked[1].text
    async with database.transaction(DEFAULT_TENANT) as tx:
        (line,) = await usage_of_session(tx, KEY)
    assert (line.calls, line.reported_cached_tokens, line.cost_micro_usd) == (2, 0, None)


async def test_a_result_is_thrown_away_when_the_memory_was_taken_over(database: Database) -> None:
    await make(database, ["a"])
    other = Script()
    taken: list[asyncio.Task[float | None]] = []

    async def take_over() -> None:
        taken.append(asyncio.create_task(prism_method(database, other).drain(ITEM)))
        # Until it has the memory, and waits for the call that is under way.
        await asyncio.sleep(0.2)

    first = Script(meanwhile=take_over)
    await prism_method(database, first).drain(ITEM)
    await taken[0]
    stored = await read(database)
    assert (stored.applied_position, stored.revision) == (1, 1)
    assert (len(first.asked), len(other.asked)) == (1, 0), "both had the one reply"


async def test_a_chunk_that_comes_while_the_last_step_goes_idle_is_not_forgotten(
    database: Database,
) -> None:
    await make(database, ["a"])

    async def append() -> None:
        script.meanwhile = None
        await append_texts(database, "s", ["b"], first=2)

    script = Script(meanwhile=append)
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 2


async def test_draining_gives_others_their_turn(database: Database) -> None:
    await make(database, ["a", "b", "c"])
    impatient = CONFIG.model_copy(update={"drain_seconds": 0.0})
    assert await prism_method(database, Script(), impatient).drain(ITEM) == 0.0
    stop = asyncio.Event()
    stop.set()
    assert await prism_method(database, Script()).drain(ITEM, stop=stop) == 0.0
    assert (await read(database)).applied_position == 0
    assert await prism_method(database, Script()).drain(ITEM) is None
    assert (await read(database)).applied_position == 3


async def test_an_answer_that_cannot_be_made_fails_with_its_cause(database: Database) -> None:
    await make(database, ["a"])
    await prism_method(database, Script()).drain(ITEM)
    script = Script([ModelFailure("wrong key", retryable=False)])
    maker = answerer(database, gateway(script, database))
    for status, failure in (("failed", "wrong key"), ("complete", "")):
        item = await store_question(database, MEMORY, "?", revision=1, applied_position=1)
        await maker.make(item)
        await maker.make(item)
        made = await read_answer(database, item)
        assert (made.status, made.failure) == (status, failure)
        cited = [1] if status == "complete" else []
        assert [one.position for one in made.citations] == cited


async def test_a_step_sends_a_bounded_number_of_statements(database: Database) -> None:
    """Notices when a step, which is the hot path, costs more."""
    await make(database, [f"chunk {n}" for n in range(12)])
    with statements() as sent:
        await prism_method(database, Script()).drain(ITEM)
    # Each with its BEGIN and COMMIT; of a step those of its call as well, which go together,
    # and those of a fold.
    claim, read_chunks, a_step = 6, 3, 25
    assert len(sent) > 12 * 6, "statements are counted whichever way they go"
    assert len(sent) <= claim + read_chunks + a_step * 12 + 1, sent[-15:]


async def test_a_failure_with_a_memory_that_was_edited_since_does_not_stall_it(
    database: Database,
) -> None:
    await make(database, ["a"])
    editor = Editor(
        database,
        memories_of(
            database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"token-key", Limits()
        ),
        Limits(),
    )
    script = Script(failures=[ModelFailure("there is no room for it", retryable=False)])
    complete = script.complete

    async def edit_and_fail(ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        put = Edit(op=None, path="$.topics.x", value_json='"y"')
        await editor.revise(DEFAULT_TENANT, Target(session="s", memory="m"), [put])
        return await complete(ask, model, plan)

    script.complete = edit_and_fail  # type: ignore[method-assign]
    await prism_method(database, script).drain(ITEM)
    stored = await read(database)
    assert (stored.status, stored.revision, stored.applied_position) == ("active", 1, 0)
    await prism_method(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 1
