# Generated from palimpsest/_async by `make sync`; do not edit.
"""Trees and state memories, with what other memories do not have."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from palimpsest._convert import consistency, message_of, value_of
from palimpsest._memories import MemoryInfo
from palimpsest._specs import StateSettings, TreeSettings
from palimpsest._states import (
    ContextForm,
    StateVector,
    WorkingContext,
)
from palimpsest._sync._memory import Memory
from palimpsest._sync._operation import Operation
from palimpsest._trees import TextPart, TreeNode, TreeOutline, tree_outline
from palimpsest.v1 import state_service_pb2, tree_service_pb2


class Tree(Memory):
    """A tree, by its id. Methods for PRISM memories only raise FailedPrecondition."""

    _kind = "tree"

    def seal(self, *, request_id: str = "") -> Operation[MemoryInfo]:
        """Seals the tree for good: the log so far gets a single root, and nothing is added later.

        Returns the operation at once, or that of an earlier request that did not fail and was
        not cancelled.
        """
        request = tree_service_pb2.SealTreeRequest(**self._named, request_id=request_id)
        response = self._connection.call(self._connection.trees.SealTree, request)
        return Operation(self._connection, response)

    def update(  # type: ignore[override]  # what may be changed is another kind's
        self,
        *,
        model: str | None = None,
        navigation_model: str | None = None,
        expected_revision: int | None = None,
        request_id: str = "",
    ) -> MemoryInfo:
        """Gives the tree another model for summaries, for navigation, or both; None: unchanged.

        Empty means the service's default, for `navigation_model` the tree's `model`. Raises
        InvalidArgument (MODEL_NOT_ALLOWED), Aborted (REVISION_CONFLICT).
        """
        return self._update(
            {"model": model, "navigation_model": navigation_model},
            expected_revision=expected_revision,
            request_id=request_id,
        )

    def outline(
        self,
        *,
        revision: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
    ) -> TreeOutline:
        """Returns levels, nodes without a parent, and the text that is not summarized yet.

        `after` and `fully_applied` as in `Memory.get`, for all reads of a tree. Raises
        FailedPrecondition (no tree), and what `Memory.get` raises.
        """
        request = message_of(
            tree_service_pb2.GetTreeRequest,
            **self._named,
            revision=revision,
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.trees.GetTree
        return tree_outline(self._connection.call(method, request, timeout=timeout))

    def node(
        self,
        node: str,
        *,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
    ) -> TreeNode:
        """Returns a node by its id. Raises NotFound (NODE_NOT_FOUND)."""
        request = message_of(
            tree_service_pb2.GetNodeRequest,
            **self._named,
            node=node,
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.trees.GetNode
        return value_of(TreeNode, self._connection.call(method, request, timeout=timeout))

    def children(
        self, parent: str, *, after: str = "", fully_applied: bool = False
    ) -> Iterator[TreeNode]:
        """Yields the children of a node, in the order of the text. Raises NotFound."""
        return self._nodes(after, fully_applied, parent=parent)

    def level(
        self, level: int, *, after: str = "", fully_applied: bool = False
    ) -> Iterator[TreeNode]:
        """Yields the nodes of a level, 0 for the leaves, in the order of the text."""
        return self._nodes(after, fully_applied, level=level)

    def _nodes(self, after: str, fully_applied: bool, **scope: Any) -> Iterator[TreeNode]:
        request = message_of(
            tree_service_pb2.ListNodesRequest,
            **self._named,
            consistency=consistency(after, fully_applied),
            page_size=1000,
            **scope,
        )
        method, convert = self._connection.trees.ListNodes, partial(value_of, TreeNode)
        return self._connection.all_of(method, request, "nodes", convert)

    def text(
        self, node: str, *, after: str = "", fully_applied: bool = False
    ) -> Iterator[TextPart]:
        """Yields the text under a node, chunk by chunk. Raises NotFound."""
        request = message_of(
            tree_service_pb2.GetNodeTextRequest,
            **self._named,
            node=node,
            consistency=consistency(after, fully_applied),
        )
        method, convert = self._connection.trees.GetNodeText, partial(value_of, TextPart)
        return self._connection.all_of(method, request, "parts", convert)

    def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_id: str,
        *,
        settings: TreeSettings | None = None,
        model: str | None = None,
        allow_expired_log: bool = False,
        request_id: str = "",
    ) -> Operation[MemoryInfo]:
        """Reads the whole log again into a new memory; returns the operation at once.

        `settings` replaces all settings, `model` one; None: those of this tree. See
        `Memory.rebuild`.
        """
        changes = {"settings": settings, "model": model}
        return self._rebuild(new_id, changes, request_id, allow_expired_log=allow_expired_log)


class State(Memory):
    """A state memory, by its id. Methods for other kinds raise FailedPrecondition."""

    _kind = "state"

    def context(
        self,
        *,
        position: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        forms: Sequence[ContextForm] = ("parts", "text", "messages"),
        timeout: float | None = None,
    ) -> WorkingContext:
        """Returns the working context, in these `forms`: the vectors in use, and later chunks.

        `position` reads it as it was when the log ended there. Every chunk is in it, so only
        `fully_applied` waits, for due compressions. Raises DeadlineExceeded
        (NOT_APPLIED_IN_TIME), FailedPrecondition when the memory stalled, ResourceExhausted when
        a budget stops it or the context passes a limit (CONTEXT_TOO_LARGE), NotFound, and
        OutOfRange for a position after the head.
        """
        request = message_of(
            state_service_pb2.GetWorkingContextRequest,
            **self._named,
            position=position,
            consistency=consistency(after, fully_applied),
            forms=forms,
        )
        method = self._connection.states.GetWorkingContext
        found = self._connection.call(method, request, timeout=timeout)
        return value_of(WorkingContext, found)

    def vectors(
        self, *, level: int = 0, after: str = "", fully_applied: bool = False
    ) -> Iterator[StateVector]:
        """Yields the state vectors, oldest first, of one level or of all (0).

        With `fully_applied` it first waits for due compressions.
        """
        request = message_of(
            state_service_pb2.ListStateVectorsRequest,
            **self._named,
            level=level,
            consistency=consistency(after, fully_applied),
            page_size=1000,
        )
        method, convert = self._connection.states.ListStateVectors, partial(value_of, StateVector)
        return self._connection.all_of(method, request, "vectors", convert)

    def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_id: str,
        *,
        settings: StateSettings | None = None,
        model: str | None = None,
        allow_expired_log: bool = False,
        request_id: str = "",
    ) -> Operation[MemoryInfo]:
        """Reads the whole log again into a new memory; returns the operation at once.

        `settings` replaces all settings, `model` one; None: those of this memory. See
        `Memory.rebuild`.
        """
        changes = {"settings": settings, "model": model}
        return self._rebuild(new_id, changes, request_id, allow_expired_log=allow_expired_log)

    def update(  # type: ignore[override]  # what may be changed is another kind's
        self,
        *,
        model: str | None = None,
        expected_revision: int | None = None,
        request_id: str = "",
    ) -> MemoryInfo:
        """Gives the memory another model; empty means the service's default.

        Raises InvalidArgument (MODEL_NOT_ALLOWED), Aborted (REVISION_CONFLICT).
        """
        return self._update(
            {"model": model}, expected_revision=expected_revision, request_id=request_id
        )

    def _info(self) -> MemoryInfo:
        # Its value has all recent chunks, which are too many while it catches up.
        listed = self.session.memories()
        found = next((one for one in listed if one.id == self.id), None)
        return super()._info() if found is None else found
