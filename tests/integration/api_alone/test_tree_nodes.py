"""Trees over gRPC: their outline, their nodes, and the text under them."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import TextRange, Tree
from palimpsest.v1 import tree_service_pb2, tree_service_pb2_grpc
from service.domain.tree.nodes import Node
from tests.integration.api_alone.refusals import refusal
from tests.integration.api_alone.written_tree import TEXTS, free
from tests.integration.support.forests import SESSION, TREE


async def test_the_outline_has_levels_tops_and_the_tail(tree: Tree, nodes: Sequence[Node]) -> None:
    outline = await tree.outline()
    read = outline.read_point
    assert (read.revision, read.applied_position) == (2, len(TEXTS))
    assert [(one.level, one.node_count) for one in outline.levels] == [
        (level, sum(one.level == level for one in nodes)) for level in range(4) if level < 3
    ]
    assert [one.id for one in outline.tops] == free(nodes)
    assert outline.tail == TextRange(
        first_position=28, first_offset=3, last_position=len(TEXTS), last_offset=0
    )
    assert (outline.info.kind, outline.info.status) == ("tree", "active")
    assert outline.info.tree is not None
    assert outline.info.tree.segment_tokens == 64
    assert outline.info.tree.summary_tokens == 250, "the service's default"


async def test_the_past_of_a_tree_stays(tree: Tree, nodes: Sequence[Node]) -> None:
    then = await tree.outline(revision=1)
    assert [one.id for one in then.tops] == free(nodes[:9])
    assert then.tail is not None
    assert then.tail.first_position == max(one.end for one in nodes[:9]).position
    empty = await tree.outline(revision=0)
    assert (empty.levels, empty.tops, empty.tail) == ((), (), None)
    assert empty.read_point.applied_position == 0
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await tree.outline(revision=3)
    assert caught.value.metadata == {"revision": "3", "newest": "2"}


async def test_nodes_know_their_places_and_kin(tree: Tree, nodes: Sequence[Node]) -> None:
    for one in nodes:
        found = await tree.node(one.node_id)
        assert (found.level, found.number, found.summary) == (one.level, one.number, one.summary)
        assert found.text_range == TextRange(
            first_position=one.start.position,
            first_offset=one.start.offset,
            last_position=one.to_position,
            last_offset=one.end.offset,
        )
        assert (found.origin, found.text_tokens) == (str(one.made), one.text_tokens)
        children = [child async for child in tree.children(one.node_id)]
        assert tuple(child.id for child in children) == found.children
        assert {child.parent for child in children} <= {one.node_id}
    assert {(await tree.node(name)).parent for name in free(nodes)} == {""}
    last = (await tree.node("0.28")).text_range
    assert (last.last_position, last.last_offset) == (28, 3)


async def test_a_level_comes_in_pages(client: palimpsest.Client, tree: Tree) -> None:
    stub = tree_service_pb2_grpc.TreeServiceStub(client.channel)
    for size in (1, 7, 28, 1000):
        request = tree_service_pb2.ListNodesRequest(
            session=SESSION, memory=TREE, level=0, page_size=size
        )
        numbers: list[int] = []
        async for page in client._connection.pages(stub.ListNodes, request):
            assert 0 < len(page.nodes) <= size
            numbers += [one.number for one in page.nodes]
        assert numbers == list(range(1, 29))
    assert [one async for one in tree.level(9)] == []
    under = tree_service_pb2.ListNodesRequest(
        session=SESSION, memory=TREE, parent="1.2", page_size=2
    )
    pages = [
        [one.id for one in page.nodes]
        async for page in client._connection.pages(stub.ListNodes, under)
    ]
    assert pages == [["0.4", "0.5"], ["0.6"]]


async def test_the_text_under_a_node_comes_in_pages(client: palimpsest.Client, tree: Tree) -> None:
    stub = tree_service_pb2_grpc.TreeServiceStub(client.channel)
    request = tree_service_pb2.GetNodeTextRequest(session=SESSION, memory=TREE, node="2.1")
    pages = [page async for page in client._connection.pages(stub.GetNodeText, request)]
    assert len(pages) == 2, "six chunks of 240 kB are more than 1 MiB"
    assert max(page.ByteSize() for page in pages) < 1_100_000
    parts = [part async for part in tree.text("2.1")]
    assert "".join(part.text for part in parts) == "".join(TEXTS[:9])
    assert [part.position for part in parts] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert [part.text async for part in tree.text("0.28")] == [TEXTS[27][:3]]


READS: list[tuple[str, dict[str, Any]]] = [
    ("GetTree", {}),
    ("GetNode", {"node": "0.1"}),
    ("ListNodes", {"level": 0}),
    ("GetNodeText", {"node": "0.1"}),
]
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("GetNode", {"node": "0.99"}, "NODE_NOT_FOUND"),
    ("GetNode", {"node": "00.1"}, "NODE_NOT_FOUND"),
    ("GetNode", {"node": "999.999999999999999999"}, "NODE_NOT_FOUND"),
    ("GetNodeText", {"node": "7.1"}, "NODE_NOT_FOUND"),
    ("ListNodes", {"parent": "7.1"}, "NODE_NOT_FOUND"),
    *(
        (call, {field: name}, "FIELD_INVALID")
        for name in ("", "root", "v1.1", "t.1", "0.0", "1", "-1.1", "0.1\n", "0." + "9" * 19)
        for call, field in (
            ("GetNode", "node"),
            ("GetNodeText", "node"),
            ("ListNodes", "parent"),
        )
    ),
    ("ListNodes", {}, "FIELD_INVALID"),
    ("ListNodes", {"level": 1000}, "FIELD_INVALID"),
    ("ListNodes", {"level": -1}, "FIELD_INVALID"),
    ("ListNodes", {"level": 0, "page_size": -1}, "FIELD_INVALID"),
    ("ListNodes", {"level": 0, "page_token": "AAAA"}, "TOKEN_INVALID"),
    ("GetNodeText", {"node": "0.1", "page_token": "no token"}, "TOKEN_INVALID"),
    ("GetNodeText", {"node": "0.1", "page_token": "x" * 4097}, "FIELD_INVALID"),
    ("GetTree", {"revision": 2**63 - 1}, "REVISION_NOT_FOUND"),
    ("GetTree", {"revision": -1}, "FIELD_INVALID"),
    ("GetTree", {"revision": 1, "consistency": {"fully_applied": True}}, "FIELD_INVALID"),
    *(
        (call, {**rest, "consistency": {"at_least": "no token"}}, "TOKEN_INVALID")
        for call, rest in READS
    ),
    *(
        (call, {**rest, "memory": name}, reason)
        for call, rest in READS
        for name, reason in (
            ("nothing", "MEMORY_NOT_FOUND"),
            ("no/name", "FIELD_INVALID"),
            ("facts", "WRONG_MEMORY_KIND"),
        )
    ),
]


@pytest.mark.parametrize(("call", "fields", "reason"), WRONG)
async def test_what_is_wrong_with_a_call_is_said(
    client: palimpsest.Client, tree: Tree, call: str, fields: dict[str, Any], reason: str
) -> None:
    stub = tree_service_pb2_grpc.TreeServiceStub(client.channel)
    request = getattr(tree_service_pb2, f"{call}Request")(
        **{"session": SESSION, "memory": TREE, **fields}
    )
    refused = await refusal(client, getattr(stub, call), request)
    assert refused.reason == reason
    if reason == "NODE_NOT_FOUND":
        node = fields.get("node", fields.get("parent"))
        assert refused.metadata == {
            "session": refused.metadata["session"],
            "memory": TREE,
            "node": node,
        }
    if reason == "WRONG_MEMORY_KIND":
        assert refused.metadata == {"memory": "facts", "kind": "prism", "wanted": "tree"}


async def test_a_token_is_for_its_own_list(client: palimpsest.Client, tree: Tree) -> None:
    stub = tree_service_pb2_grpc.TreeServiceStub(client.channel)
    named: dict[str, Any] = {"session": SESSION, "memory": TREE}
    first = tree_service_pb2.ListNodesRequest(**named, level=0, page_size=2)
    token = (await stub.ListNodes(first)).next_page_token
    for other in (
        {"level": 1, "page_token": token},
        {"parent": "1.1", "page_token": token},
    ):
        refused = await refusal(
            client, stub.ListNodes, tree_service_pb2.ListNodesRequest(**named, **other)
        )
        assert refused.reason == "TOKEN_INVALID"


async def test_a_session_that_is_not_there_is_named(client: palimpsest.Client) -> None:
    with pytest.raises(palimpsest.NotFound) as caught:
        await client.session("nobody").tree("t").outline()
    assert caught.value.reason == "SESSION_NOT_FOUND"


@pytest.mark.parametrize(("call", "fields"), READS)
async def test_reads_say_what_they_read_and_wait_for_it(
    client: palimpsest.Client, tree: Tree, call: str, fields: dict[str, Any]
) -> None:
    stub = tree_service_pb2_grpc.TreeServiceStub(client.channel)
    request = getattr(tree_service_pb2, f"{call}Request")(session=SESSION, memory=TREE, **fields)
    response = await client.call(getattr(stub, call), request)
    if call != "GetNode":
        read = response.read_point
        assert (read.revision, read.applied_position) == (2, len(TEXTS))
        request.consistency.at_least = read.read_token
    request.consistency.fully_applied = True
    assert await client.call(getattr(stub, call), request) == response


@pytest.mark.prove
async def test_a_read_waits_for_what_is_not_in_the_tree(at: tuple[str, str]) -> None:
    async with palimpsest.connect(at[1], timeout=1.0) as client:
        session = await client.create_session(f"behind-{uuid4().hex}")
        tree = await session.create_tree("t")
        await session.append("It rains.")
        for read in (
            tree.outline(fully_applied=True),
            tree.node("0.1", fully_applied=True, timeout=0.5),
            anext(tree.level(0, fully_applied=True)),
            anext(tree.text("0.1", fully_applied=True)),
        ):
            with pytest.raises(palimpsest.DeadlineExceeded) as late:
                await read
            assert late.value.reason == "NOT_APPLIED_IN_TIME"
