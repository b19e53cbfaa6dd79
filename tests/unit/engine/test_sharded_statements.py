"""What statements have none of, since Citus refuses it: functions of time in the wrong places.

It refuses a function that is not IMMUTABLE in the ON CONFLICT of an INSERT, in what a statement
that writes gives back, and in a CASE or coalesce of an UPDATE. See docs/guides/running.md#poolers.
"""

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import storage
from storage.engine.ready import Ready
from storage.memories.revision_statements import moving

#: Functions, operators and keywords whose value is not the same at all times. What
#: SQLAlchemy makes of `startswith` puts a pattern together, and that is only STABLE.
_VARIES = re.compile(
    r"""\b(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|random
    |gen_random_uuid|nextval|current_setting|to_char)\s*\(
    |\b(?:current_timestamp|current_date|current_time|localtime|localtimestamp)\b
    |\|\|\s*'%""",
    re.IGNORECASE | re.VERBOSE,
)
_WRITES = re.compile(r"\b(?:UPDATE\s+\w+\s+(?:AS\s+\w+\s+)?SET|INSERT\s+INTO|DELETE\s+FROM)\b")
#: Where a part begins that is looked at, and what it ends with.
_PARTS = {
    r"\bCASE\b": r"\bEND\b",
    r"\bcoalesce\s*\(": None,
    r"\bON\s+CONFLICT\b": r"\bRETURNING\b",
    r"\bRETURNING\b": None,
}
_FUNCTIONS = {"now", "clock_timestamp", "random", "gen_random_uuid", "startswith"}
#: Parts of statements that only read: they may.
_READING = {
    ("memories", "held_reason"),
    ("memories", "waiting_cause"),
    ("waiting", "find_cause"),
}


def refused_parts(text: str) -> list[str]:
    """Returns the parts of a statement that Citus would refuse."""
    text = re.sub(r"--[^\n]*", "", text)
    if not _WRITES.search(text):
        return []
    found = []
    for begin, end in _PARTS.items():
        for start in re.finditer(begin, text, re.IGNORECASE):
            part = _part(text, start, end)
            found += [part] if _VARIES.search(part) else []
    return found


def _part(text: str, start: re.Match[str], end: str | None) -> str:
    """Returns the part from `start` to its own `end`, or to the bracket that closes around it."""
    depth = 1 if start[0].endswith("(") else 0
    nested = 0
    opening = re.compile(start.re.pattern, re.IGNORECASE)
    for token in re.finditer(r"[()]|\w+", text[start.end() :]):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        nested += bool(opening.fullmatch(token[0]))
        if end is not None and depth == 0 and re.fullmatch(end, token[0], re.IGNORECASE):
            nested -= 1
        if depth < (1 if start[0].endswith("(") else 0) or nested < 0:
            return text[start.start() : start.end() + token.end()]
    return text[start.start() :]


def refused_calls(module: str, source: str) -> list[str]:
    """Returns the same of statements that are built with SQLAlchemy."""
    found = []
    for function in ast.parse(source).body:
        name = getattr(function, "name", "")
        for call in (one for one in ast.walk(function) if isinstance(one, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)
            looks = called == "on_conflict_do_update" or (
                called in ("case", "coalesce") and (module, name) not in _READING
            )
            inside = [*call.args, *(one.value for one in call.keywords)]
            if looks and any(_varies(one, function) for one in inside):
                found.append(ast.unparse(call))
    return found


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _varies(node: ast.AST, function: ast.AST) -> bool:
    """Returns whether an expression calls such a function, also by `function`'s name for it."""
    if isinstance(node, ast.Attribute):
        if node.attr == "excluded":
            return False
        if node.attr in _FUNCTIONS:
            return True
    if isinstance(node, ast.Name) and any(
        _varies(value, function) for value in _given(node.id, function)
    ):
        return True
    return any(_varies(child, function) for child in ast.iter_child_nodes(node))


def _given(name: str, function: ast.AST) -> Iterator[ast.expr]:
    for one in ast.walk(function):
        if not isinstance(one, ast.Assign | ast.AnnAssign) or one.value is None:
            continue
        targets = one.targets if isinstance(one, ast.Assign) else [one.target]
        if name in map(_name, targets):
            yield one.value


_MODULES = [
    import_module(one.name)
    for one in pkgutil.walk_packages(storage.__path__, "storage.")
    if not one.ispkg
]


def _statements() -> dict[str, str]:
    """Returns the texts of all statements that modules have ready, by their places."""
    texts = {}
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, Ready):
                texts[f"{module.__name__}.{name}"] = value.text
            elif isinstance(value, str) and name != "__doc__":
                texts[f"{module.__name__}.{name}"] = value
    for reads in (False, True):
        texts[f"moving, reads={reads}"] = moving(
            ("revision",), by_hand=False, consolidates=True, reads=reads
        ).text
    return texts


def test_no_statement_has_a_function_of_time_where_it_is_refused() -> None:
    texts = _statements()
    assert len([one for one in texts.values() if _WRITES.search(one)]) > 15, "it sees them"
    refused = {where: refused_parts(text) for where, text in texts.items()}
    assert {where: parts for where, parts in refused.items() if parts} == {}


def test_no_statement_is_built_with_a_function_of_time_where_it_is_refused() -> None:
    found: dict[str, list[str]] = {}
    for module in _MODULES:
        path = Path(str(module.__file__))
        refused = refused_calls(path.stem, path.read_text(encoding="utf-8"))
        found |= {module.__name__: refused} if refused else {}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE memory SET ready_at = CASE WHEN resting THEN now() ELSE ready_at END FROM heads",
        "WITH a AS (SELECT 1) UPDATE memory SET at = coalesce(at, (SELECT now())) WHERE true",
        "UPDATE m SET a = CASE WHEN a THEN CASE b WHEN 1 THEN 2 END ELSE now() END WHERE b",
        "INSERT INTO process VALUES (1) ON CONFLICT (a) DO UPDATE SET seen_at = now()",
        "INSERT INTO i VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1 WHERE i.until <= now()",
        "UPDATE m SET a = 1 RETURNING (SELECT clock_timestamp() - created_at FROM chunk)",
        "UPDATE m SET a = 1 RETURNING (SELECT count(*) FROM d WHERE cause LIKE 'no' || '%')",
    ],
)
def test_what_is_refused_is_found(text: str) -> None:
    assert len(refused_parts(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "SELECT CASE WHEN ready_at > now() THEN held_reason END FROM memory",
        "INSERT INTO p (at) VALUES (now()) ON CONFLICT (a) DO UPDATE SET at = excluded.at",
        "UPDATE m SET at = CASE WHEN b THEN clock.at ELSE m.at END, c = now() "
        "FROM (SELECT now() AS at) AS clock RETURNING a",
        "WITH a AS (UPDATE m SET b = 1 RETURNING b) SELECT now() FROM a",
    ],
)
def test_what_is_not_refused_is_left_alone(text: str) -> None:
    assert refused_parts(text) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return case((waits, memory.c.ready_at), else_=func.now())",
        "def f():\n    said = {'at': func.now()}\n"
        "    row.on_conflict_do_update(index_elements=['a'], set_=said)",
        "def f():\n    row.on_conflict_do_update(set_={**said, 'seen_at': func.now()})",
    ],
)
def test_what_is_built_and_refused_is_found(source: str) -> None:
    assert len(refused_calls("module", source)) == 1
