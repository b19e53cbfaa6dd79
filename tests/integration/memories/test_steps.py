"""Steps that wait, shrink, read in pieces, fold, consolidate, and say that there is no room."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from service.app.kinds import memories_of
from service.domain.prism.amendments import Amendment, Op, Rejection
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import Coercion, Encoding, Operations, PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.memory_specs import OnFailure, ReplyFormat
from service.domain.values.paths import Path
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.settings.config import Limits
from service.usecases.answers.readers.citing import cite
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import flushing, history, revisions, stalls
from storage.memories.history import StoredRevision
from storage.prism import amendment_log, states
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    SPEC,
    Script,
    make,
    prism_method,
    read,
)
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.contents import ConsolidateContent, ReviseContent, content_of

NOTHING = '{"changes": []}'


async def kinds(database: Database) -> list[str]:
    return [one.kind for one in await log_of(database)]


async def log_of(database: Database) -> list[StoredRevision]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return list(await history.list_revisions(tx, KEY, MEMORY, -1, 1000))


async def value(database: Database) -> Any:
    stored = await read(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_nearest(tx, KEY, MEMORY, stored.revision)
        newest = await tx.fetch("SELECT value FROM prism_value")
        assert rows is not None
        return json.loads(newest[0][0])


def put(topic: str, text: str, op: str = "add") -> str:
    return f"[OBJECTS FOR {op.upper()}]\n" + json.dumps({f"$.topics.{topic}": {op: text}})


def seen(ask: ModelRequest) -> list[str]:
    assert isinstance(content_of(ask), ReviseContent)
    return list(content_of(ask).texts)


async def test_a_step_that_could_grow_waits_and_a_flush_ends_the_wait(database: Database) -> None:
    await make(database, ["a"], chunk_tokens=100, linger_ms=3_600_000)
    script = Script()
    again = await prism_method(database, script).drain(ITEM)
    assert again == 900.0, "a quarter of an hour"
    assert script.asked == []
    assert await prism_method(database, script).drain(ITEM) is None, "it is not ready"
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await flushing.flush(tx, KEY, None, 1) == [MEMORY]
        assert await flushing.flush(tx, KEY, MEMORY, 1) == [], "once is enough"
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 1
    await append_texts(database, "s", ["b"], first=2)
    assert await prism_method(database, script).drain(ITEM) == 900.0, "what came later waits again"


async def test_what_was_flushed_does_not_wait_for_what_came_after_it(database: Database) -> None:
    await make(database, ["a"], chunk_tokens=100, linger_ms=3_600_000)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await flushing.flush(tx, KEY, None, 1) == [MEMORY]
    await append_texts(database, "s", ["b"], first=2)
    script = Script()
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == 2


async def test_a_wish_for_what_is_flushed_already_is_not_put_off(database: Database) -> None:
    await make(database, ["a"], chunk_tokens=100, linger_ms=3_600_000)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await flushing.flush(tx, KEY, None, 1)
    await prism_method(database, Script()).drain(ITEM)
    await append_texts(database, "s", ["b"], first=2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        assert held is not None
        await flushing.want_consolidation(tx, held, 1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        now = (await tx.fetch("SELECT now()"))[0][0]
        due = now + timedelta(hours=1)
        waits = await revisions.linger(tx, held, due=due, look_seconds=900.0)
    assert not waits


async def test_a_step_may_have_any_number_of_amendments(database: Database) -> None:
    await make(database, ["a"])
    count = 12_000
    amendments = tuple(
        Amendment(path=Path(("topics", f"t{n}")), op=Op.ADD, value="x") for n in range(count)
    )
    rejections = tuple(Rejection(proposal=f"{n}", reason="no") for n in range(count))
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.claim(tx, KEY, MEMORY, PrismSpec.kind)
        assert held is not None
        new = revisions.NewRevision(
            kind="step",
            to_position=1,
            digest=b"",
            amendments=amendments,
            rejections=rejections,
            value="{}",
        )
        await revisions.commit_revision(tx, held, new, has_work=True)
    (_, step) = await log_of(database)
    assert (step.amendments, step.rejections) == (count, count)


async def test_a_step_that_is_full_does_not_wait(database: Database) -> None:
    texts = [f"{number} " + "word " * 40 for number in range(3)]
    await make(database, texts, chunk_tokens=60, linger_ms=60_000)
    script = Script()
    assert await prism_method(database, script).drain(ITEM) == 15.0
    assert [seen(ask) for ask in script.asked] == [texts[:1], texts[1:2]]
    assert (await read(database)).applied_position == 2


async def test_a_wait_ends_when_the_first_chunk_is_old_enough(database: Database) -> None:
    await make(database, ["a", "b"], chunk_tokens=100, linger_ms=1)
    script = Script()
    assert await prism_method(database, script).drain(ITEM) is None
    assert seen(script.asked[0]) == ["a", "b"]


async def test_many_small_chunks_are_one_step(database: Database) -> None:
    await make(database, [f"{n}" for n in range(300)], chunk_tokens=2000)
    script = Script()
    await prism_method(database, script).drain(ITEM)
    assert [len(seen(ask)) for ask in script.asked] == [300]


async def test_a_large_chunk_is_one_step_of_several_calls(database: Database) -> None:
    text = "A sentence of some words. " * 200
    await make(database, ["small", text, "small"], chunk_tokens=400)
    script = Script()
    await prism_method(database, script).drain(ITEM)
    pieces = [ask for ask in script.asked if seen(ask) != ["small"]]
    assert len(pieces) == 4
    assert "".join(seen(ask)[0] for ask in pieces) == text
    assert (await read(database)).revision == 3, "whatever the calls, a chunk is one step"
    async with database.transaction(DEFAULT_TENANT) as tx:
        changes = await amendment_log.list_amendments(tx, KEY, MEMORY, (0, 0), 100)
    assert [(one.revision, one.ordinal) for one in changes] == [
        (1, 1),
        *((2, n) for n in range(1, 5)),
        (3, 1),
    ]
    shown = pieces[1].segments[-2].text
    assert "t2" in shown, "a piece is read with what the one before it brought"


async def test_pieces_that_were_paid_for_are_not_paid_for_again(database: Database) -> None:
    await make(database, ["A sentence of some words. " * 200], chunk_tokens=400)
    script = Script()

    def reply(ask: ModelRequest, number: int) -> str:
        if number == 3:
            raise ModelFailure("cut off", retryable=True)
        return put(f"t{number}", "x")

    script.reply = reply
    await prism_method(database, script).drain(ITEM)
    assert len(script.asked) == 3
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute("UPDATE memory SET ready_at = now()")
    await prism_method(database, script).drain(ITEM)
    texts = [seen(ask)[0] for ask in script.asked]
    assert len(texts) == 5, "two, the one that failed, and the rest"
    assert texts[2] == texts[3]


async def test_a_consolidation_waits_for_its_position_and_is_made_once(database: Database) -> None:
    await make(database, ["a", "b"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        await flushing.want_consolidation(tx, held, 2)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is Purpose.CONSOLIDATE:
            return (
                '[OBJECTS FOR UPDATE]\n{"$.topics.t1": {"update": "both"}}\n'
                "[OBJECTS FOR REMOVE]\n$.'topics'.'t2'"
            )
        return put(f"t{number}", f"text {number}")

    script = Script(reply=reply)
    await prism_method(database, script).drain(ITEM)
    assert await kinds(database) == ["create", "step", "step", "consolidation"]
    assert await value(database) == {"topics": {"t1": "both"}}
    stored = await read(database)
    assert (stored.consolidate_position, stored.applied_position) == (None, 2)
    await append_texts(database, "s", ["c"], first=3)
    await prism_method(database, script).drain(ITEM)
    assert (await kinds(database))[-1] == "step"
    base = script.asked[-1].segments[1].text
    assert base == '[MEMORY]\n{"topics":{"t1":"both"}}\n', "prompts begin with what is left"


async def test_a_wish_that_comes_while_the_memory_goes_idle_is_heard(database: Database) -> None:
    await make(database, ["a"])
    script = Script()

    async def wish() -> None:
        script.meanwhile = None
        async with database.transaction(DEFAULT_TENANT) as tx:
            held = await revisions.lock(tx, KEY, MEMORY)
            assert held is not None
            await flushing.want_consolidation(tx, held, 1)

    script.meanwhile = wish
    again = await prism_method(database, script).drain(ITEM)
    while again is not None:
        again = await prism_method(database, script).drain(ITEM)
    assert await kinds(database) == ["create", "step", "consolidation"]


async def test_a_memory_past_its_budget_is_consolidated_before_the_next_step(
    database: Database,
) -> None:
    await make(database, ["a", "b", "c"], memory_tokens=200, fold_tokens=100_000)

    def reply(ask: ModelRequest, number: int) -> str:
        if isinstance(content_of(ask), ConsolidateContent):
            assert content_of(ask).budget_tokens == 200
            return put("t1", "short", "update")
        return put(f"t{number}", "long " * 250)

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    assert await kinds(database) == [
        "create",
        *("step", "consolidation", "step", "consolidation"),
        "step",
    ]


async def test_a_consolidation_that_does_not_help_is_not_made_again_and_again(
    database: Database,
) -> None:
    await make(database, ["a", "b", "c", "d"], memory_tokens=100)

    def reply(ask: ModelRequest, number: int) -> str:
        return NOTHING if ask.purpose is Purpose.CONSOLIDATE else put(f"t{number}", "w " * 300)

    script = Script(reply=reply)
    await prism_method(database, script).drain(ITEM)
    steps = await kinds(database)
    assert steps.count("step") == 4
    assert steps.count("consolidation") == 3, "each time the memory had grown by half and more"
    again = Script(reply=reply)
    await append_texts(database, "s", ["e"], first=5)
    await prism_method(database, again).drain(ITEM)
    assert again.asked[0].purpose is Purpose.CONSOLIDATE, "it has grown since the last one"


async def test_groups_shrink_before_the_window_is_full_and_then_there_is_no_room(
    database: Database,
) -> None:
    texts = [f"{n} " + "word " * 199 for n in range(80)]
    await make(database, texts, chunk_tokens=2000, fold_tokens=100_000, memory_tokens=100_000)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is Purpose.CONSOLIDATE:
            return NOTHING
        return put(f"t{number}", "long " * 700)

    script = Script(reply=reply)
    window = 9000
    worker = prism_method(database, script, window=window)
    for _ in range(10):
        await worker.drain(ITEM)
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute("UPDATE memory SET ready_at = now()")
    steps = [ask for ask in script.asked if ask.purpose is Purpose.REVISE]
    sizes = [len(seen(ask)) for ask in steps]
    assert sizes[0] > sizes[-1] >= 1
    stored = await read(database)
    assert stored.status == "stalled"
    assert stored.stall is not None
    assert "leave no room for text in the model's window of 9000 tokens" in stored.stall.cause
    assert "consolidation" in await kinds(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    await prism_method(database, Script(), window=100_000).drain(ITEM)
    assert (await read(database)).applied_position == 80


async def test_a_consolidation_that_fails_for_good_is_passed_over(database: Database) -> None:
    await make(database, ["a", "b"], memory_tokens=100, on_failure=OnFailure.SKIP)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is Purpose.CONSOLIDATE:
            raise ModelFailure("refused", retryable=False)
        return put(f"t{number}", "w " * 300)

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("active", 2)
    assert await kinds(database) == ["create", "step", "consolidation", "step"]


async def test_a_memory_that_was_set_back_is_consolidated_again(database: Database) -> None:
    await make(database, ["a"], memory_tokens=100)

    def reply(ask: ModelRequest, number: int) -> str:
        return NOTHING if ask.purpose is Purpose.CONSOLIDATE else put(f"t{number}", "w " * 600)

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    await append_texts(database, "s", ["b"], first=2)
    await prism_method(database, Script(reply=reply)).drain(ITEM)
    assert (await kinds(database)).count("consolidation") == 1
    editor = Editor(
        database,
        memories_of(
            database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"token-key", Limits()
        ),
        Limits(),
    )
    await editor.rollback(DEFAULT_TENANT, Target(session="s", memory="m"), 0)

    def smaller(ask: ModelRequest, number: int) -> str:
        return NOTHING if ask.purpose is Purpose.CONSOLIDATE else put(f"u{number}", "w " * 300)

    await append_texts(database, "s", ["c", "d"], first=3)
    await prism_method(database, Script(reply=smaller)).drain(ITEM)
    assert (await kinds(database))[-3:] == ["step", "consolidation", "step"]


async def test_in_place_the_prompt_has_each_value_once(database: Database) -> None:
    await make(database, ["a", "b", "c"], encoding=Encoding.IN_PLACE, fold_tokens=1)

    def reply(ask: ModelRequest, number: int) -> str:
        return put("t", f"text {number}", "add" if number == 1 else "update")

    script = Script(reply=reply)
    await prism_method(database, script).drain(ITEM)
    shown = ["".join(s.text for s in ask.segments[1:-1]) for ask in script.asked]
    assert shown == [
        "[MEMORY]\n{}\n",
        '[MEMORY]\n{"topics":{"t":"text 1"}}\n',
        '[MEMORY]\n{"topics":{"t":"text 2"}}\n',
    ]
    assert await kinds(database) == ["create", "step", "step", "step"]
    again = Script(reply=reply)
    await append_texts(database, "s", ["d"], first=4)
    await prism_method(database, again).drain(ITEM)
    assert again.asked[0].segments[1].text == '[MEMORY]\n{"topics":{"t":"text 3"}}\n'


async def test_settings_of_the_spec_reach_the_reply(database: Database) -> None:
    await make(
        database,
        ["a", "b"],
        operations=Operations.ADD_ONLY,
        coercion=Coercion.LOSSLESS,
        reply_format=ReplyFormat.STRUCTURED,
    )

    def reply(ask: ModelRequest, number: int) -> str:
        assert ask.reply_schema is not None
        assert "update" not in ask.reply_schema["properties"]
        return json.dumps({"add": [{"path": "$.topics.t", "value": number}]})

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    assert await value(database) == {"topics": {"t": "1"}}
    second = (await log_of(database))[2]
    assert (second.amendments, second.rejections) == (0, 1)


async def test_any_revision_is_read_from_the_snapshot_next_to_it(database: Database) -> None:
    count = 3 * revisions.SNAPSHOT_AMENDMENTS
    await make(database, [f"{n}" for n in range(count)])

    def reply(ask: ModelRequest, number: int) -> str:
        return put(f"t{number % 7}", f"text {number}", "add" if number < 8 else "update")

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    expected: dict[str, str] = {}
    longest = 0
    async with database.transaction(DEFAULT_TENANT) as tx:
        for number in range(count + 1):
            if number:
                expected[f"t{number % 7}"] = f"text {number}"
            rows = await states.read_nearest(tx, KEY, MEMORY, number)
            assert rows is not None
            longest = max(longest, len(rows.amendments))
            made = json.loads(rows.base).get("topics", {})
            for _, batch in rows.amendments:
                made |= {one.path.tokens[1]: one.value for one in batch}
            assert made == expected
        saved = await tx.fetch("SELECT count(*) FROM prism_snapshot")
        assert saved[0][0] == 3
        assert await states.read_nearest(tx, KEY, MEMORY, count + 1) is None
        assert await states.read_nearest(tx, KEY, UUID(int=1), 0) is None
    assert longest < revisions.SNAPSHOT_AMENDMENTS + 1


@pytest.mark.parametrize(("position", "revision"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (6, 4)])
async def test_the_revision_at_a_position_holds_no_later_chunk(
    database: Database, position: int, revision: int
) -> None:
    """Steps over (0, 2], (2, 4] and (4, 6], and a fold after the second."""
    await make(database, ["a"] * 6)
    async with database.transaction(DEFAULT_TENANT) as tx:
        for kind, end in (("step", 2), ("step", 4), ("fold", 4), ("step", 6)):
            held = await revisions.lock(tx, KEY, MEMORY)
            assert held is not None
            new = revisions.NewRevision(kind=kind, to_position=end, digest=b"")
            await revisions.commit_revision(tx, held, new, has_work=None)
        found = await states.revision_at(tx, KEY, MEMORY, position, newest=4)
        assert found == revision
        assert await sessions.get(tx, KEY) is not None


async def test_a_wish_for_a_consolidation_ends_the_wait_for_more_chunks(
    database: Database,
) -> None:
    await make(database, ["a"], chunk_tokens=100, linger_ms=3_600_000)
    script = Script()
    assert await prism_method(database, script).drain(ITEM) is not None
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        await flushing.want_consolidation(tx, held, 1)
    await prism_method(database, script).drain(ITEM)
    assert await kinds(database) == ["create", "step", "consolidation"]


async def test_what_a_consolidation_merged_is_cited_from_the_chunks_before_it(
    database: Database,
) -> None:
    texts = ["The museum is closed on Mondays.", "Grown-ups pay nine euros.", "Rolls are sold."]
    await make(database, texts)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        await flushing.want_consolidation(tx, held, 3)

    def reply(ask: ModelRequest, number: int) -> str:
        if ask.purpose is Purpose.CONSOLIDATE:
            merged = json.dumps({"$.topics.t1": {"update": "Grown-ups pay nine euros; Mondays"}})
            return f"[OBJECTS FOR UPDATE]\n{merged}\n[OBJECTS FOR REMOVE]\n$.'topics'.'t2'"
        return put(f"t{number}", texts[number - 1])

    await prism_method(database, Script(reply=reply)).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_nearest(tx, KEY, MEMORY, 4)
        assert rows is not None
        memory = PrismMemory.load(SPEC.schema(), base_json=rows.base, amendments=rows.amendments)
        paths = [Path(("topics", "t1")), Path(("topics", "t3"))]
        merged, plain = await cite(tx, (KEY, MEMORY), memory, paths, 4)
    assert (merged.position, merged.revision) == (2, 2), "the chunk of what was merged into it"
    assert (plain.position, plain.revision) == (3, 3)
