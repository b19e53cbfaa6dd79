"""A fourth kind of memory works with nothing but its folder and its registration."""

from contextlib import aclosing

import psycopg
import pytest

from service.app import kinds
from service.app.kinds import memories_of, use_cases
from service.app.method_registry import MethodRegistry, engines_of
from service.domain.memories import specs
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.errors import FailedPrecondition, NotFound, OutOfRange
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers.facts import ModelFacts
from service.settings.config import Limits
from service.usecases.answers.ask import Asker, AskStarted
from service.usecases.answers.interest import Interest
from service.usecases.answers.questions import Question
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.step_tools import StepTools
from service.usecases.operations.deleting import Deleter, Remover
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.answers import answers
from storage.engine.database import Database
from storage.log import sessions
from tests.integration.memories.counter_kind import rows
from tests.integration.memories.counter_kind.kind import COUNTER
from tests.integration.memories.counter_kind.spec import CounterSpec
from tests.integration.support.scripted import CONFIG, ITEM, KEY, Script, answerer
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.gateways import gateway
from tests.support.prices import PLAIN

TOKEN_KEY = b"token-key"
SESSION = (DEFAULT_TENANT, "s")
MEMORY = (*SESSION, "m")


@pytest.fixture
async def counters(url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> Memories:
    """Registers the kind, applies its migration, and makes a counter of an empty session."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(rows.MIGRATION)
    monkeypatch.setitem(specs.SPECS, CounterSpec.kind, CounterSpec)
    monkeypatch.setitem(kinds.KINDS, CounterSpec.kind, COUNTER)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    memories = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), TOKEN_KEY, Limits()
    )
    made = await memories.create(*MEMORY, CounterSpec())
    assert (made.kind, made.spec, made.revision) == ("counter", CounterSpec(), 0)
    return memories


async def step(database: Database) -> None:
    """Runs a worker's engine until the counter is at the head."""
    script = Script()
    tools = StepTools(
        database=database,
        gateway=gateway(script, database),
        facts=lambda _: ModelFacts(window_tokens=32_768, count=estimate_tokens),
        prices=lambda _: PLAIN,
        marker_key=b"marker",
        config=CONFIG,
    )
    assert await MethodRegistry(database, engines_of(tools)).drain(ITEM) is None
    assert script.asked == []


async def newest(memories: Memories) -> tuple[str, int, int]:
    """Returns the value, the revision and the applied position."""
    reading = await memories.read(*MEMORY, Consistency(fully_applied=True), deadline=None)
    return reading.value_json, reading.revision, reading.applied_position


async def verified(database: Database) -> list[str]:
    """Returns what a verification of the session finds."""
    async with aclosing(Verifier(database, use_cases()).verify(*SESSION)) as told:
        return [
            f"{one.part}: {one.difference.name}, {one.difference.place}"
            async for one in told
            if isinstance(one, LocatedDifference)
        ]


async def answered(database: Database, question: Question) -> str:
    """Asks, has a worker answer, and returns the answer's text."""
    asker = Asker(
        database,
        WakeUps(drop_wake_ups),
        ProgressWatcher(database),
        TOKEN_KEY,
        ConcurrencyLimiter(1),
        Interest(database, seconds=60),
    )
    async with aclosing(asker.ask(DEFAULT_TENANT, question, deadline=None)) as told:
        started = await anext(told)
    assert isinstance(started, AskStarted)
    item = WorkItem(
        kind=WorkKind.ANSWER,
        tenant_id=DEFAULT_TENANT,
        session_key=KEY,
        item_id=started.answer_id,
    )
    await answerer(database, gateway(Script(), database)).make(item)
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await answers.get(tx, KEY, started.answer_id)
    assert stored is not None
    assert [one.position for one in stored.citations] == [stored.applied_position]
    return stored.text


async def test_it_is_stepped_and_read(database: Database, counters: Memories) -> None:
    assert await newest(counters) == ("0", 0, 0)
    await append_texts(database, "s", ["a", "b", "c", "d", "e"])
    await step(database)
    assert await newest(counters) == ("5", 3, 5)
    await append_texts(database, "s", ["f"], first=6)
    await step(database)
    assert await newest(counters) == ("6", 4, 6)
    assert (await counters.read_revision(*MEMORY, 1)).value_json == "2"
    assert (await counters.read_position(*MEMORY, 3)).value_json == "2"
    with pytest.raises(OutOfRange):
        await counters.read_revision(*MEMORY, 5)
    _, page = await History(database, use_cases()).revisions(*MEMORY, -1, 10, max_bytes=10_000)
    assert [one.kind for one in page.items] == ["create", *["step"] * 4]


async def test_it_is_verified(database: Database, counters: Memories) -> None:
    await append_texts(database, "s", ["a", "b", "c"])
    await step(database)
    assert await verified(database) == []


async def test_a_wrong_count_is_found(url: str, database: Database, counters: Memories) -> None:
    await append_texts(database, "s", ["a", "b", "c"])
    await step(database)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE counter_value NO FORCE ROW LEVEL SECURITY")
        connection.execute("UPDATE counter_value SET chunks = 7 WHERE revision = 2")
    assert await verified(database) == ["memory m: counter.value, revision 2"]


async def test_it_answers(database: Database, counters: Memories) -> None:
    await append_texts(database, "s", ["a", "b", "c"])
    await step(database)
    asked = Question(session="s", memory="m", query="How many?", consistency=Consistency())
    assert await answered(database, asked) == "3 chunks."


async def test_what_it_cannot_do_is_refused(database: Database, counters: Memories) -> None:
    editor = Editor(database, counters, Limits())
    target = Target(session="s", memory="m")
    for refused in (
        editor.rollback(DEFAULT_TENANT, target, 0),
        editor.fold(DEFAULT_TENANT, target),
    ):
        with pytest.raises(FailedPrecondition, match="is a counter memory; this is for prism"):
            await refused


async def test_it_is_rebuilt(database: Database, counters: Memories) -> None:
    await append_texts(database, "s", ["a", "b", "c"])
    await step(database)
    found = await counters.rebuild(*SESSION, "other", CounterSpec(step_chunks=9), "m")
    assert (found.operation.memory, found.operation.goal) == ("other", 3)


async def test_it_is_deleted_with_all_its_rows(
    url: str, database: Database, counters: Memories
) -> None:
    await append_texts(database, "s", ["a", "b", "c"])
    await step(database)
    await Deleter(database, WakeUps(drop_wake_ups)).delete_memory(*MEMORY, allow_missing=False)
    with pytest.raises(NotFound):
        await newest(counters)
    removal = WorkItem(
        kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=ITEM.item_id
    )
    assert await Remover(database, CONFIG).remove(removal) is None
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE counter_value NO FORCE ROW LEVEL SECURITY")
        assert connection.execute("SELECT count(*) FROM counter_value").fetchone() == (0,)
    assert (await counters.create(*MEMORY, CounterSpec())).revision == 0
