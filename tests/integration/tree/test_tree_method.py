"""Building trees, on a real database with a model that follows a script."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from service.app.method_registry import MethodRegistry
from service.domain.memories.specs import SPECS
from service.domain.prompting.faults import Fault
from service.domain.spend.budgets import BudgetPeriod
from service.domain.tree.nodes import SummarySource
from service.domain.values.memory_specs import OnFailure
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem
from service.llm.providers.failures import ModelFailure
from service.usecases.memories.step_engine import StepEngine
from service.usecases.tree import pipeline
from storage.engine.database import Database
from storage.memories import stalls
from tests.integration.memories.test_holding import CALL_TOKENS, OF_MEMORY, put
from tests.integration.memories.test_holding import gateway as budgeted_gateway
from tests.integration.support.growing import (
    assert_is_tree,
    kinds_of,
    leaves_by_hand,
    nodes_of,
    want_seal,
)
from tests.integration.support.ledger_sums import usage_of_session
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    TREE,
    Script,
    make,
    read,
    summary_reply,
    tree_method,
)
from tests.integration.support.writing import append_texts

SENTENCE = "The {n}th sentence of this story says how somebody went to town on a horse. "


def story(sentences: int, first: int = 1) -> list[str]:
    """Chunks of one sentence each, about 19 tokens."""
    return [SENTENCE.format(n=n) for n in range(first, first + sentences)]


async def test_a_tree_grows_to_the_head_of_its_log(database: Database) -> None:
    await make(database, story(60), TREE)
    script = Script()
    assert await tree_method(database, script).drain(ITEM) is None
    tree = await nodes_of(database)
    assert_is_tree(tree, 3, sealed=False)
    stored = await read(database)
    assert (stored.applied_position, stored.status) == (60, "active")
    leaves = await leaves_by_hand(database, 64, 60)
    grown = [(node.start, node.end) for node in tree.values() if node.level == 0]
    assert grown == leaves[: len(grown)], "and the rest is the tail"
    assert 0 < len(leaves) - len(grown) <= 2
    assert {"1.1", "2.1"} <= tree.keys()
    assert len(script.asked) == len(
        [n for n in tree.values() if n.made is not SummarySource.JOINED]
    )
    assert await tree_method(database, script).drain(ITEM) is None, "nothing is left"
    assert (await read(database)).revision == stored.revision


async def test_the_tail_is_applied_without_a_call(database: Database) -> None:
    await make(database, story(2), TREE)
    script = Script()
    await tree_method(database, script).drain(ITEM)
    await append_texts(database, "s", story(1, 3), first=3)
    await tree_method(database, script).drain(ITEM)
    assert script.asked == []
    assert (await read(database)).applied_position == 3
    assert await kinds_of(database) == ["create", "step", "step"]


async def test_a_seal_closes_the_tree(database: Database) -> None:
    await make(database, story(40), TREE)
    script = Script()
    await tree_method(database, script).drain(ITEM)
    before = await nodes_of(database)
    await want_seal(database, 40)
    assert await tree_method(database, script).drain(ITEM) is None
    tree = await nodes_of(database)
    assert before.items() <= tree.items(), "nothing is rebuilt"
    assert_is_tree(tree, 3, sealed=True)
    grown = [(node.start, node.end) for node in tree.values() if node.level == 0]
    assert grown == await leaves_by_hand(database, 64, 40)
    stored = await read(database)
    assert (stored.applied_position, stored.status) == (40, "sealed")
    assert (await kinds_of(database))[-1] == "seal"
    await append_texts(database, "s", story(20, 41), first=41)
    assert await tree_method(database, script).drain(ITEM) is None
    assert await nodes_of(database) == tree


@pytest.mark.parametrize("sentences", [0, 1, 3, 6, 11])
async def test_small_trees_are_sealed_too(database: Database, sentences: int) -> None:
    await make(database, story(sentences), TREE)
    await want_seal(database, sentences)
    script = Script()
    assert await tree_method(database, script).drain(ITEM) is None
    tree = await nodes_of(database)
    assert_is_tree(tree, 3, sealed=True)
    grown = [(node.start, node.end) for node in tree.values() if node.level == 0]
    assert grown == await leaves_by_hand(database, 64, sentences)
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("sealed", sentences)


async def test_what_came_after_the_seal_is_not_read(database: Database) -> None:
    await make(database, story(12), TREE)
    await want_seal(database, 12)
    await append_texts(database, "s", story(30, 13), first=13)
    await tree_method(database, Script()).drain(ITEM)
    tree = await nodes_of(database)
    assert max(node.to_position for node in tree.values()) == 12
    assert (await read(database)).applied_position == 12


async def test_a_seal_that_is_wanted_meanwhile_ends_the_tree_where_it_says(
    database: Database,
) -> None:
    await make(database, story(12), TREE)

    async def seal() -> None:
        script.meanwhile = None
        await want_seal(database, 12)
        await append_texts(database, "s", story(30, 13), first=13)

    script = Script(meanwhile=seal)
    assert await tree_method(database, script).drain(ITEM) == 0.0
    assert await nodes_of(database) == {}
    assert await tree_method(database, script).drain(ITEM) is None
    tree = await nodes_of(database)
    assert_is_tree(tree, 3, sealed=True)
    assert max(node.to_position for node in tree.values()) == 12


async def test_chunks_that_come_while_models_think_are_built_in_the_same_turn(
    database: Database,
) -> None:
    await make(database, story(8), TREE)

    async def append() -> None:
        script.meanwhile = None
        await append_texts(database, "s", story(52, 9), first=9)
        await asyncio.sleep(0.3)

    script = Script(meanwhile=append)
    assert await tree_method(database, script).drain(ITEM) is None
    assert (await read(database)).applied_position == 60
    assert "2.1" in await nodes_of(database)


async def test_calls_per_segment_are_bounded(database: Database) -> None:
    spec = {"max_children": 4, "summary_tokens": 16}
    await make(database, story(200), TREE, **spec)
    await want_seal(database, 200)
    script = Script()
    await tree_method(database, script).drain(ITEM)
    tree = await nodes_of(database)
    leaves = sum(node.level == 0 for node in tree.values())
    levels = max(node.level for node in tree.values())
    assert len(script.asked) <= leaves * (1 + 1 / 3) + levels
    assert 4 ** (levels - 1) < leaves


async def test_no_more_calls_are_made_at_once_than_the_configuration_says(
    database: Database,
) -> None:
    await make(database, story(60), TREE)
    under_way, most = 0, 0

    async def think() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        while most < 3:
            await asyncio.sleep(0.01)
        # One more would begin meanwhile.
        await asyncio.sleep(0.1)
        under_way -= 1

    config = CONFIG.model_copy(update={"build_concurrency": 3})
    await tree_method(database, Script(meanwhile=think), config).drain(ITEM)
    assert most == 3
    assert (await read(database)).applied_position == 60


async def test_nodes_of_many_calls_are_stored_together(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not because it is time: that comes the more often the slower the machine is.
    monkeypatch.setattr(pipeline, "STORE_SECONDS", 600.0)
    await make(database, story(200), TREE)
    await tree_method(database, Script()).drain(ITEM)
    tree = await nodes_of(database)
    assert len(tree) > 60
    assert len(await kinds_of(database)) < len(tree) / 8


async def test_a_node_that_fails_is_tried_again_and_nothing_else_is_paid_twice(
    database: Database,
) -> None:
    await make(database, story(40), TREE)
    script = Script([ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)] * 2)
    for _ in range(4):
        await tree_method(database, script).drain(ITEM)
        await asyncio.sleep(0.01)
    assert (await read(database)).applied_position == 40
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) - len(set(prompts)) == 2, "the two that failed"


async def test_what_is_before_a_node_that_fails_is_stored(database: Database) -> None:
    await make(database, story(40), TREE)

    def reply(ask: object, number: int) -> str:
        if "The 25th sentence" in ask.text:  # type: ignore[attr-defined]
            raise ModelFailure("refused", retryable=False)
        return summary_reply(ask, number)  # type: ignore[arg-type]

    await tree_method(database, Script(reply=reply)).drain(ITEM)
    stored = await read(database)
    assert stored.status == "stalled"
    tree = await nodes_of(database)
    assert tree
    assert stored.stall is not None
    last = max(node.to_position for node in tree.values())
    assert (stored.stall.position, stored.stall.cause) == (last + 1, "refused")
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    script = Script()
    await tree_method(database, script).drain(ITEM)
    again = await read(database)
    assert (again.status, again.applied_position, again.stall) == ("active", 40, None)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)] * 3, "busy"),
        ([ModelFailure("wrong key", retryable=False)], "wrong key"),
        ([KeyError("a defect")] * 3, "'a defect'"),
    ],
)
async def test_a_node_that_fails_for_good_stalls_its_memory(
    database: Database, failures: list[Exception], cause: str
) -> None:
    await make(database, story(8), TREE)
    script = Script(list(failures))
    config = CONFIG.model_copy(update={"build_concurrency": 1})
    for _ in failures:
        await tree_method(database, script, config).drain(ITEM)
        await asyncio.sleep(0.01)
    stalled = await read(database)
    assert stalled.status == "stalled"
    assert stalled.stall is not None
    assert (stalled.stall.position, stalled.stall.cause) == (1, cause)
    assert stalled.stall.attempts == len(failures)


@pytest.mark.parametrize(
    "failures",
    [
        [ModelFailure("no", retryable=False)],
        [ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)] * 3,
    ],
)
async def test_a_tree_that_skips_stands_the_text_for_its_summary(
    database: Database, failures: list[Exception]
) -> None:
    await make(database, story(40), TREE, on_failure=OnFailure.SKIP)
    script = Script(list(failures))
    config = CONFIG.model_copy(update={"build_concurrency": 1})
    for _ in failures:
        await tree_method(database, script, config).drain(ITEM)
        await asyncio.sleep(0.01)
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("active", 40)
    tree = await nodes_of(database)
    skipped = [node.node_id for node in tree.values() if node.made is SummarySource.SKIPPED]
    assert skipped == ["0.1"]
    assert tree["0.1"].summary.startswith("The 1th sentence")
    assert tree["0.1"].summary_tokens <= 20
    async with database.transaction(DEFAULT_TENANT) as tx:
        (letter,) = await tx.fetch(
            "SELECT from_position, to_position, cause, resolution, attempts FROM dead_letter"
        )
    assert tuple(letter) == (0, tree["0.1"].to_position, str(failures[0]), "skipped", len(failures))


async def test_a_parent_that_keeps_failing_stalls_though_more_text_comes(
    database: Database,
) -> None:
    await make(database, story(40), TREE)

    def reply(ask: object, number: int) -> str:
        if "Part " in ask.text:  # type: ignore[attr-defined]
            raise ModelFailure("busy", retryable=True, fault=Fault.NO_REPLY)
        return summary_reply(ask, number)  # type: ignore[arg-type]

    for turn in range(4):
        await tree_method(database, Script(reply=reply)).drain(ITEM)
        await append_texts(database, "s", story(8, 41 + 8 * turn), first=41 + 8 * turn)
        await asyncio.sleep(0.01)
    assert (await read(database)).status == "stalled"


async def test_a_text_that_does_not_fit_the_window_stalls_with_a_sentence(
    database: Database,
) -> None:
    await make(database, story(40), TREE)
    script = Script()
    await tree_method(database, script, window=1200).drain(ITEM)
    stored = await read(database)
    assert script.asked == []
    assert stored.stall is not None
    assert "do not fit into the model's window of 1200 tokens" in stored.stall.cause


async def test_draining_gives_others_their_turn(database: Database) -> None:
    await make(database, story(40), TREE)
    impatient = CONFIG.model_copy(update={"drain_seconds": 0.0})
    assert await tree_method(database, Script(), impatient).drain(ITEM) == 0.0
    stop = asyncio.Event()
    stop.set()
    assert await tree_method(database, Script()).drain(ITEM, stop=stop) == 0.0
    assert (await read(database)).applied_position == 0


@pytest.mark.prove
async def test_a_slow_model_has_a_longer_turn(database: Database) -> None:
    await make(database, story(200), TREE)

    async def think() -> None:
        await asyncio.sleep(1.6)

    config = CONFIG.model_copy(update={"build_concurrency": 4, "drain_seconds": 1.5})
    script = Script(meanwhile=think)
    assert await tree_method(database, script, config).drain(ITEM) == 0.0
    assert len(script.asked) > config.build_concurrency


async def test_what_is_finished_is_stored_when_the_worker_stops(database: Database) -> None:
    await make(database, story(60), TREE)
    stop = asyncio.Event()

    async def think() -> None:
        if len(script.asked) == 8:
            stop.set()
        await asyncio.sleep(0.01)

    script = Script(meanwhile=think)
    config = CONFIG.model_copy(update={"build_concurrency": 2})
    assert await tree_method(database, script, config).drain(ITEM, stop=stop) == 0.0
    paid = len(script.asked)
    assert 8 <= paid <= 10
    assert len(await nodes_of(database)) >= paid - 2
    assert await tree_method(database, script).drain(ITEM) is None
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) == len(set(prompts))


async def test_two_workers_at_once_make_one_tree_and_pay_once(database: Database) -> None:
    await make(database, story(40), TREE)
    script = Script()
    taken: list[asyncio.Task[float | None]] = []

    async def take_over() -> None:
        if not taken:
            taken.append(asyncio.create_task(tree_method(database, script).drain(ITEM)))
            await asyncio.sleep(0.2)

    script.meanwhile = take_over
    assert await tree_method(database, script).drain(ITEM) is None
    assert await taken[0] is None
    assert (await read(database)).applied_position == 40
    assert_is_tree(await nodes_of(database), 3, sealed=False)
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) == len(set(prompts))
    async with database.transaction(DEFAULT_TENANT) as tx:
        (line,) = await usage_of_session(tx, KEY)
    assert line.calls == len(prompts)


async def test_a_budget_holds_a_tree_and_nothing_is_lost(database: Database) -> None:
    await make(database, story(40), TREE)
    await put(database, OF_MEMORY, BudgetPeriod.TOTAL, 5 * CALL_TOKENS)
    script = Script()

    def held() -> StepEngine[Any]:
        return tree_method(database, script, calls=budgeted_gateway(database, script))

    assert await held().drain(ITEM) is None
    stored = await read(database)
    assert (stored.status, stored.stall) == ("active", None)
    assert stored.held_reason is not None
    assert len(script.asked) == 5
    assert await held().drain(ITEM) is None, "it waits"
    assert len(script.asked) == 5
    await put(database, OF_MEMORY, BudgetPeriod.TOTAL, 1000 * CALL_TOKENS)
    assert await held().drain(ITEM) is None
    again = await read(database)
    assert (again.applied_position, again.held_reason) == (40, None)
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) == len(set(prompts)), "what was paid is used"


async def test_each_memory_is_advanced_by_those_of_its_kind(database: Database) -> None:
    await make(database, story(1), TREE)
    asked: list[str] = []

    class Engine:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float:
            asked.append(self.kind)
            return 1.5

    engines: Any = {kind: Engine(kind) for kind in SPECS}
    methods = MethodRegistry(database, engines)
    assert await methods.drain(ITEM) == 1.5
    assert await methods.drain(ITEM) == 1.5
    assert asked == ["tree", "tree"]
    gone = replace(ITEM, item_id=memory_id(KEY, "other"))
    assert await methods.drain(gone) is None
