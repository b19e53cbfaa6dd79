"""Trees over gRPC: their nodes, their text, closing them, and trees as memories.

No worker runs: the nodes are written by hand.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

import palimpsest
from palimpsest import Tree, errors, sync
from palimpsest.v1 import (
    edits_pb2,
    edits_pb2_grpc,
    history_pb2,
    history_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    trees_pb2,
    trees_pb2_grpc,
    usage_pb2,
    usage_pb2_grpc,
)
from service.domain.tenancy import DEFAULT_TENANT
from service.domain.tree.nodes import Node, Place
from storage import work
from storage.database import Database
from tests.harness import Servers, api
from tests.integration.forests import KEY, SESSION, TREE, TREE_ID, add, grown, leaf

#: The first chunks are large, so that a node's text has several pages.
TEXTS = [f"{n}" + "é" * 120_000 for n in range(6)] + [f"text {n}" for n in range(6, 30)]
#: Leaves end in the middle of chunk 28; what follows is the tail.
LEAVES = [leaf(n, Place(n), Place(n + 1)) for n in range(1, 28)] + [
    leaf(28, Place(28), Place(28, 3))
]
SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"


@pytest.fixture(scope="module")
def at(servers: Servers) -> Iterator[tuple[str, str]]:
    """A database, and the address of an API on it."""
    url = servers.new_database()
    with api(url) as (_, address):
        yield url, address


@pytest.fixture(scope="module")
async def client(at: tuple[str, str]) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(at[1]) as client:
        yield client


@pytest.fixture(scope="module")
async def database(at: tuple[str, str]) -> AsyncIterator[Database]:
    database = Database.connect(at[0], pool_size=2, name="test")
    yield database
    await database.close()


@pytest.fixture(scope="module")
async def nodes(client: palimpsest.Client, database: Database) -> Sequence[Node]:
    """A session with a PRISM memory and a tree that nobody builds on; the tree's nodes."""
    session = await client.create_session(SESSION)
    await session.create_tree(TREE, segment_tokens=64, max_children=3)
    await session.create_memory("facts", SCHEMA)
    async with session.producer("p") as producer:
        for one in TEXTS:
            await producer.append(one)
        await producer.flush()
    made = grown(LEAVES, 3, 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await add(tx, [made[:9], made[9:]], len(TEXTS))
    return made


@pytest.fixture
def tree(client: palimpsest.Client, nodes: Sequence[Node]) -> Tree:
    return client.session(SESSION).tree(TREE)


def free(nodes: Sequence[Node]) -> list[str]:
    """The ids of those without a parent, in the order of the text."""
    below = {f"{n.level - 1}.{n.first_child + k}" for n in nodes for k in range(n.children)}
    left = [one for one in nodes if one.node_id not in below]
    return [one.node_id for one in sorted(left, key=lambda one: one.start)]


async def test_the_outline_has_levels_tops_and_the_tail(tree: Tree, nodes: Sequence[Node]) -> None:
    outline = await tree.outline()
    assert (outline.revision, outline.applied_position) == (2, len(TEXTS))
    assert [(one.level, one.nodes) for one in outline.levels] == [
        (level, sum(one.level == level for one in nodes)) for level in range(4) if level < 3
    ]
    assert [one.node_id for one in outline.tops] == free(nodes)
    assert outline.tail is not None
    assert (outline.tail.from_position, outline.tail.from_offset) == (28, 3)
    assert outline.tail.to_position == len(TEXTS)
    assert (outline.info.kind, outline.info.status) == ("tree", "active")
    assert outline.info.tree is not None
    assert outline.info.tree.segment_tokens == 64
    assert outline.info.tree.summary_tokens == 250, "the service's default"


async def test_the_past_of_a_tree_stays(tree: Tree, nodes: Sequence[Node]) -> None:
    then = await tree.outline(revision=1)
    assert [one.node_id for one in then.tops] == free(nodes[:9])
    assert then.tail is not None
    assert then.tail.from_position == max(one.end for one in nodes[:9]).position
    empty = await tree.outline(revision=0)
    assert (empty.levels, empty.tops, empty.tail, empty.applied_position) == ((), (), None, 0)
    with pytest.raises(errors.OutOfRange) as caught:
        await tree.outline(revision=3)
    assert caught.value.metadata == {"revision": "3", "newest": "2"}


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
    with pytest.raises(errors.OutOfRange) as caught:
        await tree.get(revision=3)
    assert caught.value.reason == "REVISION_NOT_FOUND"
    with pytest.raises(errors.OutOfRange) as caught:
        await tree.get(position=31)
    assert caught.value.reason == "POSITION_NOT_APPLIED"


async def test_the_value_is_canonical(client: palimpsest.Client, tree: Tree) -> None:
    stub = memories_pb2_grpc.MemoryServiceStub(client.channel)
    named = memories_pb2.GetMemoryRequest(session=SESSION, memory=TREE)
    response = await stub.GetMemory(named)
    value = json.loads(response.value_json)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert response.value_json == compact
    assert list(value) == ["sealed", "tops", "tail"]


async def test_nodes_know_their_places_and_kin(tree: Tree, nodes: Sequence[Node]) -> None:
    for one in nodes:
        found = await tree.node(one.node_id)
        assert (found.level, found.number, found.summary) == (one.level, one.number, one.summary)
        assert (found.from_position, found.from_offset) == (one.start.position, one.start.offset)
        assert (found.to_position, found.to_offset) == (one.to_position, one.end.offset)
        assert (found.made, found.text_tokens) == (str(one.made), one.text_tokens)
        children = [child async for child in tree.children(one.node_id)]
        assert tuple(child.node_id for child in children) == found.child_ids
        assert {child.parent_id for child in children} <= {one.node_id}
    assert {(await tree.node(name)).parent_id for name in free(nodes)} == {""}
    last = await tree.node("0.28")
    assert (last.to_position, last.to_offset) == (28, 3)


async def test_a_level_comes_in_pages(client: palimpsest.Client, tree: Tree) -> None:
    stub = trees_pb2_grpc.TreeServiceStub(client.channel)
    for size in (1, 7, 28, 1000):
        request = trees_pb2.ListNodesRequest(session=SESSION, memory=TREE, level=0, page_size=size)
        numbers: list[int] = []
        async for page in client.pages(stub.ListNodes, request):
            assert 0 < len(page.nodes) <= size
            numbers += [one.number for one in page.nodes]
        assert numbers == list(range(1, 29))
    assert [one.node_id async for one in tree.level(9)] == []
    under = trees_pb2.ListNodesRequest(session=SESSION, memory=TREE, parent_id="1.2", page_size=2)
    pages = [
        [one.node_id for one in page.nodes] async for page in client.pages(stub.ListNodes, under)
    ]
    assert pages == [["0.4", "0.5"], ["0.6"]]


async def test_the_text_under_a_node_comes_in_pages(client: palimpsest.Client, tree: Tree) -> None:
    stub = trees_pb2_grpc.TreeServiceStub(client.channel)
    request = trees_pb2.GetNodeTextRequest(session=SESSION, memory=TREE, node_id="2.1")
    pages = [page async for page in client.pages(stub.GetNodeText, request)]
    assert len(pages) == 2, "six chunks of 240 kB are more than 1 MiB"
    assert max(page.ByteSize() for page in pages) < 1_100_000
    parts = [part async for part in tree.text("2.1")]
    assert "".join(part.text for part in parts) == "".join(TEXTS[:9])
    assert [part.position for part in parts] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert [part.text async for part in tree.text("0.28")] == [TEXTS[27][:3]]


WRONG = [
    ("GetNode", {"node_id": "0.99"}, "NODE_NOT_FOUND"),
    ("GetNode", {"node_id": "00.1"}, "NODE_NOT_FOUND"),
    ("GetNode", {"node_id": "999.999999999999999999"}, "NODE_NOT_FOUND"),
    ("GetNodeText", {"node_id": "7.1"}, "NODE_NOT_FOUND"),
    ("ListNodes", {"parent_id": "7.1"}, "NODE_NOT_FOUND"),
    *(
        (call, {field: name}, "FIELD_INVALID")
        for name in ("", "root", "v1.1", "t.1", "0.0", "1", "-1.1", "0.1\n", "0." + "9" * 19)
        for call, field in (
            ("GetNode", "node_id"),
            ("GetNodeText", "node_id"),
            ("ListNodes", "parent_id"),
        )
    ),
    ("ListNodes", {}, "FIELD_INVALID"),
    ("ListNodes", {"level": 1000}, "FIELD_INVALID"),
    ("ListNodes", {"level": 0, "page_size": 1001}, "FIELD_INVALID"),
    ("ListNodes", {"level": 0, "page_token": "AAAA"}, "TOKEN_INVALID"),
    ("GetNodeText", {"node_id": "0.1", "page_token": "no token"}, "TOKEN_INVALID"),
    ("GetNodeText", {"node_id": "0.1", "page_token": "x" * 513}, "FIELD_INVALID"),
    ("GetTree", {"revision": 2**64 - 1}, "REVISION_NOT_FOUND"),
    *(
        (call, {**rest, "memory": name}, reason)
        for call, rest in (
            ("SealTree", {}),
            ("GetTree", {}),
            ("GetNode", {"node_id": "0.1"}),
            ("ListNodes", {"level": 0}),
            ("GetNodeText", {"node_id": "0.1"}),
        )
        for name, reason in (
            ("nothing", "MEMORY_NOT_FOUND"),
            ("No", "FIELD_INVALID"),
            ("facts", "WRONG_MEMORY_KIND"),
        )
    ),
]


async def refusal(client: palimpsest.Client, method: Any, request: Any) -> errors.PalimpsestError:
    with pytest.raises(errors.PalimpsestError) as caught:
        await client.call(method, request, retry=False)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("call", "fields", "reason"), WRONG)
async def test_what_is_wrong_with_a_call_is_said(
    client: palimpsest.Client, tree: Tree, call: str, fields: dict[str, Any], reason: str
) -> None:
    stub = trees_pb2_grpc.TreeServiceStub(client.channel)
    request = getattr(trees_pb2, f"{call}Request")(**{"session": SESSION, "memory": TREE, **fields})
    refused = await refusal(client, getattr(stub, call), request)
    assert refused.reason == reason
    if reason == "NODE_NOT_FOUND":
        node = fields.get("node_id", fields.get("parent_id"))
        assert refused.metadata == {"memory": TREE, "node": node}
    if reason == "WRONG_MEMORY_KIND":
        assert refused.metadata == {"memory": "facts", "kind": "prism", "wanted": "tree"}


async def test_a_token_is_for_its_own_list(client: palimpsest.Client, tree: Tree) -> None:
    stub = trees_pb2_grpc.TreeServiceStub(client.channel)
    named: dict[str, Any] = {"session": SESSION, "memory": TREE}
    first = trees_pb2.ListNodesRequest(**named, level=0, page_size=2)
    token = (await stub.ListNodes(first)).next_page_token
    for other in (
        {"level": 1, "page_token": token},
        {"parent_id": "1.1", "page_token": token},
    ):
        refused = await refusal(
            client, stub.ListNodes, trees_pb2.ListNodesRequest(**named, **other)
        )
        assert refused.reason == "TOKEN_INVALID"


NAMED: dict[str, Any] = {"session": SESSION, "memory": TREE}
#: Every call that is for PRISM memories, asked of a tree.
FOR_PRISM = [
    (
        edits_pb2_grpc.EditServiceStub,
        "ReviseMemory",
        edits_pb2.ReviseMemoryRequest(**NAMED, edits=[edits_pb2.Edit(path="$.a", value_json="1")]),
    ),
    (
        edits_pb2_grpc.EditServiceStub,
        "RollbackMemory",
        edits_pb2.RollbackMemoryRequest(**NAMED, revision=0),
    ),
    (edits_pb2_grpc.EditServiceStub, "FoldMemory", edits_pb2.FoldMemoryRequest(**NAMED)),
    (
        edits_pb2_grpc.EditServiceStub,
        "ConsolidateMemory",
        edits_pb2.ConsolidateMemoryRequest(**NAMED),
    ),
    (
        edits_pb2_grpc.EditServiceStub,
        "UpdateSchema",
        edits_pb2.UpdateSchemaRequest(**NAMED, schema_source=SCHEMA),
    ),
    (
        memories_pb2_grpc.MemoryServiceStub,
        "ListAmendments",
        memories_pb2.ListAmendmentsRequest(**NAMED),
    ),
    (
        memories_pb2_grpc.MemoryServiceStub,
        "ListAmendments",
        memories_pb2.ListAmendmentsRequest(**NAMED, path_prefix="$.a"),
    ),
    (
        memories_pb2_grpc.MemoryServiceStub,
        "ListRejections",
        memories_pb2.ListRejectionsRequest(**NAMED),
    ),
    (
        history_pb2_grpc.HistoryServiceStub,
        "GetProvenance",
        history_pb2.GetProvenanceRequest(**NAMED, path="$.a"),
    ),
    (
        history_pb2_grpc.HistoryServiceStub,
        "DiffMemories",
        history_pb2.DiffMemoriesRequest(**NAMED, revision=0),
    ),
    (
        history_pb2_grpc.HistoryServiceStub,
        "DiffMemories",
        history_pb2.DiffMemoriesRequest(session=SESSION, memory="facts", other_memory=TREE),
    ),
]


async def rows(database: Database) -> list[Any]:
    """All that a call could have touched."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.connection.execute(text("SELECT memory::text FROM memory ORDER BY 1"))
        count = await tx.connection.execute(text("SELECT count(*) FROM revision"))
        return [*found.scalars(), count.scalar_one()]


@pytest.mark.parametrize(("stub", "call", "request_"), FOR_PRISM, ids=[c for _, c, _ in FOR_PRISM])
async def test_what_is_for_prism_memories_leaves_a_tree_alone(
    client: palimpsest.Client, database: Database, tree: Tree, stub: Any, call: str, request_: Any
) -> None:
    before = await rows(database)
    refused = await refusal(client, getattr(stub(client.channel), call), request_)
    assert refused.reason == "WRONG_MEMORY_KIND"
    assert refused.metadata == {"memory": TREE, "kind": "tree", "wanted": "prism"}
    assert await rows(database) == before


SETTINGS = memories_pb2.TreeSpec(segment_tokens=100, max_children=4)


@pytest.mark.parametrize(
    ("memory", "changes", "wanted"),
    [
        (TREE, {"task": "t"}, "prism"),
        (TREE, {"question": ""}, "prism"),
        (TREE, {"schema_source": SCHEMA}, "prism"),
        (
            TREE,
            {"json_schema": '{"type": "object", "properties": {"a": {"type": "string"}}}'},
            "prism",
        ),
        (TREE, {"encoding": 2}, "prism"),
        (TREE, {"chunk_tokens": 9}, "prism"),
        (TREE, {"operations": 2}, "prism"),
        (TREE, {"tree": SETTINGS, "task": "t"}, "prism"),
        ("facts", {"tree": SETTINGS}, "tree"),
    ],
)
async def test_a_rebuild_with_settings_of_another_kind_is_refused(
    client: palimpsest.Client,
    database: Database,
    tree: Tree,
    memory: str,
    changes: dict[str, Any],
    wanted: str,
) -> None:
    before = await rows(database)
    stub = edits_pb2_grpc.EditServiceStub(client.channel)
    request = edits_pb2.RebuildMemoryRequest(
        session=SESSION, memory=memory, new_memory="new", **changes
    )

    async def first(request: Any, **_: Any) -> Any:
        return await anext(aiter(stub.RebuildMemory(request)))

    refused = await refusal(client, first, request)
    assert refused.reason == "WRONG_MEMORY_KIND"
    assert refused.metadata["wanted"] == wanted
    assert await rows(database) == before


async def test_a_rebuilt_tree_is_the_same_but_for_what_is_named(client: palimpsest.Client) -> None:
    session = await client.create_session(f"s-{uuid4().hex}")
    tree = await session.create_tree(
        "old", segment_tokens=90, reasoning=False, working_memory="off", navigation_model="a/b"
    )
    old = (await tree.get()).info.tree
    assert old is not None
    same = (await (await tree.rebuild("same")).get()).info
    assert (same.tree, same.rebuilt_from, same.kind) == (old, "old", "tree")
    other = (await (await tree.rebuild("other", model="c/d")).get()).info
    assert other.tree is not None
    assert (other.tree.model, other.tree.segment_tokens) == ("c/d", 90)
    settings = palimpsest.TreeSettings(max_children=3)
    whole = (await (await tree.rebuild("whole", settings=settings, model="e/f")).get()).info
    assert whole.tree is not None
    assert (whole.tree.model, whole.tree.max_children) == ("e/f", 3)
    assert (whole.tree.segment_tokens, whole.tree.navigation_model) == (1000, "")


async def test_lists_and_watches_know_trees(client: palimpsest.Client, tree: Tree) -> None:
    listed = await client.session(SESSION).memories()
    assert [(one.name, one.kind) for one in listed] == [(TREE, "tree"), ("facts", "prism")]
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
            await tx.connection.execute(
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
    stub = usage_pb2_grpc.UsageServiceStub(client.channel)
    cost = await stub.GetCost(usage_pb2.GetCostRequest(session=SESSION, memory=TREE))
    assert cost.total.calls == 3
    assert (cost.reading.prompts, cost.reading.total_tokens) == (2, 200)
    assert not cost.HasField("comparison")
    await tree.set_budget("total", limit_tokens=321)
    budgets = [one async for one in client.session(SESSION).budgets()]
    assert [(one.limit_tokens, one.spent_tokens) for one in budgets] == [(321, 321)]


@pytest.fixture
async def closing(client: palimpsest.Client, database: Database) -> palimpsest.Tree:
    """A tree over two chunks that nobody builds."""
    session = await client.create_session(f"s-{uuid4().hex}")
    tree = await session.create_tree("t")
    async with session.producer("p") as producer:
        await producer.append("one")
        await producer.append("two")
        await producer.flush()
    return tree


async def append(tree: Tree, *texts: str) -> str:
    async with tree.session.producer(f"p-{uuid4().hex}") as producer:
        for one in texts:
            await producer.append(one)
        ack = await producer.flush()
    assert ack is not None
    return ack.token


async def set_row(database: Database, tree: Tree, changes: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        done = await tx.connection.execute(
            text(
                f"UPDATE memory SET {changes} WHERE name = :name AND session_key ="
                " (SELECT session_key FROM session WHERE name = :session)"
            ),
            {"name": tree.name, "session": tree.session.name},
        )
        assert done.rowcount == 1


async def test_closing_is_kept_once(closing: Tree) -> None:
    assert (await closing.get()).info.seal_position is None
    info = await closing.seal(wait=False)
    assert (info.seal_position, info.status) == (2, "active")
    await append(closing, "three")
    again = await closing.seal(wait=False)
    assert (again.seal_position, again.head) == (2, 3)


async def test_what_lies_behind_a_closed_tree_is_refused_at_once(closing: Tree) -> None:
    until_two = (await closing.flush()).token
    await closing.seal(wait=False)
    token = await append(closing, "three")
    wanted: list[dict[str, Any]] = [{"after": token}, {"fully_applied": True}]
    for options in wanted:
        with pytest.raises(errors.FailedPrecondition) as caught:
            await closing.get(**options, timeout=600)
        assert caught.value.reason == "MEMORY_SEALED"
        assert caught.value.metadata == {"memory": "t", "wanted": "3", "applied_position": "0"}
        with pytest.raises(errors.FailedPrecondition) as caught:
            await closing.ask("What?", **options, timeout=600)
        assert caught.value.reason == "MEMORY_SEALED"
    # What it will have is waited for.
    with pytest.raises(errors.DeadlineExceeded):
        await closing.get(after=until_two, timeout=0.3)


async def test_a_closed_tree_neither_wakes_nor_holds_up(closing: Tree, database: Database) -> None:
    await closing.seal(wait=False)
    await set_row(database, closing, "status = 'sealed', has_work = false")
    for _ in range(3):
        await append(closing, "more")
    async with database.sweeping() as connection:
        items = await work.runnable(connection, 1000)
    info = (await closing.get()).info
    assert (info.status, info.head, info.applied_position) == ("sealed", 5, 0)
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.connection.execute(
            text("SELECT memory_id FROM memory WHERE name = 't' AND status = 'sealed'")
        )
        assert not {one.item_id for one in items} & set(found.scalars())
    assert (await closing.seal()).seal_position == 2
    assert (await closing.get()).value["sealed"] is True
    assert (await closing.outline()).info.status == "sealed"


async def test_a_stalled_tree_is_retried(closing: Tree, database: Database) -> None:
    await set_row(database, closing, "status = 'stalled', has_work = false")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.connection.execute(
            text(
                "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id,"
                " from_position, to_position, attempts, cause)"
                " SELECT session_key, memory_id, gen_random_uuid(), tenant_id, 0, 1, 3, 'no model'"
                " FROM memory WHERE name = 't' AND status = 'stalled'"
            )
        )
    with pytest.raises(errors.FailedPrecondition, match="no model"):
        await closing.seal()
    assert (await closing.retry()).status == "active"
    assert (await closing.get()).info.seal_position == 2


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"segment_tokens": 63}, "tree.segment_tokens"),
        ({"segment_tokens": 100_001}, "tree.segment_tokens"),
        ({"max_children": 1}, "tree.max_children"),
        ({"max_children": 33}, "tree.max_children"),
        ({"summary_tokens": 15}, "tree.summary_tokens"),
        ({"working_memory_tokens": 15}, "tree.working_memory_tokens"),
        ({"model": "m" * 201}, "tree.model"),
        ({"navigation_model": "a\0b"}, "tree.navigation_model"),
    ],
)
async def test_a_wrong_setting_is_named(
    client: palimpsest.Client, tree: Tree, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        await client.session(SESSION).create_tree("bad", **settings)
    assert list(caught.value.fields) == [field]
    assert len(await client.session(SESSION).memories()) == 2


async def test_a_choice_that_there_is_not_is_refused_before_it_is_sent(
    client: palimpsest.Client,
) -> None:
    wrong: dict[str, Any] = {"working_memory": "all"}
    with pytest.raises(ValueError, match="working_memory must be 'cut' or 'off' or 'summarized'"):
        await client.session("nobody").create_tree("t", **wrong)


def test_the_same_without_await(at: tuple[str, str]) -> None:
    with sync.Client(at[1]) as client:
        session = client.create_session(f"s-{uuid4().hex}")
        tree = session.create_tree("t", max_children=4)
        assert session.tree("t").outline().tops == ()
        assert list(tree.level(0)) == []
        assert tree.rebuild("n").get().info.rebuilt_from == "t"
        assert tree.seal(wait=False).seal_position == 0
        with pytest.raises(errors.NotFound):
            tree.node("0.1")
        with pytest.raises(errors.NotFound):
            list(tree.children("0.1"))
        with pytest.raises(errors.NotFound):
            list(tree.text("0.1"))


async def test_a_session_that_is_not_there_is_named(client: palimpsest.Client) -> None:
    with pytest.raises(errors.NotFound) as caught:
        await client.session("nobody").tree("t").outline()
    assert caught.value.reason == "SESSION_NOT_FOUND"
