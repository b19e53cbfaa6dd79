"""Compares the nodes of a tree with each other, the log, and the revisions' digests."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from service.domain.operations.verifying.chain import Difference, RevisionRow
from service.domain.tree.growth import GrowingLevels
from service.domain.tree.nodes import Node, TextOffset

#: Makes a revision's digest: SHA-256 over its parent's digest and its nodes.
Digest = Callable[[bytes, Iterable[Node]], bytes]


class TreeCheck:
    """Checks every revision in order, with its nodes, level by level."""

    def __init__(self, digest: Digest, max_children: int) -> None:
        self._digest = digest
        self._max_children = max_children
        self._parent = b""
        self._is_lost = True
        #: By level: how many nodes there are, and how many of these have a parent.
        self._nodes: list[int] = []
        self._grouped: list[int] = []
        #: By level: the nodes without a parent, in order.
        self._tops: list[deque[Node]] = []
        #: By level: where its last node ends.
        self._ends: list[TextOffset] = []

    def revision(self, row: RevisionRow, nodes: Sequence[Node]) -> Iterator[Difference]:
        """Checks the next revision with its new nodes, by level and number."""
        if row.set_aside:
            # Its nodes are gone, and others follow those before it.
            return
        if row.revision == 0:
            wanted = hashlib.sha256(b"").digest()
            self._is_lost = False
        else:
            wanted = self._wanted(row.digest, nodes)
        # Others have the digest of the last revision that kept its content.
        is_new = row.kind not in ("redaction", "quarantine")
        if not self._is_lost and wanted != row.digest and is_new:
            said = "its digest is not that of its parent's digest and its new nodes"
            yield row.differs("tree.digest", said)
        # The next one goes on from what is stored: each difference is reported once.
        self._parent = row.digest
        for node in nodes:
            yield from self._node(node)
        last = self._ends[0].last_position if self._ends else 0
        if last > row.to_position:
            said = f"its leaves go up to position {last}, and it has read up to {row.to_position}"
            yield row.differs("tree.coverage", said)

    def leaf(self, node: Node, tokens: int | None, *, has_words: bool) -> Iterator[Difference]:
        """Compares a leaf with the log: its tokens, and whether the leaf's words are its own.

        `tokens` are None when the log has no such places.
        """
        if tokens is None:
            said = "it covers places that the log does not have"
            yield _differs("tree.coverage", node, said)
            return
        if tokens != node.text_tokens:
            said = f"its text has {tokens} tokens, and it says {node.text_tokens}"
            yield _differs("tree.tokens", node, said)
        if not has_words:
            said = "its words are not those of its text"
            yield _differs("tree.words", node, said)

    def finish(self, *, is_sealed: bool) -> Iterator[Difference]:
        """Checks that a closed tree has one root."""
        tops = sum(len(level) for level in self._tops)
        if is_sealed and tops > 1:
            said = f"it is sealed, and {tops} nodes have no parent"
            yield Difference(name="tree.children", place="root", said=said)

    def _wanted(self, stored: bytes, nodes: Sequence[Node]) -> bytes:
        """Returns the digest of the nodes in the order in which they were made.

        That is not stored, but follows from how trees grow: parents come right after the
        leaf that made them due, and the last leaves of a tree that is closed come together.
        """
        made = b""
        leaves = [node for node in nodes if node.level == 0]
        for together in range(len(leaves) + 1):
            if together == 1:
                continue
            made = self._digest(self._parent, self._in_order(leaves, nodes, together))
            if made == stored:
                break
        return made

    def _in_order(
        self, leaves: Sequence[Node], nodes: Sequence[Node], together: int
    ) -> Iterator[Node]:
        parents = {(node.level, node.number): node for node in nodes if node.level}
        counts, grouped = list(self._nodes) or [0], list(self._grouped) or [0]

        def due() -> Iterator[Node]:
            for group in GrowingLevels(counts, grouped, self._max_children).due():
                found = parents.pop((group.level, group.number), None)
                if found is None:
                    return
                if group.level == len(counts):
                    counts.append(0)
                    grouped.append(0)
                counts[group.level] = group.number
                grouped[group.level - 1] = group.first_child + group.children - 1
                yield found

        yield from due()
        for index, leaf in enumerate(leaves, start=1):
            counts[0] += 1
            yield leaf
            if index <= len(leaves) - together or index == len(leaves):
                yield from due()
        for key in sorted(parents):
            yield parents[key]

    def _node(self, node: Node) -> Iterator[Difference]:
        level = node.level
        while level >= len(self._nodes):
            self._nodes.append(0)
            self._grouped.append(0)
            self._tops.append(deque())
            self._ends.append(TextOffset(1))
        if node.number != self._nodes[level] + 1 or node.start != self._ends[level]:
            said = f"it does not go on where node {level}.{self._nodes[level]} ended"
            yield _differs("tree.chain", node, said)
        self._nodes[level], self._ends[level] = node.number, node.end
        self._tops[level].append(node)
        if level:
            yield from self._children(node)

    def _children(self, node: Node) -> Iterator[Difference]:
        below, first = self._tops[node.level - 1], self._grouped[node.level - 1] + 1
        taken = [below.popleft() for _ in range(min(node.children, len(below)))]
        self._grouped[node.level - 1] = node.first_child + node.children - 1
        numbers = [child.number for child in taken]
        wanted = list(range(node.first_child, node.first_child + node.children))
        if node.first_child != first or numbers != wanted or len(wanted) > self._max_children:
            said = f"its children are {node.level - 1}.{node.first_child} and {node.children - 1}"
            said += f" more; those without a parent begin at {node.level - 1}.{first}"
            yield _differs("tree.children", node, said)
        elif (taken[0].start, taken[-1].end) != (node.start, node.end):
            said = "it does not cover what its children cover"
            yield _differs("tree.coverage", node, said)
        elif sum(child.text_tokens for child in taken) != node.text_tokens:
            said = f"its children's text has other tokens than {node.text_tokens}"
            yield _differs("tree.tokens", node, said)


def _differs(name: str, node: Node, said: str) -> Difference:
    return Difference(name=name, place=f"node {node.node_id}", said=said)
