"""TreeService."""

from uuid import UUID

from palimpsest.v1 import common_pb2, operations_pb2, tree_service_pb2, tree_service_pb2_grpc
from service.domain.tree.nodes import TextOffset
from service.rpc.convert import common as convert
from service.rpc.convert import operations, trees
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.usecases.memories.memories import Memories
from service.usecases.tree.trees import Trees
from storage.memories.memories import StoredMemory

#: Text of a page, in bytes.
TEXT_BYTES = 1024 * 1024

_Read = (
    tree_service_pb2.GetTreeRequest
    | tree_service_pb2.GetNodeRequest
    | tree_service_pb2.ListNodesRequest
    | tree_service_pb2.GetNodeTextRequest
)


class TreeService(tree_service_pb2_grpc.TreeServiceServicer):
    """See tree_service.proto."""

    def __init__(self, trees: Trees, memories: Memories, pages: Pages) -> None:
        self._trees = trees
        self._memories = memories
        self._pages = pages

    async def GetTree(  # noqa: N802 - named by the proto
        self, request: tree_service_pb2.GetTreeRequest, context: Context
    ) -> tree_service_pb2.Tree:
        """Reads the outline of a tree."""
        named = await self._caught_up(request, context)
        revision = request.revision if request.HasField("revision") else None
        stored, outline = await self._trees.outline(*named, revision)
        token = self._memories.read_token(stored, outline.applied_position)
        return trees.tree(stored, outline, token)

    async def GetNode(  # noqa: N802
        self, request: tree_service_pb2.GetNodeRequest, context: Context
    ) -> tree_service_pb2.TreeNode:
        """Reads a node."""
        named = await self._caught_up(request, context)
        return trees.node(await self._trees.node(*named, request.node))

    async def ListNodes(  # noqa: N802
        self, request: tree_service_pb2.ListNodesRequest, context: Context
    ) -> tree_service_pb2.ListNodesResponse:
        """Lists the children of a node, or a level."""
        of_parent = request.WhichOneof("scope") == "parent"
        of = f"under {request.parent}" if of_parent else f"level {request.level}"
        scope = f"nodes/{request.session}/{request.memory}/{of}"
        size = self._pages.size(request.page_size)
        after = int(self._pages.cursor(scope, request.page_token, first="0"))
        named = await self._caught_up(request, context)
        if of_parent:
            stored, found = await self._trees.children(*named, request.parent, after, size + 1)
        else:
            stored, found = await self._trees.level(
                *named, request.level, after, size + 1, max_bytes=self._pages.max_bytes
            )
        page, token = self._pages.cut(
            [trees.node(one) for one in found[:size]],
            scope,
            lambda one: str(one.number),
            more=len(found) > size,
        )
        return tree_service_pb2.ListNodesResponse(
            nodes=page, next_page_token=token, read_point=self._read_point(stored)
        )

    async def GetNodeText(  # noqa: N802
        self, request: tree_service_pb2.GetNodeTextRequest, context: Context
    ) -> tree_service_pb2.GetNodeTextResponse:
        """Reads the text under a node."""
        scope = f"text/{request.session}/{request.memory}/{request.node}"
        cursor = self._pages.cursor(scope, request.page_token, first="")
        named = await self._caught_up(request, context)
        stored, parts, following = await self._trees.text(
            *named, request.node, _offset(cursor) if cursor else None, TEXT_BYTES
        )
        response = tree_service_pb2.GetNodeTextResponse(
            parts=[trees.part(part) for part in parts], read_point=self._read_point(stored)
        )
        if following is not None:
            token = f"{following.position}.{following.offset}"
            response.next_page_token = self._pages.next(scope, token)
        return response

    async def SealTree(  # noqa: N802
        self, request: tree_service_pb2.SealTreeRequest, context: Context
    ) -> operations_pb2.Operation:
        """Seals a tree."""
        sealed = self._trees.seal(current_tenant(), request.session, request.memory)
        return await reply(sealed, operations.operation)

    async def _caught_up(self, request: _Read, context: Context) -> tuple[UUID, str, str]:
        """Waits until the tree is as fresh as asked; returns what names it."""
        named = current_tenant(), request.session, request.memory
        wanted = convert.consistency(request.consistency)
        await self._memories.catch_up(*named, wanted, deadline=deadline_of(context))
        return named

    def _read_point(self, stored: StoredMemory) -> common_pb2.ReadPoint:
        applied = stored.applied_position
        token = self._memories.read_token(stored, applied)
        return convert.read_point(stored.revision, applied, token)


def _offset(text: str) -> TextOffset:
    position, _, offset = text.partition(".")
    return TextOffset(int(position), int(offset))
