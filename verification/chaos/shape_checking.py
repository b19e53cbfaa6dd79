"""Checks that trees and state memories cover the log, and nothing of it twice."""

from collections import defaultdict
from collections.abc import Callable, Container, Sequence

from verification.chaos.history import FinalMemory, FinalNode, FinalRevision, FinalVector
from verification.chaos.model import READING, Levels

Found = Callable[[str, str], None]
#: A place between two characters of the log: a position, and characters into it. The end of
#: a chunk is the beginning of the next position.
_Place = tuple[int, int]


def _start(node: FinalNode) -> _Place:
    return node.first_position, node.first_offset


def _end(node: FinalNode) -> _Place:
    if node.last_offset:
        return node.last_position, node.last_offset
    return node.last_position + 1, 0


def check_nodes(memory: FinalMemory, ends: Sequence[int], found: Found) -> None:
    """Checks the nodes of a tree; `ends` has the position that each revision has applied."""
    levels: dict[int, list[FinalNode]] = defaultdict(list)
    for node in sorted(memory.nodes, key=lambda node: (node.level, node.index)):
        levels[node.level].append(node)
    for level, nodes in levels.items():
        end: _Place = (1, 0)
        for index, node in enumerate(nodes):
            name = f"node {level}.{node.index + 1}"
            if node.index != index:
                found("tree-cover", f"{name} is where {level}.{index + 1} is due")
            if _start(node) != end or _end(node) <= end:
                found("tree-cover", f"{name} covers {_start(node)} to {_end(node)}, behind {end}")
            end = max(end, _end(node))
            _check_age(name, node, ends, found)
            if not level and node.children:
                found("tree-parents", f"{name}, a leaf, has children")
    for level in levels:
        if level:
            _check_parents(levels[level], levels.get(level - 1, []), found)
    if memory.status == "sealed" and memory.applied_position:
        _check_sealed(memory, levels, found)


def _check_age(name: str, node: FinalNode, ends: Sequence[int], found: Found) -> None:
    if not 0 < node.revision < len(ends):
        found("tree-cover", f"{name} is of revision {node.revision}, which is not there")
    elif node.last_position > ends[node.revision]:
        what = f"{name} covers {node.last_position}, applied was {ends[node.revision]}"
        found("tree-cover", what)


def _check_parents(parents: Sequence[FinalNode], below: Sequence[FinalNode], found: Found) -> None:
    due = 0
    for node in parents:
        name = f"node {node.level}.{node.index + 1}"
        if node.children != tuple(range(due, due + len(node.children))) or not node.children:
            found("tree-parents", f"{name} has the children {node.children}, {due} is due")
            return
        due += len(node.children)
        if due > len(below):
            found("tree-parents", f"{name} has children that are not there")
            return
        children = [below[index] for index in node.children]
        if (_start(node), _end(node)) != (_start(children[0]), _end(children[-1])):
            found("tree-parents", f"{name} does not cover what its children do")
        if max(child.revision for child in children) > node.revision:
            found("tree-parents", f"{name} is older than its children")


def _check_sealed(memory: FinalMemory, levels: dict[int, list[FinalNode]], found: Found) -> None:
    leaves, top = levels.get(0, []), levels[max(levels)] if levels else []
    if not leaves or _end(leaves[-1]) != (memory.applied_position + 1, 0):
        found("tree-cover", f"it is closed at {memory.applied_position}, and its leaves are not")
    if len(top) != 1 or (leaves and _end(top[0]) != _end(leaves[-1])):
        found("tree-parents", "it is closed without one root")


def check_vectors(memory: FinalMemory, restored: Container[int], found: Found) -> None:
    """Checks the vectors of a state memory; `restored` are revisions that rollbacks restored."""
    if memory.kind != "state":
        return
    by_revision = {one.revision: one for one in memory.vectors if one.revision}
    if len(by_revision) != sum(one.revision > 0 for one in memory.vectors):
        found("vectors", "a revision has two vectors")
    levels = Levels()
    for one in memory.revisions:
        vector = by_revision.pop(one.revision, None)
        if one.kind == "rollback":
            levels.rollback(one.restored_revision or 0)
        _check_vector(one, vector, levels, found)
        if one.revision in restored:
            levels.keep(one.revision)
    for revision in by_revision:
        found("vectors", f"a vector is of revision {revision}, which is not there")
    _check_partition(memory, levels, found)


def _check_vector(
    one: FinalRevision, vector: FinalVector | None, levels: Levels, found: Found
) -> None:
    brings = one.kind in READING or one.kind == "episode"
    promise = "episodes" if one.kind == "episode" else "vectors"
    if vector is None or not brings:
        if (vector is not None) != brings:
            found(promise, f"revision {one.revision}, a {one.kind}, brings {vector}")
        return
    children: list[int] = []
    if one.kind == "episode":
        due, children = levels.episode(one.revision, vector.level)
        if due is None:
            found(promise, f"revision {one.revision} has nothing to make level {vector.level} of")
            return
    else:
        due = levels.step(one.revision, one.from_position, one.to_position)
        if vector.level != 1:
            found(promise, f"revision {one.revision} is of level {vector.level}")
    told = vector.after_position, vector.from_position, vector.to_position
    if told != (due.after, due.begin, due.end) or list(vector.children) != children:
        found(promise, f"revision {one.revision} brings {vector}, due is {due} of {children}")


def _check_partition(memory: FinalMemory, levels: Levels, found: Found) -> None:
    end = 0
    for one in levels.in_use():
        # What was compressed before a rollback may cover nothing any more.
        if one.after < end or (one.after > end and not levels.has_rolled_back):
            found("vectors", f"what is in use leaves ({end}, {one.after}] out, or has it twice")
        end = one.end
    if end > memory.applied_position or (
        end < memory.applied_position and not levels.has_rolled_back
    ):
        found("vectors", f"what is in use ends at {end} of {memory.applied_position}")
