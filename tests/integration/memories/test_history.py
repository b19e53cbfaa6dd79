"""Looking back over gRPC: positions, filters, revisions, provenance, differences."""

import hashlib
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit, PositionRange
from palimpsest.v1 import common_pb2, memory_service_pb2, memory_service_pb2_grpc
from tests.support.sending import send

SCHEMA = """
class Museum:
    title: str
    visitors: int
    topics: dict[str, list[str]]
"""
TEXTS = [
    "The harbour museum\n====\n\nThe harbour museum is a collection of old ships in the north.",
    "The bakery\n====\n\nThe bakery is the oldest house of the town and sells rolls at night.",
    "The harbour museum\n====\n\nThe harbour museum is closed on Mondays and during the winter.",
]


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"history-{uuid4().hex}")


@pytest.fixture
async def memory(session: palimpsest.Session) -> palimpsest.Memory:
    """Makes three steps over three chunks: revisions 1 to 3."""
    made = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    await send(session, *TEXTS)
    assert (await made.get(fully_applied=True)).revision == 3
    return made


def named(memory: palimpsest.Memory) -> dict[str, Any]:
    return {"session": memory.session.id, "memory": memory.id}


async def pages(
    memory: palimpsest.Memory, method: Any, request: Any, between: Callable[[], Any] | None = None
) -> list[Any]:
    """Returns every page of a list; `between` is awaited after the first."""
    found = []
    while True:
        found.append(await memory._connection.call(method, request))
        if between is not None and len(found) == 1:
            await between()
        request.page_token = found[-1].next_page_token
        if not request.page_token:
            return found


def covers(positions: PositionRange | None, first: int, last: int) -> bool:
    """Returns whether a step read one of these positions; 0 leaves an end open."""
    if positions is None:
        return False
    return positions.last >= first and (not last or positions.first <= last)


# Positions


async def test_a_position_reads_what_was_known_then(memory: palimpsest.Memory) -> None:
    for position in range(4):
        at = await memory.get(position=position)
        assert (at.revision, at.applied_position) == (position, position)
        assert at.value == (await memory.get(revision=position)).value
    await memory.edit([Edit.put("$.visitors", 9)])
    edited = await memory.get(position=3)
    assert (edited.revision, edited.value["visitors"]) == (4, 9), "the newest of that position"
    assert (await memory.get(position=2)).revision == 2
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await memory.get(position=4)
    assert caught.value.reason == "POSITION_NOT_APPLIED"
    assert caught.value.metadata == {"position": "4", "applied_position": "3"}


async def test_within_a_step_the_state_before_it_is_read(session: palimpsest.Session) -> None:
    await send(session, *TEXTS)
    memory = await session.create_memory("m", SCHEMA)
    state = await memory.get(fully_applied=True)
    assert (state.revision, state.applied_position) == (1, 3)
    for position in (0, 1, 2):
        at = await memory.get(position=position)
        assert (at.revision, at.applied_position, at.value) == (0, 0, {})
    assert (await memory.get(position=3)).revision == 1


async def test_a_position_stands_alone(memory: palimpsest.Memory) -> None:
    for extra in ({"revision": 1}, {"fully_applied": True}):
        with pytest.raises(palimpsest.InvalidArgument, match="at most one of revision"):
            await memory.get(position=1, **extra)


# Amendments


async def test_amendments_can_be_asked_for_by_path_and_position(memory: palimpsest.Memory) -> None:
    await memory.edit(
        [Edit.put("$.topics.'bakery'[0]", "It is a bakery."), Edit.put("$.title", "t")]
    )
    everything = [one async for one in memory.amendments()]

    async def asked(**wanted: Any) -> list[palimpsest.Amendment]:
        return [one async for one in memory.amendments(**wanted)]

    for path in ("$['topics']['bakery']", "$.topics.'bakery'", "/topics/bakery"):
        assert await asked(path=path) == [
            one for one in everything if one.path.startswith("$['topics']['bakery']")
        ]
    assert await asked(path="$") == everything
    assert await asked(path="$.visitors") == []
    steps = [one for one in everything if one.kind == "step"]
    for first in range(4):
        for last in range(4):
            if last and first > last:
                continue
            expected = [
                one
                for one in (steps if first or last else everything)
                if not (first or last) or covers(one.positions, first, last)
            ]
            assert await asked(from_position=first, to_position=last) == expected, (first, last)
    both = await asked(path="$.topics", from_position=2, to_position=2)
    assert [(one.revision, one.path) for one in both] == [(2, "$['topics']['bakery']")]
    with pytest.raises(palimpsest.InvalidArgument, match="first must not be greater than last"):
        await asked(from_position=3, to_position=2)
    for path in ("nonsense", "$.nothing", "$.title.'more'"):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await asked(path=path)
        assert caught.value.reason == "PATH_INVALID"
        assert caught.value.metadata == {"path": path}


async def test_pages_of_amendments_have_no_holes_and_keep_their_filter(
    memory: palimpsest.Memory,
) -> None:
    await memory.edit([Edit.put(f"$.topics.'t{n}'", [str(n)]) for n in range(5)])
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    late = common_pb2.PositionRange(first=2)
    for wanted in ({}, {"path_prefix": "$.topics"}, {"positions": late}):
        request = memory_service_pb2.ListAmendmentsRequest(**named(memory), page_size=2, **wanted)
        found = await pages(memory, stub.ListAmendments, request)
        listed = [(one.revision, one.ordinal) for page in found for one in page.amendments]
        whole = memory.amendments(
            path=str(wanted.get("path_prefix", "")),
            from_position=2 if "positions" in wanted else 0,
        )
        assert listed == [(one.revision, one.ordinal) async for one in whole]
        assert all(len(page.amendments) == 2 for page in found[:-1])
    first = memory_service_pb2.ListAmendmentsRequest(**named(memory), page_size=1)
    page = await memory._connection.call(stub.ListAmendments, first)
    other = memory_service_pb2.ListAmendmentsRequest(
        **named(memory), path_prefix="$.topics", page_token=page.next_page_token
    )
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await memory._connection.call(stub.ListAmendments, other)
    assert caught.value.reason == "TOKEN_INVALID"


# Revisions


async def test_every_revision_is_listed_with_its_cause_and_digest(
    memory: palimpsest.Memory,
) -> None:
    await memory.edit([Edit.put("$.visitors", 9)], comment="counted")
    await memory.fold()
    await memory.rollback(1)
    await memory.update(schema=SCHEMA + "    more: str\n")
    revisions = [one async for one in memory.revisions()]
    assert [one.kind for one in revisions] == [
        "create",
        *["step"] * 3,
        "edit",
        "fold",
        "rollback",
        "schema",
    ]
    assert [one.revision for one in revisions] == list(range(8))
    assert [one.positions for one in revisions] == [
        None,
        *(PositionRange(first=number, last=number) for number in (1, 2, 3)),
        *[None] * 4,
    ]
    assert [one.restored_revision for one in revisions] == [None] * 6 + [1, None]
    counts = dict.fromkeys(range(8), 0)
    async for change in memory.amendments():
        counts[change.revision] += 1
    assert [one.amendment_count for one in revisions] == list(counts.values())
    for one in revisions:
        value = (await memory.get(revision=one.revision)).value
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert one.value_digest == hashlib.sha256(text.encode()).digest(), one
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.ListRevisionsRequest(**named(memory), page_size=3)
    found = await pages(memory, stub.ListRevisions, request)
    assert [[one.revision for one in page.revisions] for page in found] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]


# Provenance

MUSEUM = "$['topics']['harbour museum']"


async def entries(
    memory: palimpsest.Memory, path: str, revision: int | None = None
) -> list[palimpsest.ProvenanceEntry]:
    return [entry async for entry in await memory.provenance(path, revision=revision)]


def summary(found: list[palimpsest.ProvenanceEntry]) -> list[tuple[int, bool, bool, int]]:
    return [
        (entry.amendment.revision, entry.in_effect, entry.origin, entry.best_position)
        for entry in found
    ]


async def test_a_list_that_grew_is_followed_to_where_each_element_came_from(
    memory: palimpsest.Memory,
) -> None:
    held = (await memory.get()).value["topics"]["harbour museum"]
    # It repeats the list to append to it; the first element came with revision 1.
    await memory.edit([Edit.put(MUSEUM, [*held, "It opens at nine."])])
    why = await memory.provenance("/topics/harbour museum/0")
    assert (why.path, why.read_point.revision, why.exists) == (f"{MUSEUM}[0]", 4, True)
    assert why.value == "The harbour museum is a collection of old ships in the north."
    found = [entry async for entry in why]
    assert [entry async for entry in why] == found, "each loop begins at the newest"
    assert summary(found) == [(4, True, False, 0), (1, False, True, 1)]
    assert [[c.text for c in entry.chunks] for entry in found] == [[], [TEXTS[0]]]
    assert [entry.revision.kind for entry in found] == ["edit", "step"]
    assert not any(entry.chunks_truncated for entry in found)
    # A list without such an element is listed as well: it is why nothing was there.
    assert summary(await entries(memory, f"{MUSEUM}[1]")) == [
        (4, True, False, 0),
        (3, False, True, 3),
        (1, False, False, 1),
    ]
    assert summary(await entries(memory, f"{MUSEUM}[0]", revision=1)) == [(1, True, True, 1)]
    assert summary(await entries(memory, "$.topics.'bakery'")) == [(2, True, True, 2)]


async def test_the_chunk_that_says_it_is_found_among_those_of_a_step(
    session: palimpsest.Session,
) -> None:
    await send(session, *TEXTS)
    memory = await session.create_memory("m", SCHEMA)
    await memory.get(fully_applied=True)
    found = await entries(memory, "$.topics.'bakery'")
    assert {entry.amendment.revision for entry in found} == {1}
    for entry in found:
        assert [chunk.position for chunk in entry.chunks] == [1, 2, 3]
        assert entry.best_position == 2
    edited = await memory.edit([Edit.put("$.title", "by hand")])
    entry = (await entries(memory, "$.title"))[0]
    assert entry.revision.revision == edited.info.revision
    assert (entry.best_position, entry.chunks) == (0, ())


async def test_what_a_rollback_undid_is_not_listed(memory: palimpsest.Memory) -> None:
    await memory.edit([Edit.put(f"{MUSEUM}[0]", "It sank.")], comment="a mistake")
    assert [one[0] for one in summary(await entries(memory, f"{MUSEUM}[0]"))] == [4, 1]
    await memory.rollback(2)
    assert summary(await entries(memory, f"{MUSEUM}[0]")) == [(1, True, True, 1)]
    assert [one[0] for one in summary(await entries(memory, f"{MUSEUM}[1]"))] == [1]
    # Before the rollback it was there, and it still is in the past.
    assert [one[0] for one in summary(await entries(memory, f"{MUSEUM}[0]", 4))] == [4, 1]
    # What it undid can come back.
    await memory.rollback(4)
    assert [one[0] for one in summary(await entries(memory, f"{MUSEUM}[0]"))] == [4, 1]


async def test_nothing_is_explained_by_what_took_it_away(memory: palimpsest.Memory) -> None:
    await memory.edit([Edit.remove("$.topics.'bakery'")])
    why = await memory.provenance("$.topics.'bakery'")
    assert (why.exists, why.value) == (False, None)
    found = [entry async for entry in why]
    assert [(one.amendment.op, one.in_effect, one.origin) for one in found] == [
        ("remove", True, False),
        ("add", False, False),
    ]
    never = await memory.provenance("$.topics.'mill'")
    assert (never.exists, [one async for one in never]) == (False, [])
    assert never.path == "$['topics']['mill']"


async def test_provenance_comes_in_pages_of_one_moment(memory: palimpsest.Memory) -> None:
    for number in range(5):
        await memory.edit([Edit.put("$.visitors", number)])
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.GetProvenanceRequest(
        **named(memory), path="$.visitors", page_size=2
    )

    async def meanwhile() -> None:
        await memory.edit([Edit.put("$.visitors", 99)])
        await memory.rollback(1)

    found = await pages(memory, stub.GetProvenance, request, meanwhile)
    assert [[one.amendment.revision for one in page.entries] for page in found] == [
        [8, 7],
        [6, 5],
        [4],
    ]
    assert {(page.read_point.revision, page.value_json) for page in found} == {(8, "4")}
    assert await entries(memory, "$.visitors") == []


async def test_the_client_reads_all_pages(memory: palimpsest.Memory) -> None:
    for number in range(45):
        await memory.edit([Edit.put("$.visitors", number)])
    why = await memory.provenance("$.visitors")
    await memory.rollback(0)
    numbers = [entry.amendment.value async for entry in why]
    assert numbers == list(reversed(range(45)))
    assert [entry.amendment.value async for entry in why] == numbers


async def test_a_path_that_is_none_is_refused(memory: palimpsest.Memory) -> None:
    for path in ("nonsense", "$.nothing", "$.topics.'a'.'b'", "$.title[0]"):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await memory.provenance(path)
        assert caught.value.reason == "PATH_INVALID"
        assert caught.value.metadata == {"path": path}
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await memory.provenance("")
    assert caught.value.reason == "FIELD_INVALID"
    with pytest.raises(palimpsest.OutOfRange) as late:
        await memory.provenance("$.title", revision=9)
    assert late.value.reason == "REVISION_NOT_FOUND"
    assert late.value.metadata == {"revision": "9", "newest": "3"}


# Differences


def flat(value: Any, at: str = "$") -> dict[str, Any]:
    """Returns a value's leaves by their paths."""
    if isinstance(value, dict) and value:
        return {k: v for key, one in value.items() for k, v in flat(one, f"{at}['{key}']").items()}
    if isinstance(value, list) and value:
        return {k: v for n, one in enumerate(value) for k, v in flat(one, f"{at}[{n}]").items()}
    return {at: value}


async def test_a_diff_says_all_that_differs(memory: palimpsest.Memory) -> None:
    await memory.edit([Edit.put("$.visitors", 9), Edit.remove("$.topics.'bakery'")])
    newest = 4
    for old in range(newest + 1):
        for new in range(newest + 1):
            found = await memory.diff(revision=old, other_revision=new)
            assert (found.read_point.revision, found.other_read_point.revision) == (old, new)
            before = flat((await memory.get(revision=old)).value)
            after = flat((await memory.get(revision=new)).value)
            for one in found.differences:
                if one.op != "add":
                    assert {k: before.pop(k) for k in flat(one.old, one.path)} == flat(
                        one.old, one.path
                    )
                if one.op != "remove":
                    assert {k: after.pop(k) for k in flat(one.new, one.path)} == flat(
                        one.new, one.path
                    )
            before.pop("$", None), after.pop("$", None)
            assert before == after, "what is not listed is equal"
    assert (await memory.diff()).differences == ()
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await memory.diff(other_revision=9)
    assert caught.value.reason == "REVISION_NOT_FOUND"


async def test_two_memories_are_compared(session: palimpsest.Session) -> None:
    memory = await session.create_memory("m", SCHEMA)
    other = await session.create_memory("other", "class A:\n    title: str\n    size: int\n")
    await other.edit([Edit.put("$.title", "t"), Edit.put("$.size", 3)])
    await memory.edit([Edit.put("$.title", "t")])
    await memory.edit([Edit.put("$.visitors", 3)])
    for named_ in (other, "other"):
        found = await memory.diff(other=named_)
        assert [(one.op, one.path, one.old, one.new) for one in found.differences] == [
            ("remove", "$['visitors']", 3, None),
            ("add", "$['size']", None, 3),
        ]
        assert (found.read_point.revision, found.other_read_point.revision) == (2, 1)
    with pytest.raises(palimpsest.NotFound):
        await memory.diff(other="nobody")


async def test_pages_of_a_diff_compare_the_same_revisions(memory: palimpsest.Memory) -> None:
    await memory.rollback(0)
    await memory.edit([Edit.put(f"$.topics.'t{n}'", [str(n)]) for n in range(5)])
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.DiffMemoriesRequest(**named(memory), revision=0, page_size=1)
    # All of it differs at one place from nothing; so compare with one that has topics.
    await memory.edit([Edit.put("$.topics.'t0'[0]", "x")])
    request.revision = 5
    await memory.edit([Edit.put(f"$.topics.'t{n}'[0]", "y") for n in range(1, 5)])

    async def meanwhile() -> None:
        await memory.rollback(5)

    found = await pages(memory, stub.DiffMemories, request, meanwhile)
    paths = [one.path for page in found for one in page.differences]
    assert paths == [f"$['topics']['t{n}'][0]" for n in range(5)]
    assert {(page.read_point.revision, page.other_read_point.revision) for page in found} == {
        (5, 7)
    }
    other = memory_service_pb2.DiffMemoriesRequest(
        **named(memory), other_memory="other", page_token=found[0].next_page_token
    )
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await memory._connection.call(stub.DiffMemories, other)
    assert caught.value.reason == "TOKEN_INVALID"
    for revision, other_revision in ((None, None), (4, None), (5, 7)):
        another = memory_service_pb2.DiffMemoriesRequest(
            **named(memory),
            revision=revision,
            other_revision=other_revision,
            page_token=found[0].next_page_token,
        )
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await memory._connection.call(stub.DiffMemories, another)
        assert caught.value.reason == "TOKEN_INVALID"


async def test_a_page_of_a_diff_ends_with_the_other_memory(session: palimpsest.Session) -> None:
    memory, other = [await session.create_memory(name, SCHEMA) for name in ("here", "there")]
    await memory.edit([Edit.put("$.title", "a"), Edit.put("$.visitors", 3)])
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.DiffMemoriesRequest(
        **named(memory), other_memory=other.id, page_size=1
    )
    first = await memory._connection.call(stub.DiffMemories, request)
    request.page_token = first.next_page_token
    assert (await memory._connection.call(stub.DiffMemories, request)).differences
    await other.delete()
    await session.create_memory(other.id, SCHEMA)
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await memory._connection.call(stub.DiffMemories, request)
    assert caught.value.reason == "TOKEN_INVALID"


async def test_a_missing_memory_has_no_past(session: palimpsest.Session) -> None:
    nobody = session.memory("nobody")

    async def first(items: Any) -> None:
        async for _ in items:
            return

    for call in (
        first(nobody.amendments()),
        first(nobody.amendments(path="$.x")),
        first(nobody.revisions()),
        nobody.provenance("$.x"),
        nobody.diff(),
        first(nobody.watch()),
        nobody.get(position=0),
    ):
        with pytest.raises(palimpsest.NotFound) as caught:
            await call
        assert caught.value.reason == "MEMORY_NOT_FOUND"
