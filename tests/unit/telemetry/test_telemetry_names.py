"""Every name of a metric, a span and an attribute is in one file, is used, and is explained."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from service.telemetry import names
from tests import ROOT

NAMES = ROOT / "service" / "telemetry" / "names.py"
#: For what comes next.
AWAITED = {
    *("GenAiOperation.DELETE_MEMORY_STORE", "GenAiOperation.DELETE_MEMORY"),
}
#: Of a call that takes a name, and which of its arguments is one.
NAMED = {
    **dict.fromkeys(
        (
            *("create_counter", "create_up_down_counter", "create_histogram", "create_gauge"),
            *("create_observable_counter", "create_observable_up_down_counter"),
            *("create_observable_gauge", "start_as_current_span", "start_span", "observe"),
            *("set_attribute", "_span"),
        ),
        0,
    ),
    "Observation": 1,
    "add": 1,
    "record": 1,
}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("service", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != NAMES:
                yield path.relative_to(ROOT), ast.parse(path.read_text())


def known() -> dict[str, str]:
    """Returns each name by the constant that holds it."""
    return {
        f"{kind}.{constant}": value
        for kind in ("Metric", "SpanName", "Attribute", "GenAiOperation")
        for constant, value in vars(getattr(names, kind)).items()
        if constant.isupper()
    }


def literals(node: ast.AST) -> Iterator[str]:
    """Yields what is written out as a name in an argument: itself, or a key of it."""
    keys = node.keys if isinstance(node, ast.Dict) else [node]
    for key in keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.JoinedStr):
            yield ast.unparse(key)


def test_no_name_is_written_out_where_it_is_used() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            at = NAMED.get(name)
            arguments = [] if at is None else node.args[at : at + 1]
            arguments += [one.value for one in node.keywords if one.arg == "attributes"]
            found += [f"{path}:{node.lineno} {one}" for a in arguments for one in literals(a)]
    assert not found


def test_no_name_of_the_conventions_is_written_out_anywhere() -> None:
    # Ours are those of loggers and of health services, too.
    standard = {one for one in known().values() if "." in one and not one.startswith("palimpsest")}
    found = [
        f"{path}:{node.lineno} {node.value}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in standard
    ]
    assert not found


def test_every_name_is_used() -> None:
    used = {
        f"{node.value.id}.{node.attr}"
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert set(known()) - used == AWAITED


def test_no_two_names_are_the_same() -> None:
    values = [value for key, value in known().items() if not key.startswith("GenAi")]
    assert len(set(values)) == len(values)


def test_each_of_our_own_is_explained() -> None:
    lines = NAMES.read_text().splitlines()
    own = [
        i for i, line in enumerate(lines) if re.search(r'^    [A-Z_]+: Final = "palimpsest', line)
    ]
    assert len(own) > 30
    assert not [lines[one] for one in own if not lines[one - 1].lstrip().startswith("#:")]
