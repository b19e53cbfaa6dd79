"""Trees on the command line. No worker runs: the nodes are written by hand."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from service.domain.tree.nodes import Node, SummarySource, TextOffset
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.integration.support.forests import SESSION, TREE, add, grown, leaf, make_tree
from tests.support.harness import Servers, api

TEXTS = [f"text {n}" for n in range(1, 15)]
NAMED = ("-s", SESSION, "-m", TREE)


async def fill(url: str) -> Sequence[Node]:
    database = Database.connect(url, pool_size=2, name="test")
    await make_tree(database, TEXTS)
    leaves = [leaf(n, TextOffset(n), TextOffset(n + 1)) for n in range(1, 14)]
    # What a model writes is no markup, and does nothing to a terminal.
    leaves[12] = replace(leaves[12], summary="[bold]\x1b[31mred", made=SummarySource.SKIPPED)
    nodes = grown(leaves, 3, 2)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await add(tx, [nodes], len(TEXTS))
    await database.close()
    return nodes


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    url = servers.new_database()
    asyncio.run(fill(url))
    with api(url) as (_, address):
        yield address


DRAWN = """\
book at revision 1, open: 14 of 14 chunks applied, 16 nodes on 2 levels
├── 1.1 [1-3] node 1.1
│   ├── 0.1 [1] leaf 1
│   ├── 0.2 [2] leaf 2
│   └── 0.3 [3] leaf 3
├── 1.2 [4-6] node 1.2
│   ├── 0.4 [4] leaf 4
│   ├── 0.5 [5] leaf 5
│   └── 0.6 [6] leaf 6
├── 1.3 [7-9] node 1.3
│   ├── 0.7 [7] leaf 7
│   ├── 0.8 [8] leaf 8
│   └── 0.9 [9] leaf 9
├── 0.10 [10] leaf 10
├── 0.11 [11] leaf 11
├── 0.12 [12] leaf 12
├── 0.13 [13] (skipped) [bold]\\x1b[31mred
└── [14] not summarized yet
"""


def test_a_tree_is_drawn_down_to_a_depth(address: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    assert succeed("tree", "show", *NAMED, **at) == DRAWN
    shallow = [line for line in DRAWN.splitlines() if not line.startswith("│")]
    assert succeed("tree", "show", *NAMED, "--depth", "1", **at).splitlines() == shallow
    assert succeed("tree", "show", *NAMED, "--revision", "0", **at) == (
        "book at revision 0, open: 0 of 14 chunks applied, 0 nodes on 0 levels\n"
    )


def test_a_tree_is_printed_as_json(address: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    shown = json.loads(succeed("tree", "show", *NAMED, "--json", **at))
    assert (shown["kind"], shown["revision"], shown["status"]) == ("tree", 1, "active")
    assert shown["levels"] == [{"level": 0, "node_count": 13}, {"level": 1, "node_count": 3}]
    assert shown["applied_position"] == len(TEXTS)
    tops = shown["tops"]
    assert [top["id"] for top in tops] == ["1.1", "1.2", "1.3", "0.10", "0.11", "0.12", "0.13"]
    assert [child["id"] for child in tops[1]["children"]] == ["0.4", "0.5", "0.6"]
    assert shown["tail"] == text_range(14)
    node = json.loads(succeed("tree", "node", "0.5", *NAMED, "--json", **at))
    assert (node["parent"], node["text_range"]) == ("1.2", text_range(5))
    assert tops[1]["children"][1] == {**node, "children": []}
    lines = succeed("tree", "list", "--level", "1", *NAMED, "--json", **at).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1.1", "1.2", "1.3"]
    lines = succeed("tree", "text", "1.2", *NAMED, "--json", **at).splitlines()
    assert [json.loads(line)["text"] for line in lines] == TEXTS[3:6]
    assert json.loads(lines[0])["characters"] == {"start": 0, "end": len(TEXTS[3])}
    fresh = ("--after", shown["read_token"])
    assert json.loads(succeed("tree", "show", *NAMED, "--json", *fresh, **at)) == shown
    for command in (["node", "0.5"], ["list"], ["text", "0.5"]):
        read = ("tree", *command, *NAMED)
        assert succeed(*read, "--applied", **at) == succeed(*read, *fresh, **at)


def text_range(position: int) -> dict[str, int]:
    """Returns a whole chunk, as JSON has it."""
    whole = {"first_position": position, "first_offset": 0, "last_position": position}
    return {**whole, "last_offset": 0}


def test_nodes_and_their_text_are_printed(address: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    assert succeed("tree", "node", "1.2", *NAMED, **at).splitlines() == [
        "1.2 covers [4-6], 30 tokens",
        "  parent: none yet",
        "  children: 0.4, 0.5, 0.6",
        "  summary of its children, 4 tokens, revision 1:",
        "node 1.2",
    ]
    assert "summary none: skipped" in succeed("tree", "node", "0.13", *NAMED, **at)
    listed = succeed("tree", "list", *NAMED, **at).splitlines()
    assert listed[:2] == ["0.1 [1] leaf 1", "0.2 [2] leaf 2"]
    assert len(listed) == 13
    under = succeed("tree", "list", "--under", "1.3", *NAMED, **at).splitlines()
    assert [line.split()[0] for line in under] == ["0.7", "0.8", "0.9"]
    assert succeed("tree", "text", "1.1", *NAMED, **at).splitlines() == TEXTS[:3]


def test_trees_are_made_listed_and_asked_to_close(address: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    session = f"s-{uuid4().hex}"
    succeed("session", "create", session, **at)
    settings = ("--segment-tokens", "200", "--max-children", "4", "--no-reasoning")
    made = ("memory", "create", "tree", "t", *settings, "-s", session)
    assert json.loads(succeed(*made, "--json", **at))["kind"] == "tree"
    listed = succeed("memory", "list", "-s", session, **at).splitlines()
    assert [line.split() for line in listed] == [
        ["memory", "kind", "status", "revision", "applied", "head"],
        ["t", "tree", "active", "0", "0", "0"],
    ]
    closing = succeed("tree", "seal", "-s", session, "-m", "t", "--no-wait", **at)
    assert closing.startswith("t is to be closed by operation ")
    shown = succeed("tree", "show", "-s", session, "-m", "t", **at)
    assert shown.startswith("t at revision 0, open: ")
    # No read waits for what a closed tree never reads; it is in the log nevertheless.
    late = run("ingest", "-", "-s", session, "-m", "t", stdin=b"Too late.", **at)
    assert late.returncode == 1
    assert late.stderr.splitlines()[-1] == (
        "error: tree 't' is closed at position 0: it will never have position 1. Read it as it is"
    )


def test_what_is_ingested_may_make_a_tree(address: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    named = ("-s", f"s-{uuid4().hex}", "-m", "t")
    ingest = ("ingest", "-", *named, "--no-wait")
    succeed(*ingest, "--kind", "tree", stdin=b"The harbour is closed.", **at)
    succeed(*ingest, stdin=b"The museum is open.", **at)
    shown = json.loads(succeed("tree", "show", *named, "--json", **at))
    assert (shown["kind"], shown["head"]) == ("tree", 2)
    wrong = run(*ingest, "--kind", "prism", stdin=b"More.", **at)
    assert_one_clear_line(wrong, "memory 't' is there already, and is a tree memory")


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (("tree", "node", "0.99", *NAMED), "tree 'book' has no node '0.99'"),
        (("tree", "node", "root", *NAMED), "must be a stored node as level.number"),
        (("tree", "text", "x", *NAMED), "must be a stored node as level.number"),
        (("tree", "list", "--under", "9.1", *NAMED), "has no node '9.1'"),
        (("tree", "list", "--under", "1.1", "--level", "0", *NAMED), "not both"),
        (("tree", "show", *NAMED, "--revision", "7"), "no revision 7; the newest is 1"),
        (("tree", "show", "-s", "nobody"), "there is no session 'nobody'"),
        (
            ("ingest", "-", *NAMED, "--kind", "tree", "--task", "x"),
            "--task: a tree memory has no such setting",
        ),
        (
            ("memory", "create", "tree", "t", "--max-children", "1", "-s", SESSION),
            "tree.max_children: must be 0 or 2 to 32",
        ),
        (
            ("memory", "rebuild", "prism", "n", *NAMED, "--task", "x"),
            "'book' is a tree memory: palimpsest memory rebuild tree",
        ),
        (
            ("memory", "rebuild", "tree", "n", *NAMED, "--max-children", "1"),
            "tree.max_children: must be 0 or 2 to 32",
        ),
        (("memory", "fold", TREE, "-s", SESSION), "is a tree memory; this is for prism memories"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    address: str, arguments: tuple[str, ...], about: str
) -> None:
    assert_one_clear_line(run(*arguments, PALIMPSEST_ADDRESS=address), about)
