"""TreeService."""

from palimpsest.v1alpha1 import trees_pb2, trees_pb2_grpc
from service.domain.tree.nodes import SummarySource, TextOffset
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.tree.trees import Trees
from storage.tree.views import StoredNode

#: Text of a page, in bytes.
TEXT_BYTES = 1024 * 1024

_MADE = {
    SummarySource.MODEL: trees_pb2.TreeNode.MADE_MODEL,
    SummarySource.JOINED: trees_pb2.TreeNode.MADE_JOINED,
    SummarySource.CUT: trees_pb2.TreeNode.MADE_CUT,
    SummarySource.SKIPPED: trees_pb2.TreeNode.MADE_SKIPPED,
}


class TreeService(trees_pb2_grpc.TreeServiceServicer):
    """See trees.proto."""

    def __init__(self, trees: Trees, pages: Pages) -> None:
        self._trees = trees
        self._pages = pages

    async def GetTree(  # noqa: N802 - named by the proto
        self, request: trees_pb2.GetTreeRequest, context: Context
    ) -> trees_pb2.GetTreeResponse:
        """Reads the outline of a tree."""
        revision = request.revision if request.HasField("revision") else None
        stored, outline = await self._trees.outline(
            current_tenant(), request.session, request.memory, revision
        )
        response = trees_pb2.GetTreeResponse(
            memory=convert.memory(stored),
            revision=outline.revision,
            applied_position=outline.applied_position,
            levels=[
                trees_pb2.GetTreeResponse.Level(level=one.level, nodes=one.nodes)
                for one in outline.levels
            ],
            tops=[
                _node(top, summary)
                for top, summary in zip(outline.tops, outline.summaries, strict=True)
            ],
        )
        if outline.tail is not None:
            response.tail.from_position = outline.tail.position
            response.tail.from_offset = outline.tail.offset
            response.tail.to_position = outline.applied_position
        return response

    async def GetNode(  # noqa: N802
        self, request: trees_pb2.GetNodeRequest, context: Context
    ) -> trees_pb2.GetNodeResponse:
        """Reads a node."""
        found = await self._trees.node(
            current_tenant(), request.session, request.memory, request.node_id
        )
        return trees_pb2.GetNodeResponse(node=_node(found, found.node.summary))

    async def ListNodes(  # noqa: N802
        self, request: trees_pb2.ListNodesRequest, context: Context
    ) -> trees_pb2.ListNodesResponse:
        """Lists the children of a node, or a level."""
        named = (current_tenant(), request.session, request.memory)
        of_parent = request.WhichOneof("of") == "parent_id"
        of = f"under {request.parent_id}" if of_parent else f"level {request.level}"
        scope = f"nodes/{request.session}/{request.memory}/{of}"
        size = self._pages.size(request.page_size)
        after = int(self._pages.cursor(scope, request.page_token, first="0"))
        if of_parent:
            found = await self._trees.children(*named, request.parent_id, after, size + 1)
        else:
            found = await self._trees.level(
                *named, request.level, after, size + 1, max_bytes=self._pages.max_bytes
            )
        page, token = self._pages.cut(
            [_node(one, one.node.summary) for one in found[:size]],
            scope,
            lambda one: str(one.number),
            more=len(found) > size,
        )
        return trees_pb2.ListNodesResponse(nodes=page, next_page_token=token)

    async def GetNodeText(  # noqa: N802
        self, request: trees_pb2.GetNodeTextRequest, context: Context
    ) -> trees_pb2.GetNodeTextResponse:
        """Reads the text under a node."""
        scope = f"text/{request.session}/{request.memory}/{request.node_id}"
        cursor = self._pages.cursor(scope, request.page_token, first="")
        parts, following = await self._trees.text(
            current_tenant(),
            request.session,
            request.memory,
            request.node_id,
            _offset(cursor) if cursor else None,
            TEXT_BYTES,
        )
        response = trees_pb2.GetNodeTextResponse(
            parts=[
                trees_pb2.GetNodeTextResponse.Part(
                    position=part.position,
                    from_offset=part.from_offset,
                    to_offset=part.to_offset,
                    text=part.text,
                )
                for part in parts
            ]
        )
        if following is not None:
            token = f"{following.position}.{following.offset}"
            response.next_page_token = self._pages.next(scope, token)
        return response


def _offset(text: str) -> TextOffset:
    position, _, offset = text.partition(".")
    return TextOffset(int(position), int(offset))


def _node(stored: StoredNode, summary: str) -> trees_pb2.TreeNode:
    node = stored.node
    return trees_pb2.TreeNode(
        node_id=node.node_id,
        level=node.level,
        number=node.number,
        parent_id=stored.parent_id or "",
        child_ids=stored.child_ids,
        from_position=node.start.position,
        from_offset=node.start.offset,
        to_position=node.to_position,
        to_offset=node.end.offset,
        summary=summary,
        made=_MADE[node.made],
        text_tokens=node.text_tokens,
        summary_tokens=node.summary_tokens,
        revision=stored.revision,
        create_time=convert.timestamp(stored.created_at),
    )
