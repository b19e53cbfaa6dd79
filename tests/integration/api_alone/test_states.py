"""State memories over gRPC: their contexts and vectors, and state memories as memories.

No worker runs: the vectors are written by hand.
"""

import json
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import PositionRange, State
from palimpsest.v1 import (
    common_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    state_service_pb2,
    state_service_pb2_grpc,
    tree_service_pb2,
    tree_service_pb2_grpc,
)
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.state.spec import StateSpec
from service.domain.state.working_context import as_messages, as_text
from storage.engine.database import Database
from tests.integration.api_alone.refusals import SCHEMA, calls_for_prism, refusal
from tests.integration.support.vector_rows import Keeper, append, chunk

SESSION = "run"
STATE = "state"
SPEC = StateSpec(task="Find the key.", period=3, episode_vectors=2)
NAMED: dict[str, Any] = {"session": SESSION, "memory": STATE}
Request = state_service_pb2.GetWorkingContextRequest


async def made(client: palimpsest.Client, database: Database, session: str) -> Keeper:
    """Returns a session with a state memory that is kept by hand."""
    created = await client.create_session(session)
    await created.create_state(STATE, task=SPEC.task, period=3, episode_vectors=2)
    kept = Keeper(database=database, spec=SPEC, session=session, name=STATE)
    kept.adopt()
    return kept


@pytest.fixture(scope="module")
async def kept(client: palimpsest.Client, database: Database) -> Keeper:
    """Twelve chunks; an episode over the first six, a vector over three more, and a tree and
    a PRISM memory beside it."""
    kept = await made(client, database, SESSION)
    session = client.session(SESSION)
    await session.create_memory("facts", SCHEMA)
    await session.create_tree("tree")
    await kept.append(12)
    await kept.step(3)
    await kept.step(3)
    await kept.episode()
    await kept.step(3)
    return kept


@pytest.fixture
def state(client: palimpsest.Client, kept: Keeper) -> State:
    return client.session(SESSION).state(STATE)


@pytest.fixture
async def own(client: palimpsest.Client, database: Database) -> tuple[Keeper, State]:
    """Seven chunks and two vectors, for tests that change them."""
    kept = await made(client, database, f"run-{uuid4().hex}")
    await kept.append(7)
    await kept.step(2)
    await kept.step(2)
    return kept, client.session(kept.session).state(STATE)


async def test_a_context_has_its_parts_its_text_and_its_messages(
    kept: Keeper, state: State
) -> None:
    context = await state.context()
    wanted = kept.context(12)
    read = context.read_point
    assert (read.revision, read.applied_position, context.head) == (4, 9, 12)
    assert [(one.revision, one.level, one.text, one.origin) for one in context.vectors] == [
        (one.revision, one.level, one.text, "model") for one in wanted.state.stack
    ]
    assert [one.revision for one in context.vectors] == [3, 4]
    episode = context.vectors[0]
    assert (episode.children, episode.tokens, episode.replies) == ((1, 2), 3, 1)
    assert episode.positions == episode.new_positions == PositionRange(first=1, last=6)
    listed = {one.revision: one async for one in state.vectors()}
    assert context.vectors == (listed[3], listed[4])
    assert [one.position for one in context.recent] == [10, 11, 12]
    assert [one.kind for one in context.recent] == ["agent_step", "message", "text"]
    assert context.recent[0].observation == chunk(10).observation
    assert context.recent[2].metadata == {"n": "12"}
    assert context.text == as_text(wanted)
    assert [(one.role, one.content) for one in context.messages] == [
        (one.role, one.content) for one in as_messages(wanted)
    ]
    assert context.memory_tokens == 7
    assert context.recent_tokens == sum(one.tokens for one in wanted.recent)
    assert (context.compression_due, context.blocked) == (True, None)


@pytest.mark.parametrize(
    ("forms", "there"),
    [
        ([], {"vectors", "recent", "text"}),
        ([Request.FORM_PARTS], {"vectors", "recent"}),
        ([Request.FORM_TEXT], {"text"}),
        ([Request.FORM_MESSAGES], {"messages"}),
        ([Request.FORM_TEXT, Request.FORM_MESSAGES], {"text", "messages"}),
    ],
)
async def test_a_reply_has_the_forms_that_were_asked_for(
    client: palimpsest.Client, state: State, forms: list[Any], there: set[str]
) -> None:
    stub = state_service_pb2_grpc.StateServiceStub(client.channel)
    response = await stub.GetWorkingContext(Request(**NAMED, forms=forms))
    set_fields = {field.name for field, _ in response.ListFields()}
    assert set_fields & {"vectors", "recent", "text", "messages"} == there
    assert response.recent_tokens > 0


async def test_every_position_can_be_read(kept: Keeper, state: State) -> None:
    for position in range(13):
        context = await state.context(position=position)
        wanted = kept.at(position)
        assert context.read_point.revision == wanted.revision
        assert context.text == as_text(kept.context(position))
        assert context.head == position
        read = await state.get(position=position)
        assert (read.revision, read.applied_position) == (wanted.revision, position)
    with pytest.raises(palimpsest.OutOfRange) as beyond:
        await state.context(position=13)
    assert "ends at position 12, before 13" in str(beyond.value)
    assert beyond.value.reason == "POSITION_NOT_APPLIED"
    assert beyond.value.metadata == {"position": "13", "applied_position": "12"}


async def test_the_value_of_a_memory_is_its_context(
    client: palimpsest.Client, kept: Keeper, state: State
) -> None:
    read = await state.get()
    assert (read.revision, read.applied_position) == (4, 12)
    assert read.value["recent"] == [
        {"position": n, "text": chunk(n).as_text()} for n in (10, 11, 12)
    ]
    assert read.value["vectors"] == [
        {
            "revision": one.revision,
            "level": one.level,
            "text": one.text,
            "from_position": one.from_position,
            "to_position": one.to_position,
        }
        for one in kept.newest.stack
    ]
    assert (read.info.kind, read.info.applied_position, read.info.head) == ("state", 9, 12)
    for number, then in enumerate(kept.states):
        old = await state.get(revision=number)
        assert (old.revision, old.applied_position) == (number, then.applied_position)
        assert [one["text"] for one in old.value["vectors"]] == [one.text for one in then.stack]
        assert old.value["recent"] == []
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    response = await stub.GetMemory(memory_service_pb2.GetMemoryRequest(**NAMED))
    compact = json.dumps(read.value, ensure_ascii=False, separators=(",", ":"))
    assert response.value_json == compact


async def test_what_is_beyond_the_newest_is_refused(state: State) -> None:
    for number in (5, 2**63 - 1):
        with pytest.raises(palimpsest.OutOfRange) as beyond:
            await state.get(revision=number)
        assert beyond.value.reason == "REVISION_NOT_FOUND"
    for position in (13, 2**63 - 1):
        with pytest.raises(palimpsest.OutOfRange) as beyond:
            await state.get(position=position)
        assert beyond.value.reason == "POSITION_NOT_APPLIED"


async def test_a_tokens_consistency_is_met_at_once(state: State) -> None:
    token = (await state.context()).read_point.read_token
    assert (await state.get(after=token)).applied_position == 12
    with pytest.raises(palimpsest.InvalidArgument) as wrong:
        await state.get(after="no token")
    assert wrong.value.reason == "TOKEN_INVALID"


async def test_a_token_is_checked_though_a_context_waits_for_none(state: State) -> None:
    context = await state.context()
    token = context.read_point.read_token
    assert await state.context(after=token) == context
    assert len([one async for one in state.vectors(after=token)]) == 5
    for read in (state.context(after="no token"), anext(state.vectors(after="no token"))):
        with pytest.raises(palimpsest.InvalidArgument) as wrong:
            await read
        assert wrong.value.reason == "TOKEN_INVALID"


@pytest.mark.prove
async def test_waiting_ends_at_the_deadline(state: State) -> None:
    with pytest.raises(palimpsest.DeadlineExceeded) as late:
        await state.context(fully_applied=True, timeout=4.5)
    assert late.value.reason == "NOT_APPLIED_IN_TIME"
    assert late.value.metadata == {"position": "12", "applied_position": "9", "revision": "4"}


@pytest.mark.parametrize("method", ["GetMemory", "ListRevisions"])
async def test_a_value_and_a_history_wait_for_compressions_too(
    client: palimpsest.Client, method: str
) -> None:
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    request = getattr(memory_service_pb2, f"{method}Request")(
        **NAMED, consistency=common_pb2.ReadConsistency(fully_applied=True)
    )
    with pytest.raises(palimpsest.DeadlineExceeded) as late:
        await client.call(getattr(stub, method), request, timeout=1.0)
    assert late.value.reason == "NOT_APPLIED_IN_TIME"
    assert late.value.metadata == {"position": "12", "applied_position": "9", "revision": "4"}


async def test_vectors_are_waited_for(client: palimpsest.Client, state: State) -> None:
    stub = state_service_pb2_grpc.StateServiceStub(client.channel)
    request = state_service_pb2.ListStateVectorsRequest(
        **NAMED, consistency=common_pb2.ReadConsistency(fully_applied=True)
    )
    with pytest.raises(palimpsest.DeadlineExceeded) as late:
        await client.call(stub.ListStateVectors, request, timeout=1.0)
    assert late.value.reason == "NOT_APPLIED_IN_TIME"
    request.ClearField("consistency")
    read = (await client.call(stub.ListStateVectors, request)).read_point
    assert (read.revision, read.applied_position) == (4, 9)
    assert (await state.get(after=read.read_token)).applied_position == 12


async def test_what_is_not_due_is_not_waited_for(own: tuple[Keeper, State]) -> None:
    kept, state = own
    await kept.episode()
    await kept.step(2)
    context = await state.context(fully_applied=True)
    assert (context.read_point.revision, context.head, context.compression_due) == (4, 7, False)


async def test_vectors_are_listed_by_revision_and_by_level(kept: Keeper, state: State) -> None:
    listed = [one async for one in state.vectors()]
    assert [one.revision for one in listed] == [0, 1, 2, 3, 4]
    assert [one.text for one in listed] == [kept.made[n].text for n in range(5)]
    assert (listed[0].origin, listed[0].text) == ("task", "Find the key.")
    assert (listed[0].positions, listed[0].new_positions) == (None, None)
    assert listed[4].new_positions == PositionRange(first=7, last=9)
    assert [one.revision async for one in state.vectors(level=1)] == [0, 1, 2, 4]
    assert [one.revision async for one in state.vectors(level=2)] == [3]
    assert [one.revision async for one in state.vectors(level=1000)] == []


async def pages(client: palimpsest.Client, **fields: Any) -> list[list[int]]:
    stub = state_service_pb2_grpc.StateServiceStub(client.channel)
    request = state_service_pb2.ListStateVectorsRequest(**{**NAMED, **fields})
    return [
        [one.revision for one in page.vectors]
        async for page in client._connection.pages(stub.ListStateVectors, request)
    ]


async def test_vectors_come_in_pages(client: palimpsest.Client, state: State) -> None:
    assert await pages(client, page_size=2) == [[0, 1], [2, 3], [4]]
    assert await pages(client, page_size=5) == [[0, 1, 2, 3, 4]]
    assert await pages(client, page_size=1, level=1) == [[0], [1], [2], [4]]


async def test_a_page_of_long_vectors_ends_early(
    client: palimpsest.Client, database: Database
) -> None:
    kept = await made(client, database, "long")
    await kept.append(5)
    for size in (900_000, 900_000, 900_000, 2_500_000, 10):
        await kept.step(1, "é" * (size // 2))
    assert await pages(client, session="long") == [[0, 1, 2], [3], [4], [5]]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("GetWorkingContext", {"position": -1}, "FIELD_INVALID"),
    ("GetWorkingContext", {"position": 2**63 - 1}, "POSITION_NOT_APPLIED"),
    ("GetWorkingContext", {"position": 3, "consistency": {}}, "FIELD_INVALID"),
    ("GetWorkingContext", {"forms": [0]}, "FIELD_INVALID"),
    ("GetWorkingContext", {"forms": [9]}, "FIELD_INVALID"),
    ("GetWorkingContext", {"forms": [1, 1]}, "FIELD_INVALID"),
    ("ListStateVectors", {"level": 1001}, "FIELD_INVALID"),
    ("ListStateVectors", {"page_size": -1}, "FIELD_INVALID"),
    ("ListStateVectors", {"page_token": "AAAA"}, "TOKEN_INVALID"),
    ("ListStateVectors", {"page_token": "x" * 4097}, "FIELD_INVALID"),
    *(
        (call, fields, reason)
        for call in ("GetWorkingContext", "ListStateVectors")
        for fields, reason in (
            ({"memory": "nothing"}, "MEMORY_NOT_FOUND"),
            ({"session": "nowhere"}, "SESSION_NOT_FOUND"),
            ({"memory": "no/name"}, "FIELD_INVALID"),
            ({"memory": ""}, "FIELD_INVALID"),
            ({"session": " "}, "FIELD_INVALID"),
            ({"memory": "facts"}, "WRONG_MEMORY_KIND"),
            ({"memory": "tree"}, "WRONG_MEMORY_KIND"),
        )
    ),
]


@pytest.mark.parametrize(("call", "fields", "reason"), WRONG)
async def test_what_is_wrong_with_a_call_is_said(
    client: palimpsest.Client, state: State, call: str, fields: dict[str, Any], reason: str
) -> None:
    stub = state_service_pb2_grpc.StateServiceStub(client.channel)
    request = getattr(state_service_pb2, f"{call}Request")(**{**NAMED, **fields})
    refused = await refusal(client, getattr(stub, call), request)
    assert refused.reason == reason
    if reason == "WRONG_MEMORY_KIND":
        assert refused.metadata["wanted"] == "state"


async def test_a_token_is_for_its_own_list(client: palimpsest.Client, state: State) -> None:
    stub = state_service_pb2_grpc.StateServiceStub(client.channel)
    listing = state_service_pb2.ListStateVectorsRequest
    token = (await stub.ListStateVectors(listing(**NAMED, page_size=1))).next_page_token
    refused = await refusal(
        client, stub.ListStateVectors, listing(**NAMED, level=1, page_token=token)
    )
    assert refused.reason == "TOKEN_INVALID"


async def test_a_reply_that_fits_no_message_is_refused(
    client: palimpsest.Client, database: Database
) -> None:
    kept = await made(client, database, "large")
    chunks = [
        Chunk(kind=ChunkKind.TEXT, text="x", metadata={f"k{m}": "é" * 1000 for m in range(16)})
    ] * 125
    await append(database, "large", chunks)
    kept.head = 125
    state = client.session("large").state(STATE)
    assert (await state.context(forms=["text"])).head == 125
    await append(database, "large", chunks, 126)
    with pytest.raises(palimpsest.ResourceExhausted) as large:
        await state.context(forms=["text"])
    assert large.value.reason == "CONTEXT_TOO_LARGE"
    assert large.value.metadata["memory"] == STATE
    await kept.step(125)
    # A megabyte of it in three forms, and the metadata besides.
    await append(database, "large", [Chunk(kind=ChunkKind.TEXT, text="y" * 250_000)] * 4, 251)
    with pytest.raises(palimpsest.ResourceExhausted, match=r"the reply has \d{7} bytes") as large:
        await state.context()
    assert large.value.metadata == {"memory": STATE, "limit": str(4 * 1024 * 1024)}
    # One form has room: the middles of long steps are left out of it.
    shown = (await state.context(forms=["text"])).text
    assert 10_000 < len(shown) < 1_000_000


FOR_OTHERS = [
    *calls_for_prism(SESSION, STATE),
    (
        memory_service_pb2_grpc.MemoryServiceStub,
        "DiffMemories",
        memory_service_pb2.DiffMemoriesRequest(**NAMED, other_memory="facts"),
    ),
    (
        tree_service_pb2_grpc.TreeServiceStub,
        "SealTree",
        tree_service_pb2.SealTreeRequest(**NAMED),
    ),
    (
        tree_service_pb2_grpc.TreeServiceStub,
        "SealTree",
        tree_service_pb2.SealTreeRequest(**NAMED),
    ),
    (
        tree_service_pb2_grpc.TreeServiceStub,
        "GetTree",
        tree_service_pb2.GetTreeRequest(**NAMED),
    ),
]


@pytest.mark.parametrize(("stub", "call", "request_"), FOR_OTHERS)
async def test_what_is_for_other_memories_leaves_a_state_memory_alone(
    client: palimpsest.Client, state: State, stub: Any, call: str, request_: Any
) -> None:
    before = await state.get()
    refused = await refusal(client, getattr(stub(client.channel), call), request_)
    assert refused.reason == "WRONG_MEMORY_KIND"
    assert await state.get() == before


async def test_a_rollback_restores_the_vectors(
    client: palimpsest.Client, own: tuple[Keeper, State]
) -> None:
    kept, state = own
    with pytest.raises(palimpsest.Aborted) as conflict:
        await state.rollback(1, expected_revision=1)
    assert conflict.value.reason == "REVISION_CONFLICT"
    for revision in (3, 2**63 - 1):
        with pytest.raises(palimpsest.OutOfRange) as beyond:
            await state.rollback(revision)
        assert beyond.value.reason == "REVISION_NOT_FOUND"
    info = await state.rollback(1, expected_revision=2, comment="wrong door")
    assert (info.revision, info.applied_position, info.idle) == (3, 4, False)
    kept.rolled_back(1)
    context = await state.context()
    assert context.text == as_text(kept.context(7))
    assert [one.position for one in context.recent] == [5, 6, 7]
    listed = [one async for one in state.revisions()]
    assert [one.kind for one in listed] == ["create", "step", "step", "rollback"]
    assert (listed[3].comment, listed[3].restored_revision) == ("wrong door", 1)
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    request = memory_service_pb2.ListRevisionsRequest(session=kept.session, memory=STATE)
    digests = [one.value_digest for one in (await stub.ListRevisions(request)).revisions]
    assert digests[3] == digests[1] != digests[2]
    assert [one.revision async for one in state.vectors()] == [0, 1, 2], "what was undone is kept"


async def test_states_are_compared_level_by_level(kept: Keeper, state: State) -> None:
    same = await state.diff(revision=3, other_revision=3)
    assert same.differences == ()
    found = await state.diff(revision=2, other_revision=4)
    assert (found.read_point.revision, found.other_read_point.revision) == (2, 4)
    assert {(one.path, one.old, one.new) for one in found.differences} == {
        ("$['levels']['1']", kept.made[2].text, kept.made[4].text),
        ("$['levels']['2']", None, kept.made[3].text),
    }
    with pytest.raises(palimpsest.OutOfRange):
        await state.diff(revision=0, other_revision=2**63 - 1)


async def test_lists_and_watches_know_state_memories(state: State) -> None:
    listed = await state.session.memories()
    assert [(one.id, one.kind) for one in listed] == [
        ("facts", "prism"),
        (STATE, "state"),
        ("tree", "tree"),
    ]
    kinds = ["create", "step", "step", "episode", "step"]
    assert [one.kind async for one in state.revisions()] == kinds
    async with state.watch(after_revision=1) as watch:
        told = [(await anext(watch)).revision for _ in range(3)]
    assert [(one.revision, one.kind) for one in told] == [(2, "step"), (3, "episode"), (4, "step")]
