"""Edits, consolidations and rebuilds during steps of a worker, with a scripted model."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit, PositionRange
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker
from tests.support.sending import send

SCHEMA = "class A:\n    topics: dict[str, list[str]]\n    count: int\n"
QUICK = {
    "PALIMPSEST_RECONCILE_SECONDS": "0.2",
    "PALIMPSEST_STEP_TRIES": "1",
    "PALIMPSEST_MODEL_TRIES": "1",
}


@dataclass
class Service:
    """An API, a worker, and the model that the worker asks."""

    address: str
    model: FakeModel


@pytest.fixture(scope="module")
def service(servers: Servers) -> Iterator[Service]:
    url = servers.new_database()
    with fake_model() as model:
        settings = {
            **QUICK,
            **model.settings,
        }
        with api(url, **settings) as (_, address), worker(url, **settings):
            yield Service(address, model)


@pytest.fixture
def model(service: Service) -> FakeModel:
    """Returns the model without any instruction."""
    service.model.prompts.clear()
    service.model.script.clear()
    service.model.reply = lambda n: add(f"$.topics.'t{n}'", ["x"])
    return service.model


@pytest.fixture
async def session(service: Service) -> AsyncIterator[palimpsest.Session]:
    async with palimpsest.connect(service.address) as client:
        yield await client.create_session(f"steps-{uuid4().hex}")


def add(path: str, value: object) -> str:
    return f"[OBJECTS FOR ADD]\n{json.dumps({path: {'add': value}})}\n"


def update(path: str, value: object) -> str:
    return f"[OBJECTS FOR UPDATE]\n{json.dumps({path: {'update': value}})}\n"


async def kinds(memory: palimpsest.Memory) -> list[str]:
    return [one.kind async for one in memory.revisions()]


async def test_a_step_under_way_is_made_again_on_the_edited_memory(
    session: palimpsest.Session, model: FakeModel
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def reply(number: int) -> str:
        if number == 1:
            asked.set()
            assert go_on.wait(60)
        return add("$.topics.'text'", [f"call {number}"])

    model.reply = reply
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    token = await send(session, "one", "two")
    assert await asyncio.to_thread(asked.wait, 60)
    edited = await memory.edit([Edit.put("$.count", 7)])
    assert (edited.info.revision, edited.info.applied_position) == (1, 0)
    go_on.set()
    state = await memory.get(after=token)
    assert state.value == {"count": 7, "topics": {"text": ["call 3"]}}
    assert await kinds(memory) == ["create", "edit", "step", "step"]
    steps = [one.positions async for one in memory.revisions()][2:]
    assert steps == [PositionRange(first=n, last=n) for n in (1, 2)], (
        "nothing is lost or read twice"
    )
    assert len(model.prompts) == 3, "the first of them in vain"
    assert '"count":7' not in model.prompts[0]
    assert "7" in model.prompts[1].rpartition("[MEMORY]")[2]


async def test_edits_amid_many_steps_lose_nothing(
    session: palimpsest.Session, model: FakeModel
) -> None:
    model.reply = lambda n: add(f"$.topics.'t{n}'", [str(n)])
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    texts = [f"chunk {number}" for number in range(15)]

    async def edit() -> None:
        for number in range(1, 11):
            await memory.edit([Edit.put("$.count", number)])
            await asyncio.sleep(0.02)

    token, _ = await asyncio.gather(send(session, *texts), edit())
    state = await memory.get(after=token, timeout=60)
    assert state.value["count"] == 10
    assert len(state.value["topics"]) == 15
    revisions = [one async for one in memory.revisions()]
    steps = [one.positions for one in revisions if one.kind == "step"]
    assert steps == [PositionRange(first=n, last=n) for n in range(1, 16)]
    assert [one.kind for one in revisions].count("edit") == 10
    assert [one.revision for one in revisions] == list(range(26))


async def test_a_stalled_memory_can_be_edited_and_goes_on_after_it(
    session: palimpsest.Session, model: FakeModel
) -> None:
    model.script = [(400, {}, '{"error": {"message": "maximum context length"}}')]
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    token = await send(session, "one")
    with pytest.raises(palimpsest.FailedPrecondition):
        await memory.get(after=token)
    edited = await memory.edit([Edit.put("$.count", 1)])
    assert (edited.info.status, edited.info.revision) == ("stalled", 1)
    assert edited.info.blocked is not None
    assert (await memory.rollback(0)).status == "stalled"
    assert (await memory.update(schema=SCHEMA + "    more: str\n")).status == "stalled"
    assert model.prompts != [], "it was asked"
    assert await memory.retry()
    state = await memory.get(after=token)
    assert await kinds(memory) == ["create", "edit", "rollback", "schema", "step"]
    assert list(state.value) == ["topics"]


async def test_a_consolidation_waits_until_the_log_is_read(
    session: palimpsest.Session, model: FakeModel
) -> None:
    go_on = threading.Event()

    def reply(number: int) -> str:
        if "[SIZE]" in model.prompts[number - 1]:
            return update("$.topics.'a'", ["short"]) + "[OBJECTS FOR REMOVE]\n$.'topics'.'b'\n"
        assert go_on.wait(60)
        text = model.prompts[number - 1]
        return add("$.topics.'a'", ["long"]) if "chunk-a" in text else add("$.topics.'b'", ["b"])

    model.reply = reply
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    await send(session, "chunk-a", "chunk-b")
    asked = await memory.consolidate()
    assert asked.progress is not None
    assert asked.progress.total == 2
    assert (await memory.consolidate()).id == asked.id
    assert await kinds(memory) == ["create"]
    async with memory.watch(after_revision=0) as watch:
        go_on.set()
        events = [await anext(watch) for _ in range(3)]
    assert [event.revision.kind for event in events] == ["step", "step", "consolidation"]
    assert [(one.op, one.path) for one in events[2].amendments] == [
        ("update", "$['topics']['a']"),
        ("remove", "$['topics']['b']"),
    ]
    state = await memory.get()
    assert state.value == {"topics": {"a": ["short"]}}
    assert (await asked.wait()).revision == 3
    why = await memory.provenance("$.topics.'b'")
    found = [(e.amendment.op, e.amendment.kind, e.best_position) async for e in why]
    assert found == [("remove", "consolidation", 0), ("add", "step", 2)]
    # Asked for again it is made again, though there is nothing to merge.
    model.reply = lambda _: "[OBJECTS FOR UPDATE]\n{}\n"
    async with memory.watch() as watch:
        await memory.consolidate()
        event = await anext(watch)
    assert (event.revision.kind, event.amendments) == ("consolidation", ())


def seen(info: palimpsest.OperationInfo[Any]) -> tuple[int, int]:
    return (3, 3) if info.progress is None else (info.progress.completed, info.progress.total)


async def test_a_rebuild_reads_the_log_again_with_other_settings(
    session: palimpsest.Session, model: FakeModel
) -> None:
    memory = await session.create_memory(
        "m",
        SCHEMA,
        chunk_tokens=1,
        task="The old task.",
        final_task="One word.",
        encoding="amendments",
    )
    token = await send(session, "one", "two", "three")
    await memory.get(after=token)
    before = await memory.get()
    prompts = len(model.prompts)
    assert prompts == 3
    progress: list[tuple[int, int]] = []
    model.reply = lambda n: add(f"$.names[{n - prompts - 1}]", f"n{n - prompts}")
    rebuild = await memory.rebuild(
        "again",
        schema="class B:\n    names: list[str]\n",
        task="The new task.",
        final_task="One number.",
        encoding="in_place",
        steps="focused",
    )
    await rebuild.wait(on_progress=lambda info: progress.append(seen(info)))
    state = await session.memory("again").get()
    assert state.value == {"names": ["n1", "n2", "n3"]}
    assert (state.info.rebuilt_from, state.info.task) == ("m", "The new task.")
    assert state.info.final_task == "One number."
    assert (state.info.encoding, state.info.chunk_tokens) == ("in_place", 1)
    assert (state.info.steps, before.info.steps) == ("focused", "whole")
    assert progress == sorted(progress)
    assert all(total == 3 for _, total in progress)
    assert all("The new task." in prompt for prompt in model.prompts[prompts:])
    assert (await memory.get()) == before, "the old one is left as it is"
    with pytest.raises(palimpsest.AlreadyExists) as caught:
        await memory.rebuild("again")
    assert caught.value.reason == "MEMORY_EXISTS"
    with pytest.raises(palimpsest.InvalidArgument, match="must differ"):
        await memory.rebuild("m")
    with pytest.raises(palimpsest.InvalidArgument) as wrong:
        await memory.rebuild("bad", schema="class A(")
    assert wrong.value.reason == "SCHEMA_INVALID"
    assert [info.id for info in await session.memories()] == ["again", "m"]


async def test_a_rebuild_that_stalls_says_so_and_stays(
    session: palimpsest.Session, model: FakeModel
) -> None:
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    await memory.get(after=await send(session, "one", "two"))
    calls = len(model.prompts)

    def reply(number: int) -> str:
        # The second step of the rebuilt one is refused, for good.
        if number == calls + 1:
            model.script.append((400, {}, '{"error": {"message": "maximum context length"}}'))
        return add(f"$.topics.'t{number}'", ["x"])

    model.reply = reply
    rebuild = await memory.rebuild("n")
    with pytest.raises(palimpsest.FailedPrecondition) as caught:
        await rebuild.wait()
    assert caught.value.reason == "MEMORY_STALLED"
    assert caught.value.metadata["memory"] == "n"
    assert caught.value.metadata["position"] == "2"
    stalled = session.memory("n")
    assert (await stalled.get()).info.applied_position == 1
    await stalled.retry()
    assert (await stalled.get(fully_applied=True)).applied_position == 2


async def test_a_memory_in_place_is_shown_whole_and_answers(
    session: palimpsest.Session, model: FakeModel
) -> None:
    replies = [
        add("$.topics.'a'", ["first"]),
        update("$.topics.'a'", ["second"]),
        add("$.count", 3),
        "[ANSWER]\nIt is second.\n[PATHS]\n$.'topics'.'a'[0]\n",
    ]
    model.reply = lambda n: replies[n - 1]
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="in_place")
    token = await send(session, "one", "two", "three")
    state = await memory.get(after=token)
    assert state.value == {"topics": {"a": ["second"]}, "count": 3}
    shown = [_memory_of(prompt) for prompt in model.prompts]
    assert shown == ["{}", '{"topics":{"a":["first"]}}', '{"topics":{"a":["second"]}}']
    await memory.edit([Edit.put("$.topics.'b'", ["by hand"])])
    answer = await memory.ask("What is it?")
    assert answer.text == "It is second."
    assert [cited.path for cited in answer.citations] == ["$['topics']['a'][0]"]
    assert answer.citations[0].position == 2
    assert '"b":["by hand"]' in model.prompts[3]


def _memory_of(prompt: str) -> str:
    """Returns the line after the last [MEMORY], as long as nothing comes between."""
    return prompt.rpartition("[MEMORY]\n")[2].partition("\n")[0]


async def test_the_model_may_only_add_where_the_memory_says_so(
    session: palimpsest.Session, model: FakeModel
) -> None:
    replies = [
        add("$.topics.'a'", ["x"]) + add("$.count", "3"),
        update("$.topics.'a'", ["y"]) + add("$.topics.'b'", ["z"]),
    ]
    model.reply = lambda n: replies[n - 1]
    memory = await session.create_memory(
        "m",
        SCHEMA,
        chunk_tokens=1,
        allowed_ops="add_only",
        coercion="lossless",
        encoding="amendments",
    )
    state = await memory.get(after=await send(session, "one", "two"))
    assert state.value == {"topics": {"a": ["x"], "b": ["z"]}, "count": 3}
    (rejection,) = [one async for one in memory.rejections()]
    assert (rejection.revision, rejection.reason) == (2, "this memory takes no updates")
    await memory.edit([Edit.put("$.topics.'a'", ["by hand"])])
    assert (await memory.get()).value["topics"]["a"] == ["by hand"]


@pytest.mark.parametrize("reply_format", ["structured", "text"])
async def test_a_revision_is_asked_for_in_one_form_and_read(
    session: palimpsest.Session, model: FakeModel, reply_format: palimpsest.ReplyFormat
) -> None:
    memory = await session.create_memory("m", SCHEMA, reply_format=reply_format)
    change = {"op": "add", "path": "$.'topics'.'a'", "value": '["x"]'}
    model.reply = lambda _: json.dumps({"changes": [change]})
    state = await memory.get(after=await send(session, "one"))
    assert state.value == {"topics": {"a": ["x"]}}
    assert '{"changes": [...]}' in model.prompts[0]
