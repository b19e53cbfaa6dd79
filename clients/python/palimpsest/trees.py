"""A summary tree: its nodes, the text under them, and closing it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from palimpsest import convert, rebuilding, specs, values
from palimpsest.connection import Connection
from palimpsest.errors import DeadlineExceeded
from palimpsest.memory import Memory
from palimpsest.tree_values import TextPart, TreeNode, TreeSettings
from palimpsest.v1 import trees_pb2, trees_pb2_grpc

if TYPE_CHECKING:
    from palimpsest.session import Session

#: How often a tree that is being closed is looked after.
LOOK_SECONDS = 0.2


class Tree(Memory):
    """A tree, by its name. What is for PRISM memories only is FailedPrecondition."""

    def __init__(self, client: Connection, session: "Session", name: str) -> None:
        super().__init__(client, session, name)
        self._trees = trees_pb2_grpc.TreeServiceStub(client.channel)

    async def seal(
        self,
        *,
        wait: bool = True,
        timeout: float | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> values.MemoryInfo:
        """Closes the tree: what is in the log now gets a single root, and nothing follows.

        Waits until that is done, unless `wait` is False, and at most `timeout` seconds; it
        goes on by itself when this call ends. Raises FailedPrecondition when the tree
        stalls, ResourceExhausted when a budget holds it, DeadlineExceeded.
        """
        request = trees_pb2.SealTreeRequest(**self._named)
        response = await self._client.call(self._trees.SealTree, request)
        info = convert.memory(response.memory)
        if not wait:
            return info
        try:
            async with asyncio.timeout(timeout):
                return await self._until_sealed(on_progress)
        except TimeoutError:
            raise DeadlineExceeded(
                f"tree {self.name!r} is still being closed; it goes on by itself",
                reason="NOT_APPLIED_IN_TIME",
            ) from None

    async def _until_sealed(
        self, on_progress: Callable[[values.MemoryInfo], None] | None
    ) -> values.MemoryInfo:
        while True:
            info = await self.look()
            if on_progress is not None:
                on_progress(info)
            if info.status is values.MemoryStatus.SEALED:
                return info
            await asyncio.sleep(LOOK_SECONDS)

    async def outline(self, *, revision: int | None = None) -> values.TreeOutline:
        """The levels, the nodes without a parent, and the text that is not summarized yet.

        Now, or as of a revision. Raises NotFound, FailedPrecondition (no tree), OutOfRange.
        """
        request = trees_pb2.GetTreeRequest(**self._named, revision=revision)
        return convert.tree_outline(await self._client.call(self._trees.GetTree, request))

    async def node(self, node_id: str) -> TreeNode:
        """A node by its id. Raises NotFound (NODE_NOT_FOUND)."""
        request = trees_pb2.GetNodeRequest(**self._named, node_id=node_id)
        response = await self._client.call(self._trees.GetNode, request)
        return convert.tree_node(response.node)

    def children(self, node_id: str) -> AsyncIterator[TreeNode]:
        """The children of a node, in the order of the text; none of a leaf. Raises NotFound."""
        return self._nodes(parent_id=node_id)

    def level(self, level: int) -> AsyncIterator[TreeNode]:
        """The nodes of a level, 0 for the leaves, in the order of the text."""
        return self._nodes(level=level)

    async def _nodes(self, **of: Any) -> AsyncIterator[TreeNode]:
        request = trees_pb2.ListNodesRequest(**self._named, page_size=1000, **of)
        async for page in self._client.pages(self._trees.ListNodes, request):
            for message in page.nodes:
                yield convert.tree_node(message)

    async def text(self, node_id: str) -> AsyncIterator[TextPart]:
        """The text under a node, chunk by chunk, as models read it. Raises NotFound."""
        request = trees_pb2.GetNodeTextRequest(**self._named, node_id=node_id)
        async for page in self._client.pages(self._trees.GetNodeText, request):
            for message in page.parts:
                yield convert.text_part(message)

    async def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_name: str,
        *,
        settings: TreeSettings | None = None,
        model: str | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> "Tree":
        """Reads the whole log again into a new tree; returns it when that is done.

        `settings` are the new tree's as a whole; None takes over this one's, and `model`
        changes that alone. `on_progress` as in `Memory.rebuild`. The new tree is open, also
        where this one is closed. Raises AlreadyExists, FailedPrecondition when it stalls.
        """
        made = Tree(self._client, self.session, new_name)
        tree = None if settings is None else specs.tree_spec(settings)
        changes = {"tree": tree, "model": model}
        request = rebuilding.request_of(self.session.name, self.name, new_name, changes)
        await rebuilding.follow(self._client, request, made.look, on_progress)
        return made
