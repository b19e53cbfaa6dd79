"""Commands for summary trees: drawing them, their nodes, the text under these, closing."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer
from rich.tree import Tree as Drawing

import palimpsest
from palimpsest import Tree, TreeNode, values
from service.cli.lines import memory_json, positions, trouble_lines
from service.cli.output import CommandError, cut, escaped, out, plain, show, show_json
from service.cli.progress import Bar
from service.cli.talk import (
    DEFAULT_ADDRESS,
    DEFAULT_NAME,
    LAST,
    Address,
    Json,
    MemoryName,
    SessionName,
    run,
)

#: Of a node's line, in characters; less on a narrower terminal.
LINE_CHARACTERS = 110
#: What a drawing puts before a line, for each level.
INDENT_CHARACTERS = 4
#: A line has so many all the same.
LEAST_CHARACTERS = 30
#: Nodes that one drawing has.
MAX_DRAWN = 500
#: More levels than any tree has.
MAX_DEPTH = 64
MAX_LEVEL = 999

NodeArgument = Annotated[str, typer.Argument(help="The node as level.number, such as 0.17.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    tree = typer.Typer(no_args_is_help=True, help="Summary trees: draw, look into, read, close.")
    tree.command("show")(tree_show)
    tree.command("node")(tree_node)
    tree.command("list")(tree_list)
    tree.command("text")(tree_text)
    tree.command("seal")(tree_seal)
    app.add_typer(tree, name="tree")


def tree_show(
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    depth: Annotated[
        int, typer.Option(min=1, max=MAX_DEPTH, help="Levels to draw, from the top down.")
    ] = 2,
    revision: Annotated[int | None, typer.Option(min=0, max=LAST, help="As it was then.")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Draw a tree from its root, or from the nodes that have no parent yet, down."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            tree = client.session(session).tree(memory)
            outline = await tree.outline(revision=revision)
            grown = _Grown(tree)
            tops = [await grown.under(top, depth - 1) for top in outline.tops]
        if as_json:
            show_json(_outline_json(outline, [_branch_json(*top) for top in tops]))
            return
        drawing = Drawing(escaped(_title(outline)))
        for top in tops:
            _draw(drawing, *top)
        if outline.tail is not None:
            where = positions(outline.tail.from_position - 1, outline.tail.to_position)
            drawing.add(escaped(f"{where} not summarized yet"))
        out.print(drawing)
        for line in trouble_lines(outline.info):
            show(line)
        if grown.left_out:
            show(f"only {MAX_DRAWN} nodes are drawn; `tree list --under` shows the rest")

    run(work())


#: A node and what is drawn under it.
_Branch = tuple[TreeNode, list[Any]]


class _Grown:
    """Reads what a drawing shows, and not more than MAX_DRAWN nodes of it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._room = MAX_DRAWN
        self.left_out = False

    async def under(self, node: TreeNode, depth: int) -> _Branch:
        """A node with its descendants down to `depth` levels below it."""
        self._room -= 1
        below: list[_Branch] = []
        if depth and node.child_ids:
            if self._room < len(node.child_ids):
                self.left_out = True
            else:
                async for child in self._tree.children(node.node_id):
                    below.append(await self.under(child, depth - 1))
        return node, below


def _draw(drawing: Drawing, node: TreeNode, below: list[_Branch], depth: int = 1) -> None:
    drawn = drawing.add(escaped(_line(node, depth)))
    for child in below:
        _draw(drawn, *child, depth + 1)


def _line(node: TreeNode, depth: int = 0) -> str:
    where = positions(node.from_position - 1, node.to_position)
    skipped = " (skipped)" if node.made == "skipped" else ""
    line = f"{node.node_id} {where}{skipped} {plain(node.summary)}"
    room = min(LINE_CHARACTERS, out.width) - INDENT_CHARACTERS * depth
    return cut(line, max(room, LEAST_CHARACTERS))


def _title(outline: values.TreeOutline) -> str:
    nodes = sum(level.nodes for level in outline.levels)
    status = "open"
    if outline.info.status is values.MemoryStatus.SEALED:
        status = "closed"
    elif outline.info.seal_position is not None:
        status = f"to be closed at position {outline.info.seal_position}"
    return (
        f"{outline.info.name} at revision {outline.revision}, {status}:"
        f" {outline.applied_position} of {outline.info.head} chunks applied,"
        f" {_counted(nodes, 'node')} on {_counted(len(outline.levels), 'level')}"
    )


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _outline_json(outline: values.TreeOutline, tops: list[dict[str, Any]]) -> dict[str, Any]:
    tail = outline.tail
    return {
        **memory_json(outline.info),
        "revision": outline.revision,
        "applied_position": outline.applied_position,
        "levels": [{"level": one.level, "nodes": one.nodes} for one in outline.levels],
        "tops": tops,
        "tail": None
        if tail is None
        else {
            "from_position": tail.from_position,
            "from_offset": tail.from_offset,
            "to_position": tail.to_position,
        },
    }


def _branch_json(node: TreeNode, below: list[_Branch]) -> dict[str, Any]:
    return {**node_json(node), "children": [_branch_json(*child) for child in below]}


def node_json(node: TreeNode) -> dict[str, Any]:
    """A node as plain JSON."""
    return {
        "node": node.node_id,
        "level": node.level,
        "number": node.number,
        "parent": node.parent_id,
        "child_ids": list(node.child_ids),
        "from_position": node.from_position,
        "from_offset": node.from_offset,
        "to_position": node.to_position,
        "to_offset": node.to_offset,
        "made": node.made,
        "text_tokens": node.text_tokens,
        "summary_tokens": node.summary_tokens,
        "revision": node.revision,
        "summary": node.summary,
    }


def tree_node(
    node: NodeArgument,
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Show a node: what it covers, its kin, its whole summary."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            found = await client.session(session).tree(memory).node(node)
        if as_json:
            show_json(node_json(found))
            return
        where = positions(found.from_position - 1, found.to_position)
        show(f"{found.node_id} covers {where}, {found.text_tokens:,} tokens")
        show(f"  parent: {found.parent_id or 'none yet'}")
        if found.child_ids:
            show(f"  children: {', '.join(found.child_ids)}")
        by = {"joined": "of its children", "cut": "by the model, cut", "skipped": "none: skipped"}
        said = by.get(found.made, "by the model")
        show(f"  summary {said}, {found.summary_tokens:,} tokens, revision {found.revision}:")
        show(found.summary)

    run(work())


def tree_list(
    level: Annotated[
        int | None, typer.Option(min=0, max=MAX_LEVEL, help="All nodes of it; 0: the leaves.")
    ] = None,
    under: Annotated[str, typer.Option(help="The children of this node.")] = "",
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """List the leaves of a tree, another level, or the children of a node."""
    if under and level is not None:
        raise CommandError("give --level or --under, not both")

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            tree = client.session(session).tree(memory)
            found: AsyncIterator[TreeNode] = (
                tree.children(under) if under else tree.level(level or 0)
            )
            async for node in found:
                if as_json:
                    show_json(node_json(node))
                else:
                    show(_line(node))

    run(work())


def tree_text(
    node: NodeArgument,
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Print the text under a node, chunk by chunk."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            async for part in client.session(session).tree(memory).text(node):
                if as_json:
                    show_json(
                        {
                            "position": part.position,
                            "from_offset": part.from_offset,
                            "to_offset": part.to_offset,
                            "text": part.text,
                        }
                    )
                else:
                    show(part.text.rstrip())

    run(work())


def tree_seal(
    memory: MemoryName = DEFAULT_NAME,
    session: SessionName = DEFAULT_NAME,
    wait: Annotated[bool, typer.Option(help="Wait until the tree is closed.")] = True,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Close a tree: what is in the log now gets a single root, and nothing follows it.

    This cannot be undone. Ctrl-C ends the waiting only.
    """

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            tree = client.session(session).tree(memory)
            info = await tree.seal(wait=False)
            line = f"{memory} is to be closed at position {info.seal_position}"
            if wait:
                with Bar("closing", info.seal_position or 0) as bar:
                    info = await tree.seal(on_progress=bar.show)
                line = f"{memory} is closed at position {info.applied_position}"
        if as_json:
            show_json(memory_json(info))
        else:
            show(line)

    run(work())
