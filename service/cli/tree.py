"""`palimpsest tree`: draw summary trees, read their nodes and the text under them, close them."""

from typing import Annotated, Any

import typer
from rich.tree import Tree as Drawing

from palimpsest import MemoryStatus, TextRange, Tree, TreeNode, TreeOutline
from service.cli.command import AtRevision, Freshness, Json, add_group
from service.cli.memory.output import memory_json, problem_lines, show_memory
from service.cli.operation import operation_json
from service.cli.output import (
    CommandError,
    counted,
    cut,
    escaped,
    out,
    plain,
    plain_json,
    positions,
    show,
    show_each,
    show_json,
)
from service.cli.progress import follow_operation

#: Characters of a node's line; fewer on a narrower terminal.
LINE_CHARACTERS = 110
#: Characters before a line of a drawing, for each level.
INDENT_CHARACTERS = 4
#: Characters of a line at least.
LEAST_CHARACTERS = 30
#: Nodes that one drawing has.
MAX_DRAWN = 500
#: More levels than any tree has.
MAX_DEPTH = 64
MAX_LEVEL = 999

NodeArgument = Annotated[str, typer.Argument(help="The node as level.number, such as 0.17.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    summary = "Summary trees: draw, look into, read, close."
    add_group(app, "tree", summary, show_, node, list_, text, seal)


async def show_(
    tree: Tree,
    freshness: Freshness,
    depth: Annotated[
        int, typer.Option(min=1, max=MAX_DEPTH, help="Levels to draw, from the top down.")
    ] = 2,
    revision: AtRevision = None,
    as_json: Json = False,
) -> None:
    """Draw a tree from its root, or from the nodes that have no parent yet, down."""
    outline = await tree.outline(revision=revision, **freshness.wanted())
    grown = _Grown(tree)
    tops = [await grown.under(top, depth - 1) for top in outline.tops]
    if as_json:
        found = {**memory_json(outline.info), **plain_json(outline)}
        del found["info"]
        found |= plain_json(found.pop("read_point"))
        show_json({**found, "tops": [_branch_json(*top) for top in tops]})
        return
    drawing = Drawing(escaped(_title(outline)))
    for top in tops:
        _draw(drawing, *top)
    if outline.tail is not None:
        drawing.add(escaped(f"{_where(outline.tail)} not summarized yet"))
    out.print(drawing)
    for line in problem_lines(outline.info):
        show(line)
    if grown.left_out:
        show(f"only {MAX_DRAWN} nodes are drawn; `tree list --under` shows the rest")


#: A node and what is drawn under it.
_Branch = tuple[TreeNode, list[Any]]


class _Grown:
    """Reads what a drawing shows, and not more than MAX_DRAWN nodes of it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._room = MAX_DRAWN
        self.left_out = False

    async def under(self, node: TreeNode, depth: int) -> _Branch:
        """Returns a node with its descendants down to `depth` levels below it."""
        self._room -= 1
        below: list[_Branch] = []
        if depth and node.children:
            if self._room < len(node.children):
                self.left_out = True
            else:
                async for child in self._tree.children(node.id):
                    below.append(await self.under(child, depth - 1))
        return node, below


def _draw(drawing: Drawing, node: TreeNode, below: list[_Branch], depth: int = 1) -> None:
    drawn = drawing.add(escaped(_line(node, depth)))
    for child in below:
        _draw(drawn, *child, depth + 1)


def _line(node: TreeNode, depth: int = 0) -> str:
    skipped = " (skipped)" if node.origin == "skipped" else ""
    line = f"{node.id} {_where(node.text_range)}{skipped} {plain(node.summary)}"
    room = min(LINE_CHARACTERS, out.width) - INDENT_CHARACTERS * depth
    return cut(line, max(room, LEAST_CHARACTERS))


def _where(text: TextRange) -> str:
    return positions(text.first_position - 1, text.last_position)


def _title(outline: TreeOutline) -> str:
    nodes = sum(level.node_count for level in outline.levels)
    status = "closed" if outline.info.status is MemoryStatus.SEALED else "open"
    read = outline.read_point
    return (
        f"{outline.info.id} at revision {read.revision}, {status}:"
        f" {read.applied_position} of {outline.info.head} chunks applied,"
        f" {counted(nodes, 'node')} on {counted(len(outline.levels), 'level')}"
    )


def _branch_json(node: TreeNode, below: list[_Branch]) -> dict[str, Any]:
    return {**plain_json(node), "children": [_branch_json(*child) for child in below]}


async def node(tree: Tree, node: NodeArgument, freshness: Freshness, as_json: Json = False) -> None:
    """Show the range, the parent, the children and the whole summary of a node."""
    found = await tree.node(node, **freshness.wanted())
    if as_json:
        show_json(found)
        return
    show(f"{found.id} covers {_where(found.text_range)}, {found.text_tokens:,} tokens")
    show(f"  parent: {found.parent or 'none yet'}")
    if found.children:
        show(f"  children: {', '.join(found.children)}")
    by = {"joined": "of its children", "cut": "by the model, cut", "skipped": "none: skipped"}
    said = by.get(found.origin, "by the model")
    show(f"  summary {said}, {found.summary_tokens:,} tokens, revision {found.revision}:")
    show(found.summary)


async def list_(
    tree: Tree,
    freshness: Freshness,
    level: Annotated[
        int | None, typer.Option(min=0, max=MAX_LEVEL, help="All nodes of it; 0: the leaves.")
    ] = None,
    under: Annotated[str, typer.Option(help="The children of this node.")] = "",
    as_json: Json = False,
) -> None:
    """List the leaves of a tree, another level, or the children of a node."""
    if under and level is not None:
        raise CommandError("give --level or --under, not both")
    wanted = freshness.wanted()
    found = tree.children(under, **wanted) if under else tree.level(level or 0, **wanted)
    await show_each(found, _line, as_json=as_json)


async def text(tree: Tree, node: NodeArgument, freshness: Freshness, as_json: Json = False) -> None:
    """Print the text under a node, chunk by chunk."""
    parts = tree.text(node, **freshness.wanted())
    await show_each(parts, lambda part: part.text.rstrip(), as_json=as_json)


async def seal(
    tree: Tree,
    wait: Annotated[bool, typer.Option(help="Wait until the tree is closed.")] = True,
    as_json: Json = False,
) -> None:
    """Close a tree. The log so far gets a single root, and the tree reads nothing after it.

    This cannot be undone once it is done. Ctrl-C ends the waiting only: `operation cancel`
    ends the seal.
    """
    operation = await tree.seal()
    if not wait:
        line = f"{tree.id} is to be closed by operation {operation.id}"
        show_json(operation_json(operation.info)) if as_json else show(line)
        return
    info = await follow_operation(operation, "closing")
    show_memory(info, f"{tree.id} is closed at position {info.applied_position}", as_json)
