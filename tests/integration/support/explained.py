"""Reads how the server carried statements out, and what each of them read.

The module auto_explain reports every statement that is run on a connection, those within
functions and triggers too. So nothing here knows the statements: a test runs the code that
sends them, and gets their plans.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from unittest import mock

import psycopg
from psycopg import sql

from storage.engine import connections
from storage.engine.driver import Connection

_SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    # To the client, and not to the server's log.
    "auto_explain.log_level": "notice",
}
_BEGIN = "plan:\n"
#: Functions without statements of their own.
_OWN_FUNCTIONS = ("unnest", "generate_series")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """One way into a table or an index, in one plan."""

    #: What the server calls it: Seq Scan, Index Scan …
    way: str
    #: The table; of a scan of an index alone the index.
    relation: str
    #: Rows that it returned or discarded, over all its loops.
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a statement was carried out."""

    statement: str
    scans: Sequence[Scan]
    #: Pages that were looked at, each as often as it was; 0 of a function of ours.
    pages: int
    #: As the server has it.
    tree: dict[str, Any] = field(repr=False)

    def wrong(self, large: set[str], *, rows: int, pages: int) -> "Wrong | None":
        """Checks it where no scan may read more than `rows`, and all of it no more
        than `pages`, and none of the `large` tables may be read from one end to the other."""
        found = [
            f"{scan.way} on {scan.relation}: {scan.rows} rows"
            for scan in self.scans
            if scan.rows > rows or (scan.way == "Seq Scan" and scan.relation in large)
        ]
        if self.pages > pages:
            found.append(f"{self.pages} pages")
        if not found:
            return None
        return Wrong(why="; ".join(found), statement=self.statement, plan=_drawn(self.tree))


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrong:
    """A statement that reads too much."""

    why: str
    statement: str
    #: For the message of a failed test.
    plan: str

    def __str__(self) -> str:
        return f"{self.why}\n{self.statement.strip()}\n{self.plan}"


def _plan(text: str) -> Plan:
    said = json.loads(text)
    tree = said["Plan"]
    scans = [
        Scan(
            way=node["Node Type"],
            relation=node.get("Relation Name") or node["Index Name"],
            rows=_rows(node),
        )
        for node in _nodes(tree)
        if "Scan" in node["Node Type"] and ("Relation Name" in node or "Index Name" in node)
    ]
    pages = tree.get("Shared Hit Blocks", 0) + tree.get("Shared Read Blocks", 0)
    if any(node.get("Function Name", "unnest") not in _OWN_FUNCTIONS for node in _nodes(tree)):
        # The function's statements report theirs; the rest is planning these.
        pages = 0
    return Plan(statement=said["Query Text"], scans=scans, pages=pages, tree=tree)


def _nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield tree
    for part in tree.get("Plans", ()):
        yield from _nodes(part)


def _rows(node: dict[str, Any]) -> int:
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    # Of each loop, on the average.
    return round(sum(float(node.get(name, 0)) for name in names) * int(node["Actual Loops"]))


def _drawn(node: dict[str, Any], depth: int = 1) -> str:
    """Returns a plan in few lines."""
    shown = (
        *("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Actual Rows"),
        *("Rows Removed by Filter", "Actual Loops", "Shared Hit Blocks"),
    )
    said = ", ".join(f"{node[name]}" for name in shown if name in node)
    parts = [_drawn(part, depth + 1) for part in node.get("Plans", ())]
    return "\n".join(["  " * depth + said, *parts])


class Heard:
    """The plans that servers reported of the statements that were run."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    def __call__(self, notice: psycopg.errors.Diagnostic) -> None:
        """Takes a notice of the server's; those that are no plans are left alone."""
        _, begin, plan = (notice.message_primary or "").partition(_BEGIN)
        if begin:
            self._plans.append(_plan(plan))

    def take(self) -> Sequence[Plan]:
        """Returns the plans since the last time."""
        taken, self._plans = self._plans, []
        return taken


def explain_all(connection: psycopg.Connection[Any], **settings: str) -> None:
    """Makes a superuser's database report all statements on its connections from now on.

    `settings` are set in addition, for all that connect then.
    """
    connection.execute("LOAD 'auto_explain'")
    name = sql.Identifier(connection.info.dbname)
    for key, value in {**_SETTINGS, **settings}.items():
        set_one = sql.SQL("ALTER DATABASE {} SET {} = {}")
        connection.execute(set_one.format(name, sql.SQL(key), sql.Literal(value)))


@contextmanager
def hearing() -> Iterator[Heard]:
    """Yields the plans of all connections that `Database` opens meanwhile."""
    heard = Heard()

    class Hearing(Connection):
        @classmethod
        async def connect(cls, conninfo: str = "", **arguments: Any) -> Self:
            connection = await super().connect(conninfo, **arguments)
            connection.add_notice_handler(heard)
            return connection

    with mock.patch.object(connections, "Connection", Hearing):
        yield heard
