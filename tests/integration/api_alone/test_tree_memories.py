"""Trees as memories, over gRPC: read, rebuilt, listed, paid for, and refused."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

import palimpsest
from palimpsest import Tree, sync
from palimpsest.v1 import memories_pb2 as new_memories_pb2
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from service.domain.tree.nodes import Node
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from tests.integration.api_alone.refusals import calls_for_prism, refusal
from tests.integration.api_alone.written_tree import TEXTS, free
from tests.integration.support.forests import KEY, SESSION, TREE, TREE_ID


async def test_a_tree_is_read_as_any_memory(tree: Tree, nodes: Sequence[Node]) -> None:
    by_id = {one.node_id: one for one in nodes}
    for revision, there in ((None, nodes), (1, nodes[:9]), (0, [])):
        state = await tree.get(revision=revision)
        assert state.revision == (2 if revision is None else revision)
        assert state.value["sealed"] is False
        assert state.value["tops"] == [
            {
                "node": name,
                "from_position": by_id[name].from_position,
                "to_position": by_id[name].to_position,
                "summary": by_id[name].summary,
            }
            for name in free(there)
        ]
    empty = (await tree.get(revision=0)).value
    assert empty == {"sealed": False, "tops": [], "tail": None}
    assert (await tree.get()).value["tail"] == {"from_position": 28, "from_offset": 3}
    # Revision 1 read all of the log at once: before it nothing was read.
    assert (await tree.get(position=4)).revision == 0
    assert (await tree.get(position=30)).revision == 2
    assert (await tree.get(fully_applied=True)).applied_position == 30
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await tree.get(revision=3)
    assert caught.value.reason == "REVISION_NOT_FOUND"
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await tree.get(position=31)
    assert caught.value.reason == "POSITION_NOT_APPLIED"


async def test_the_value_is_canonical(client: palimpsest.Client, tree: Tree) -> None:
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    named = memory_service_pb2.GetMemoryRequest(session=SESSION, memory=TREE)
    response = await stub.GetMemory(named)
    value = json.loads(response.value_json)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert response.value_json == compact
    assert list(value) == ["sealed", "tops", "tail"]


NAMED: dict[str, Any] = {"session": SESSION, "memory": TREE}
#: Calls that are for PRISM memories, asked of a tree.
FOR_PRISM = [
    *calls_for_prism(SESSION, TREE),
    (
        memory_service_pb2_grpc.MemoryServiceStub,
        "RollbackMemory",
        memory_service_pb2.RollbackMemoryRequest(**NAMED, revision=0),
    ),
    (
        memory_service_pb2_grpc.MemoryServiceStub,
        "ListAmendments",
        memory_service_pb2.ListAmendmentsRequest(**NAMED, path_prefix="$.a"),
    ),
    (
        memory_service_pb2_grpc.MemoryServiceStub,
        "DiffMemories",
        memory_service_pb2.DiffMemoriesRequest(**NAMED, revision=0),
    ),
]


async def rows(database: Database) -> list[Any]:
    """Returns all that a call could have touched."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(text("SELECT memory::text FROM memory ORDER BY 1"))
        count = await tx.fetch(text("SELECT count(*) FROM revision"))
        return [*[one for (one,) in found], count[0][0]]


@pytest.mark.parametrize(("stub", "call", "request_"), FOR_PRISM, ids=[c for _, c, _ in FOR_PRISM])
async def test_what_is_for_prism_memories_leaves_a_tree_alone(
    client: palimpsest.Client, database: Database, tree: Tree, stub: Any, call: str, request_: Any
) -> None:
    before = await rows(database)
    refused = await refusal(client, getattr(stub(client.channel), call), request_)
    assert refused.reason == "WRONG_MEMORY_KIND"
    # What is compared with a PRISM memory is one too; without another memory, of either kind.
    compares = call == "DiffMemories" and not request_.other_memory
    wanted = "prism or state" if compares or call == "RollbackMemory" else "prism"
    assert refused.metadata == {"memory": TREE, "kind": "tree", "wanted": wanted}
    assert await rows(database) == before


@pytest.mark.parametrize(
    ("memory", "changes", "wanted"),
    [
        (TREE, ["prism.task"], "prism"),
        (TREE, ["prism.json_schema"], "prism"),
        (TREE, ["tree", "prism.task"], "prism"),
        ("facts", ["tree"], "tree"),
        ("facts", ["tree.model"], "tree"),
    ],
)
async def test_a_rebuild_with_settings_of_another_kind_is_refused(
    client: palimpsest.Client,
    database: Database,
    tree: Tree,
    memory: str,
    changes: Sequence[str],
    wanted: str,
) -> None:
    before = await rows(database)
    stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
    request = memory_service_pb2.RebuildMemoryRequest(
        session=SESSION,
        memory=memory,
        new_memory=new_memories_pb2.Memory(session=SESSION, id="new"),
        update_mask=FieldMask(paths=changes),
    )
    refused = await refusal(client, stub.RebuildMemory, request)
    assert refused.reason == "WRONG_MEMORY_KIND"
    assert refused.metadata["wanted"] == wanted
    assert await rows(database) == before


async def rebuilt(tree: Tree, id: str, **changes: Any) -> palimpsest.MemoryInfo:
    await tree.rebuild(id, **changes)
    return (await tree.session.tree(id).get()).info


async def test_a_rebuilt_tree_is_the_same_but_for_what_is_named(client: palimpsest.Client) -> None:
    session = await client.create_session(f"s-{uuid4().hex}")
    tree = await session.create_tree(
        "old", segment_tokens=90, reasoning=False, working_memory="off", navigation_model="a/b"
    )
    old = (await tree.get()).info.tree
    assert old is not None
    same = await rebuilt(tree, "same")
    assert (same.tree, same.rebuilt_from, same.kind) == (old, "old", "tree")
    other = await rebuilt(tree, "other", model="c/d")
    assert other.tree is not None
    assert (other.tree.model, other.tree.segment_tokens) == ("c/d", 90)
    settings = palimpsest.TreeSettings(max_children=3)
    whole = await rebuilt(tree, "whole", settings=settings, model="e/f")
    assert whole.tree is not None
    assert (whole.tree.model, whole.tree.max_children) == ("e/f", 3)
    assert (whole.tree.segment_tokens, whole.tree.navigation_model) == (1000, "")


async def test_lists_and_watches_know_trees(client: palimpsest.Client, tree: Tree) -> None:
    listed = await client.session(SESSION).memories()
    assert [(one.id, one.kind) for one in listed] == [(TREE, "tree"), ("facts", "prism")]
    assert [one.kind async for one in tree.revisions()] == ["create", "step", "build"]
    async with tree.watch(after_revision=0) as watch:
        told = [await anext(watch) for _ in range(2)]
    assert [(one.revision.kind, one.amendments) for one in told] == [("step", ()), ("build", ())]
    assert (await tree.flush()).head == len(TEXTS)


async def test_costs_of_a_tree_are_counted_and_not_compared(
    client: palimpsest.Client, database: Database, tree: Tree
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        for number, purpose in enumerate(("summarize", "navigate", "summarize")):
            await tx.execute(
                text(
                    "INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key,"
                    " purpose, template, model, reply, input_tokens, predicted_cached_tokens,"
                    " output_tokens, latency_ms) VALUES (:key, :id, :tenant, :memory, 'node:0.1',"
                    " :once, :purpose, 't', 'a/b', 'r', 100, 0, 7, 1)"
                ),
                {
                    "key": KEY,
                    "id": uuid4(),
                    "tenant": DEFAULT_TENANT,
                    "memory": TREE_ID,
                    "once": bytes([number]),
                    "purpose": purpose,
                },
            )
    report = await client.session(SESSION).usage(TREE)
    assert [(one.purpose, one.usage.calls) for one in report.lines] == [
        ("navigate", 1),
        ("summarize", 2),
    ]
    cost = await client.session(SESSION).cost_report(TREE)
    assert cost.total.calls == 3
    assert (cost.reading.prompts, cost.reading.total_tokens) == (2, 200)
    assert cost.comparison is None
    await tree.set_budget("total", limit_tokens=321)
    budgets = [one async for one in client.session(SESSION).budgets()]
    assert [(one.limit_tokens, one.spent_tokens) for one in budgets] == [(321, 321)]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"segment_tokens": 63}, "memory.tree.segment_tokens"),
        ({"segment_tokens": 100_001}, "memory.tree.segment_tokens"),
        ({"max_children": 1}, "memory.tree.max_children"),
        ({"max_children": 33}, "memory.tree.max_children"),
        ({"summary_tokens": 15}, "memory.tree.summary_tokens"),
        ({"working_memory_tokens": 15}, "memory.tree.working_memory_tokens"),
        ({"model": "m" * 257}, "memory.tree.model"),
        ({"navigation_model": "a\0b"}, "memory.tree.navigation_model"),
    ],
)
async def test_a_wrong_setting_is_named(
    client: palimpsest.Client, tree: Tree, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(palimpsest.InvalidArgument) as caught:
        await client.session(SESSION).create_tree("bad", **settings)
    assert list(caught.value.fields) == [field]
    assert len(await client.session(SESSION).memories()) == 2


async def test_a_choice_that_there_is_not_is_refused_before_it_is_sent(
    client: palimpsest.Client,
) -> None:
    wrong: dict[str, Any] = {"working_memory": "all"}
    with pytest.raises(ValueError, match="working_memory must be 'off' or 'cut' or 'summarized'"):
        await client.session("nobody").create_tree("t", **wrong)


def test_the_same_without_await(at: tuple[str, str]) -> None:
    with sync.Client(at[1]) as client:
        session = client.create_session(f"s-{uuid4().hex}")
        tree = session.create_tree("t", max_children=4)
        assert session.tree("t").outline().tops == ()
        assert list(tree.level(0)) == []
        tree.rebuild("n")
        assert session.tree("n").get().info.rebuilt_from == "t"
        assert tree.seal().kind == "seal"
        with pytest.raises(palimpsest.NotFound):
            tree.node("0.1")
        with pytest.raises(palimpsest.NotFound):
            list(tree.children("0.1"))
        with pytest.raises(palimpsest.NotFound):
            list(tree.text("0.1"))
