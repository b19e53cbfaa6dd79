"""Reads trees, their nodes and the text under these, and seals trees."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.tree.nodes import TextOffset
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import NotFound
from service.domain.values.reasons import Reason
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import (
    find_memory,
    item_key,
    lock_memory,
    session_not_found,
)
from service.usecases.memories.long_operations import FoundOperation, request_seal
from service.usecases.memories.memories import Memories
from service.usecases.tree.outline import Outline, read_outline
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories.memories import StoredMemory
from storage.tree import views
from storage.tree.views import StoredNode, TextPart

#: What a part of a text counts on a page besides its text, in bytes: its offsets.
PART_BYTES = 32


class Trees:
    """What clients do with trees."""

    def __init__(self, database: Database, memories: Memories) -> None:
        self._database = database
        self._memories = memories

    async def outline(
        self, tenant_id: UUID, session: str, name: str, revision: int | None
    ) -> tuple[StoredMemory, Outline]:
        """Returns the tree, now or as of a revision.

        Raises NotFound, FailedPrecondition, OutOfRange.
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            return stored, await read_outline(tx, stored, revision)

    async def node(self, tenant_id: UUID, session: str, name: str, node_id: str) -> StoredNode:
        """Returns a node by its id. Raises NotFound, FailedPrecondition."""
        async with self._database.transaction(tenant_id, name="trees") as tx:
            return await _find_node(
                tx, await find_memory(tx, session, name, TreeSpec.kind), node_id
            )

    async def children(
        self, tenant_id: UUID, session: str, name: str, node_id: str, after: int, limit: int
    ) -> tuple[StoredMemory, Sequence[StoredNode]]:
        """Returns up to `limit` children with numbers after `after`, in order; none of a leaf.

        Raises NotFound, FailedPrecondition.
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            above = (await _find_node(tx, stored, node_id)).node
            found = await views.read_children(tx, *item_key(stored), above.level, above.number)
        return stored, [one for one in found if one.node.number > after][:limit]

    async def level(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        level: int,
        after: int,
        limit: int,
        *,
        max_bytes: int,
    ) -> tuple[StoredMemory, Sequence[StoredNode]]:
        """Returns up to `limit` nodes of a level after the number `after`.

        Of more than `max_bytes` of summaries only the first come, and one more. Raises
        NotFound, FailedPrecondition.
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            found = await views.list_level(
                tx, *item_key(stored), level, after, limit, max_bytes=max_bytes
            )
        return stored, found

    async def text(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        node_id: str,
        start: TextOffset | None,
        max_bytes: int,
    ) -> tuple[StoredMemory, Sequence[TextPart], TextOffset | None]:
        """Returns about `max_bytes` of the text under a node, and where it goes on, if it does.

        `start` is None for the first of it. Raises NotFound, FailedPrecondition.
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            node = (await _find_node(tx, stored, node_id)).node
            parts = await views.read_text(
                tx,
                stored.session_key,
                start or node.start,
                node.end,
                max_bytes,
                part_bytes=PART_BYTES,
            )
        reached = parts[-1].end if parts else node.end
        return stored, parts, reached if reached < node.end else None

    async def seal(self, tenant_id: UUID, session: str, name: str) -> FoundOperation:
        """Requests that a tree is sealed once everything that is in the log now is in it.

        A second call changes nothing. Raises NotFound, FailedPrecondition (no tree).
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            # In the order in which a step locks them.
            held_session = await sessions.lock_head(tx, stored.session_key)
            if held_session is None:
                raise session_not_found(session)
            held = await lock_memory(tx, session, name, TreeSpec.kind)
            operation = await request_seal(tx, held, name, goal=held_session.head)
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            await store_result(tx, operation)
        self._memories.wake(tenant_id, stored)
        return operation


async def _find_node(tx: Transaction, stored: StoredMemory, node_id: str) -> StoredNode:
    found = await views.read_nodes(tx, *item_key(stored), [node_id])
    if node_id not in found:
        raise NotFound(
            Reason.NODE_NOT_FOUND,
            f"tree {stored.name!r} has no node {node_id!r}",
            {"session": stored.session_name, "memory": stored.name, "node": node_id},
        )
    return found[node_id]
