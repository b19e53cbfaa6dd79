"""What users see of the client: names and signatures, as `exports.txt` records them.

PALIMPSEST_TEST_UPDATE=1 writes it anew; a change of it is a change of the API.
"""

import ast
import inspect
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import pytest

import palimpsest
from palimpsest import sync

CLIENT = Path(palimpsest.__file__).parent
RECORDED = Path(__file__).parent / "exports.txt"
#: Written otherwise without `await`.
RENAMED = {"aclose": "close"}
#: Classes that either face has of its own.
FACES = [name for name in sync.__all__ if getattr(sync, name) is not getattr(palimpsest, name)]


def definitions() -> dict[str, ast.stmt]:
    """Returns what the modules of the awaited face define, as it is written there."""
    found: dict[str, ast.stmt] = {}
    for path in sorted(CLIENT.glob("_*.py")) + sorted(CLIENT.glob("_async/_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node
    return found


def lines() -> Iterator[str]:
    """Yields a line for each export, and for each public member of a class."""
    known = definitions()
    for name in sorted(set(palimpsest.__all__) - {"__version__"}):
        node = known[name]
        if not isinstance(node, ast.ClassDef):
            yield from _line("", node)
            continue
        bases = [ast.unparse(one) for one in node.bases]
        yield f"class {name}({', '.join(bases)})"
        while bases and isinstance(base := known.get(bases[0].partition("[")[0]), ast.ClassDef):
            if base.name in palimpsest.__all__:
                break
            node.body += base.body
            bases = [ast.unparse(one) for one in base.bases]
        for member in node.body:
            yield from _line(f"    {name}.", member)


def _line(owner: str, node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # Of what users do not make themselves, how it is made is no user's matter.
        made = node.name == "__init__" and not ({owner.strip(" .")} & set(FACES) - {"Client"})
        if made or not node.name.startswith("_"):
            wait = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
            said = "" if node.returns is None else ast.unparse(node.returns)
            yield f"{owner}{wait}{node.name}({ast.unparse(node.args)}) -> {said}"
    elif isinstance(node, ast.AnnAssign | ast.Assign):
        yield f"{owner}{ast.unparse(node)}"


def members(cls: type) -> dict[str, Any]:
    """Returns what of a class is its users', without what it has from Python's own."""
    own = [one for one in reversed(cls.__mro__) if one.__module__.startswith("palimpsest")]
    found = {name for one in own for name in one.__dict__ if not name.startswith("_")}
    return {name: inspect.getattr_static(cls, name) for name in sorted(found)}


def test_exports_are_those_that_are_recorded() -> None:
    found = "\n".join(lines()) + "\n"
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        RECORDED.write_text(found)
    assert RECORDED.read_text() == found, "another API: PALIMPSEST_TEST_UPDATE=1 records it"


def test_both_faces_export_the_same() -> None:
    assert set(sync.__all__) == set(palimpsest.__all__) - {"__version__"}
    assert len(set(palimpsest.__all__)) == len(palimpsest.__all__)
    own = "Access Agent AnswerStream Client Memory Operation Producer"
    own += " Provenance Session State Tree Watch connect"
    assert " ".join(sorted(FACES)) == own


@pytest.mark.parametrize("name", [name for name in FACES if name != "connect"])
def test_parameters_are_the_same_without_await(name: str) -> None:
    awaited, plain = members(getattr(palimpsest, name)), members(getattr(sync, name))
    assert {RENAMED.get(one, one) for one in awaited} == set(plain)
    for one, method in awaited.items():
        twin = plain[RENAMED.get(one, one)]
        assert inspect.getdoc(twin), f"{name}.{one} says what it does"
        if inspect.isfunction(method):
            assert parameters(twin) == parameters(method), one
            assert not inspect.iscoroutinefunction(twin), one


def test_connect_has_the_same_parameters() -> None:
    assert parameters(sync.connect) == parameters(palimpsest.connect)


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()
    ]


def test_nothing_is_untyped() -> None:
    for module in (palimpsest, sync):
        for name in FACES:
            value = getattr(module, name)
            methods = members(value).values() if inspect.isclass(value) else [value]
            for method in filter(inspect.isfunction, methods):
                for one in inspect.signature(method).parameters.values():
                    said = one.annotation
                    assert one.name == "self" or said is not inspect.Parameter.empty, method
                    assert one.kind is not one.VAR_KEYWORD or typing.is_typeddict(
                        *typing.get_args(said)
                    ), method


def checked(session: sync.Session) -> None:
    """Never runs: mypy reads it, and an ignored error that is none fails there."""
    assert_type(session.search("x", limit=3), palimpsest.SearchResult)
    assert_type(session.create_tree("x", segment_tokens=9), sync.Tree)
    session.search("x", limt=3)  # type: ignore[call-arg]
    session.memory("m").ask("x", after=3)  # type: ignore[arg-type]
