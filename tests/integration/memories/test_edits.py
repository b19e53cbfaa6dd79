"""Editing memories over gRPC, where no worker is needed for it, or the offline model does."""

import asyncio
from dataclasses import dataclass, make_dataclass
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit, sync
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from tests.support.sending import send

SCHEMA = """
class Museum:
    class Person:
        name: str
        age: int | None
    title: str
    visitors: int | None
    topics: dict[str, list[str]]
    people: list[Person]
"""


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"edits-{uuid4().hex}")


@pytest.fixture
async def memory(session: palimpsest.Session) -> palimpsest.Memory:
    return await session.create_memory("m", SCHEMA)


async def value_of(memory: palimpsest.Memory, revision: int | None = None) -> dict[str, Any]:
    return (await memory.get(revision=revision)).value


async def test_edits_are_one_revision_in_their_order(memory: palimpsest.Memory) -> None:
    made = await memory.edit(
        [
            Edit.put("$.title", "Ships"),
            Edit.add("/topics/night/0", "dark"),
            Edit.put("$.topics.'night'[1]", "late"),
            Edit.remove("$['topics']['night'][0]"),
            Edit.update("$.title", "Old ships"),
            Edit.update("$.people[0]", {"name": "Ann"}),
        ],
        comment="by hand",
    )
    assert (made.info.revision, made.info.applied_position) == (1, 0)
    assert await value_of(memory) == {
        "title": "Old ships",
        "topics": {"night": ["late"]},
        "people": [{"name": "Ann"}],
    }
    assert [(one.op, one.path, one.op_corrected) for one in made.amendments] == [
        ("add", "$['title']", False),
        ("add", "$['topics']['night'][0]", False),
        ("add", "$['topics']['night'][1]", False),
        ("remove", "$['topics']['night'][0]", False),
        ("update", "$['title']", False),
        ("add", "$['people'][0]", True),
    ]
    assert {(one.kind, one.revision) for one in made.amendments} == {("edit", 1)}
    assert [one async for one in memory.amendments()] == list(made.amendments)
    revisions = [one async for one in memory.revisions()]
    assert [(one.kind, one.comment, one.amendment_count) for one in revisions] == [
        ("create", "", 0),
        ("edit", "by hand", 6),
    ]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit.put("$.nothing", 1), "has no field 'nothing'"),
        (Edit.put("$.visitors", "many"), "the value is a str, not int"),
        (Edit.put("$.visitors", 1.5), "not int"),
        (Edit.put("title", "x"), "a path begins with"),
        (Edit.put("$", {}), "cannot be replaced"),
        (Edit.remove("$.topics.'gone'"), "edit 2"),
        (Edit.remove("$.people[0].'name'"), "edit 2"),
        (Edit.put("$.title", None), "must not replace what is known"),
        (Edit.put("$.people[7]", {"name": "x"}), "edit 2"),
        (Edit.put("$.title", "a\0b"), "edit 2"),
    ],
)
async def test_a_wrong_edit_is_named_and_none_is_made(
    memory: palimpsest.Memory, edit: Edit, why: str
) -> None:
    await memory.edit([Edit.put("$.title", "Ships")])
    with pytest.raises(palimpsest.InvalidArgument, match=why) as caught:
        await memory.edit([Edit.put("$.visitors", 3), edit, Edit.put("$.title", "x")])
    assert caught.value.reason == "EDIT_INVALID"
    assert caught.value.metadata == {"edit": "2", "path": edit.path}
    assert list(caught.value.fields) == ["edits[1]"]
    assert str(caught.value).startswith("edit 2, ")
    state = await memory.get()
    assert (state.revision, state.value) == (1, {"title": "Ships"})


async def test_what_is_no_json_or_too_much_is_refused(memory: palimpsest.Memory) -> None:
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)

    async def send(*edits: memory_service_pb2.Edit, comment: str = "") -> Any:
        request = memory_service_pb2.EditMemoryRequest(
            session=memory.session.id, memory="m", edits=edits, comment=comment
        )
        return await memory._connection.call(stub.EditMemory, request, retry=False)

    for text in ("{", "NaN", "1 2", "'x'"):
        with pytest.raises(palimpsest.InvalidArgument, match="the value is no JSON") as caught:
            await send(memory_service_pb2.Edit(path="$.title", value_json=text))
        assert caught.value.metadata == {"edit": "1", "path": "$.title"}
    fine = memory_service_pb2.Edit(path="$.title", value_json='"x"')
    long = memory_service_pb2.Edit(path="$.title", value_json=f'"{"x" * 65536}"')
    for edits, comment in (((), ""), ((fine,) * 501, ""), ((long,), ""), ((fine,), "x" * 1025)):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await send(*edits, comment=comment)
        assert caught.value.reason == "FIELD_INVALID"
    assert (await memory.get()).revision == 0


async def test_texts_that_cannot_be_stored_are_refused(memory: palimpsest.Memory) -> None:
    session, bad = memory.session, "a\0b"
    for call, field in (
        (memory.edit([Edit.put("$.title", "x")], comment=bad), "comment"),
        (memory.rollback(0, comment=bad), "comment"),
        (memory.update(schema=SCHEMA + "    more: str\n", comment=bad), "comment"),
        (memory.rebuild("n", task=bad), "new_memory.prism.task"),
        (memory.rebuild("n", final_task=bad), "new_memory.prism.final_task"),
        (session.create_memory("n", SCHEMA, task=bad), "memory.prism.task"),
        (session.create_memory("n", SCHEMA, question=bad), "memory.prism.question"),
        (session.create_memory("n", SCHEMA, final_task=bad), "memory.prism.final_task"),
        (session.create_memory("n", SCHEMA, model=bad), "memory.prism.model"),
        (memory.ask(bad), "query"),
    ):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await call
        assert caught.value.reason == "FIELD_INVALID"
        assert str(caught.value).startswith(f"{field}: must have ")
        assert list(caught.value.fields) == [field]
    assert [info.revision for info in await session.memories()] == [0]


async def test_what_changes_nothing_makes_no_revision(memory: palimpsest.Memory) -> None:
    await memory.edit([Edit.put("$.title", "Ships"), Edit.put("$.visitors", 1)])
    for edit in (Edit.put("$.title", "Ships"), Edit.add("$.visitors", 1)):
        made = await memory.edit([edit])
        assert (made.info.revision, made.amendments) == (1, ())
    mixed = await memory.edit([Edit.put("$.title", "Ships"), Edit.put("$.visitors", 2)])
    assert [one.path for one in mixed.amendments] == ["$['visitors']"]
    with pytest.raises(palimpsest.Aborted):
        await memory.edit([Edit.put("$.title", "Ships")], expected_revision=1)


async def test_only_one_of_several_edits_for_a_revision_gets_it(memory: palimpsest.Memory) -> None:
    async def take(number: int) -> str:
        try:
            await memory.edit([Edit.put("$.visitors", number)], expected_revision=0)
        except palimpsest.Aborted as error:
            assert error.reason == "REVISION_CONFLICT"
            assert error.metadata == {"expected": "0", "current": "1"}
            assert str(error) == "memory 'm' is at revision 1, not 0: read it, then decide"
            return "late"
        return "first"

    taken = await asyncio.gather(*(take(number) for number in range(8)))
    assert sorted(taken) == ["first"] + ["late"] * 7
    for late in (
        memory.rollback(0, expected_revision=5),
        memory.update(schema=SCHEMA + "    more: str\n", expected_revision=0),
    ):
        with pytest.raises(palimpsest.Aborted) as caught:
            await late
        assert caught.value.reason == "REVISION_CONFLICT"
        assert caught.value.metadata["current"] == "1"
    assert (await memory.get()).revision == 1


async def test_a_request_that_comes_again_changes_nothing_more(memory: palimpsest.Memory) -> None:
    for _ in range(2):
        edited = await memory.edit([Edit.put("$.visitors", 1)], request_id="edit")
        assert (edited.info.revision, len(edited.amendments)) == (1, 1)
    for _ in range(2):
        assert (await memory.rollback(0, request_id="rollback")).revision == 2
    await memory.edit([Edit.put("$.visitors", 2)])
    for _ in range(2):
        folded = await memory.fold(request_id="fold")
        assert (folded.folded, folded.info.revision) == (True, 4)
    with pytest.raises(palimpsest.AlreadyExists) as caught:
        await memory.edit([Edit.put("$.visitors", 3)], request_id="edit")
    assert caught.value.reason == "REQUEST_CONTENT_CHANGED"
    assert (await memory.get()).revision == 4


async def test_edits_that_come_at_once_all_count(memory: palimpsest.Memory) -> None:
    await asyncio.gather(
        *(memory.edit([Edit.put(f"$.topics.'t{n}'", [str(n)])]) for n in range(12))
    )
    state = await memory.get()
    assert state.revision == 12
    assert state.value == {"topics": {f"t{n}": [str(n)] for n in range(12)}} | state.value
    assert len(state.value["topics"]) == 12
    revisions = [one.revision async for one in memory.revisions()]
    assert revisions == list(range(13))


async def test_a_rollback_restores_a_state_byte_for_byte(session: palimpsest.Session) -> None:
    memory = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    await send(session, "The bakery\n====\n\nThe bakery is the oldest house of the town.")
    await memory.get(fully_applied=True)
    await memory.edit([Edit.put("$.visitors", 3), Edit.remove("$.title")])
    await send(session, "The bakery\n====\n\nThe bakery sells rolls at night.")
    await memory.get(fully_applied=True)
    states = [await memory.get(revision=number) for number in range(4)]
    for target in (0, 1, 2, 3, 1):
        info = await memory.rollback(target, comment=f"to {target}")
        digests = [one.value_digest async for one in memory.revisions()]
        assert digests[info.revision] == digests[target]
        assert await value_of(memory) == states[target].value
        assert list(await value_of(memory)) == list(states[target].value)
        assert info.applied_position == 2, "the log is not read again"
    last = [one async for one in memory.revisions()][-1]
    assert (last.kind, last.restored_revision, last.comment) == ("rollback", 1, "to 1")
    assert [await memory.get(revision=n) for n in range(4)] == [
        await memory.get(revision=n) for n in range(4)
    ]
    # What comes next builds on what was restored.
    token = await send(session, "The mill\n====\n\nThe mill is a house with a wheel.")
    after = await memory.get(after=token)
    assert set(after.value["topics"]) == {*states[1].value["topics"], "mill"}
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await memory.rollback(99)
    assert caught.value.reason == "REVISION_NOT_FOUND"
    assert caught.value.metadata["revision"] == "99"


async def test_a_fold_changes_nothing_and_happens_once(memory: palimpsest.Memory) -> None:
    assert not (await memory.fold()).folded, "there is nothing yet"
    await memory.edit([Edit.put("$.title", "Ships"), Edit.put("$.topics.'a'", ["b"])])
    before = await memory.get()
    folded = await memory.fold()
    assert (folded.folded, folded.info.revision) == (True, 2)
    again = await memory.fold()
    assert (again.folded, again.info.revision) == (False, 2)
    assert await value_of(memory) == before.value
    first, second = [one.value_digest async for one in memory.revisions()][1:]
    assert first == second
    await memory.edit([Edit.put("$.title", "Boats")])
    assert await value_of(memory) == {"title": "Boats", "topics": {"a": ["b"]}}


async def test_a_memory_in_place_has_nothing_to_fold(session: palimpsest.Session) -> None:
    memory = await session.create_memory("m", SCHEMA, encoding="in_place")
    await memory.edit([Edit.put("$.title", "Ships")])
    assert (await memory.fold()).folded is False


async def test_a_schema_can_get_more_fields(session: palimpsest.Session) -> None:
    memory = await session.create_memory("m", "class A:\n    x: str\n")
    await memory.edit([Edit.put("$.x", "a")])
    with pytest.raises(palimpsest.InvalidArgument, match="has no field 'y'"):
        await memory.edit([Edit.put("$.y", 1)])
    wider = 'class A:\n    """Now with more."""\n    x: str  # a text\n    y: int\n'
    info = await memory.update(schema=wider, expected_revision=1, comment="wider")
    assert info.revision == 2
    assert "y: int" in info.schema_source
    assert "a text" in info.schema_source
    assert (await memory.update(schema=wider)).revision == 2, "it has it already"
    await memory.edit([Edit.put("$.y", 1)])
    last = [one async for one in memory.revisions()][2]
    assert (last.kind, last.comment, last.amendment_count) == ("schema", "wider", 0)
    assert last.schema_source == info.schema_source
    assert await value_of(memory) == {"x": "a", "y": 1}
    assert await value_of(memory, 1) == {"x": "a"}
    # A state from before the fields were there is a state of the new schema too.
    assert (await memory.rollback(1)).revision == 4
    document = {
        "type": "object",
        "title": "A",
        "properties": {name: {"type": "string"} for name in ("x", "z")}
        | {"y": {"type": "integer"}},
    }
    assert "z: str" in (await memory.update(schema=document)).schema_source


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("class A:\n    y: int\n", "A.x"),
        ("class A:\n    x: int\n    p: list[str]\n", "A.x"),
        ("class A:\n    x: str\n    p: list[int]\n", "A.p"),
        ("class A:\n    x: str\n    p: dict[str, str]\n", "A.p"),
    ],
)
async def test_a_schema_cannot_lose_or_change_fields(
    session: palimpsest.Session, source: str, place: str
) -> None:
    memory = await session.create_memory("m", "class A:\n    x: str\n    p: list[str]\n")
    with pytest.raises(palimpsest.InvalidArgument, match="can only get more fields") as caught:
        await memory.update(schema=source)
    assert caught.value.reason == "SCHEMA_INCOMPATIBLE"
    assert caught.value.metadata["field"].startswith(place)
    assert (await memory.get()).revision == 0


async def test_a_json_schema_makes_a_memory_and_a_wrong_one_says_where(
    session: palimpsest.Session,
) -> None:
    document: dict[str, Any] = {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "description": "All."},
            "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    }
    memory = await session.create_memory("m", document, encoding="in_place")
    state = await memory.get()
    assert "names: list[str]" in state.info.schema_source
    assert state.info.encoding == "in_place"
    await memory.edit([Edit.put("/names/0", "Ann"), Edit.put("$.size", 3)])
    document["properties"]["size"] = {"type": "bytes"}
    for refused in (session.create_memory("n", document), memory.update(schema=document)):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await refused
        assert caught.value.reason == "SCHEMA_INVALID"
        assert caught.value.metadata["pointer"].startswith("/properties/size")
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await memory.update(schema="class A(")
    assert caught.value.metadata == {"line": "1", "column": "8"}


@dataclass
class Harbour:
    """A harbour."""

    ships: list[str]


async def test_a_dataclass_makes_a_memory_a_wider_one_and_another(
    session: palimpsest.Session,
) -> None:
    memory = await session.create_memory("m", Harbour)
    assert "ships: list[str]" in (await memory.get()).info.schema_source
    info = await memory.update(
        schema=make_dataclass("Harbour", [("depth", float)], bases=(Harbour,))
    )
    assert info.revision == 1
    other = await memory.rebuild("n", schema=make_dataclass("Depth", [("depth", float)]))
    assert (await other.wait()).schema_source == "class Depth:\n    depth: float\n"


async def test_settings_are_kept_and_wrong_ones_refused(session: palimpsest.Session) -> None:
    memory = await session.create_memory(
        "m",
        schema_source=SCHEMA,
        task="t",
        question="q?",
        encoding="in_place",
        allowed_ops="add_only",
        coercion="lossless",
        reply_format="structured",
        chunk_tokens=7,
        fold_tokens=8,
        memory_tokens=9,
        linger=1.5,
        skip_failures=True,
        final_task="One number.",
        steps="focused",
    )
    info = (await memory.get()).info
    assert (info.final_task, info.steps) == ("One number.", "focused")
    assert (info.task, info.question, info.encoding) == ("t", "q?", "in_place")
    assert (info.allowed_ops, info.coercion) == ("add_only", "lossless")
    assert (info.reply_format, info.linger_seconds) == ("structured", 1.5)
    assert (info.chunk_tokens, info.fold_tokens, info.memory_tokens) == (7, 8, 9)
    assert info.skip_failures
    assert [info] == await session.memories()
    with pytest.raises(palimpsest.InvalidArgument, match="linger"):
        await session.create_memory("n", SCHEMA, linger=3601)
    with pytest.raises(palimpsest.InvalidArgument, match="final_task"):
        await session.create_memory("n", SCHEMA, final_task="x" * 8193)
    with pytest.raises(ValueError, match="exactly one"):
        await session.create_memory("n")
    with pytest.raises(ValueError, match="exactly one"):
        await session.create_memory("n", SCHEMA, schema_source=SCHEMA)


async def test_flush_ends_a_long_linger(session: palimpsest.Session) -> None:
    one = await session.create_memory("one", SCHEMA, linger=3600, encoding="amendments")
    two = await session.create_memory("two", SCHEMA, linger=3600, encoding="amendments")
    await send(session, "The bakery\n====\n\nThe bakery is the oldest house of the town.")
    flushed = await one.flush()
    assert flushed.head == 1
    assert (await one.get(after=flushed.read_token)).applied_position == 1
    assert (await two.get()).applied_position == 0, "only the one was named"
    token = await send(session, "The mill\n====\n\nThe mill is a house with a wheel.")
    assert (await session.flush()).head == 2
    for memory in (one, two):
        assert (await memory.get(after=token)).applied_position == 2
    assert [m.revision for m in await session.memories()] == [2, 1]
    assert (await session.flush()).head == 2, "and again, with nothing new"


async def test_a_rebuild_does_not_wait_for_more_chunks(session: palimpsest.Session) -> None:
    memory = await session.create_memory("m", SCHEMA, linger=3600, encoding="amendments")
    await send(session, "The bakery\n====\n\nThe bakery is the oldest house of the town.")
    rebuild = await memory.rebuild("n")
    assert (await rebuild.wait()).applied_position == 1
    assert (await memory.get()).applied_position == 0


async def test_linger_ends_by_itself_and_a_full_step_does_not_wait(
    session: palimpsest.Session,
) -> None:
    short = await session.create_memory("short", SCHEMA, linger=0.01)
    full = await session.create_memory("full", SCHEMA, linger=3600, chunk_tokens=1)
    token = await send(session, "The bakery\n====\n\nThe bakery is the oldest house of the town.")
    for memory in (short, full):
        assert (await memory.get(after=token)).applied_position == 1


async def test_who_is_not_there_cannot_be_edited(session: palimpsest.Session) -> None:
    nobody = session.memory("nobody")
    for call in (
        nobody.edit([Edit.put("$.title", "x")]),
        nobody.rollback(0),
        nobody.fold(),
        nobody.consolidate(),
        nobody.update(schema=SCHEMA),
        nobody.rebuild("new"),
        nobody.flush(),
    ):
        with pytest.raises(palimpsest.NotFound) as caught:
            await call
        assert caught.value.reason == "MEMORY_NOT_FOUND"
    with pytest.raises(palimpsest.NotFound) as caught:
        await palimpsest.Session(session._connection, "no-such-session").flush()
    assert caught.value.reason == "SESSION_NOT_FOUND"


async def test_the_synchronous_face_edits_and_looks_back(address: str) -> None:
    def work() -> None:
        with sync.Client(address) as client:
            session = client.create_session(f"sync-{uuid4().hex}")
            memory = session.create_memory("m", SCHEMA)
            made = memory.edit([Edit.put("$.title", "a")], comment="c")
            assert made.info.revision == 1
            memory.edit([Edit.put("$.title", "b")], expected_revision=1)
            why = memory.provenance("$.title")
            assert (why.value, why.exists, why.path) == ("b", True, "$['title']")
            assert [entry.amendment.value for entry in why] == ["b", "a"]
            assert memory.diff(revision=1).differences[0].new == "b"
            assert [one.kind for one in memory.revisions()] == ["create", "edit", "edit"]
            with memory.watch(after_revision=0) as watch:
                assert [next(watch).revision.revision for _ in range(2)] == [1, 2]
            assert memory.rollback(1).revision == 3
            assert not memory.fold().folded
            assert memory.consolidate().wait().id == "m"
            assert memory.update(schema=SCHEMA + "    more: str\n").revision >= 4
            assert memory.rebuild("n", task="t").wait().rebuilt_from == "m"
            assert memory.flush().head == session.flush().head == 0
            assert len(list(memory.amendments(path="$.title"))) == 2

    await asyncio.to_thread(work)
