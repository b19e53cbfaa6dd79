"""The client without `await` has every method of the other, with the same parameters."""

import inspect
from typing import Any, assert_type

import pytest

import palimpsest
from palimpsest import sync

PAIRS: list[tuple[type, type]] = [
    (palimpsest.Client, sync.Client),
    (palimpsest.Session, sync.Session),
    (palimpsest.Memory, sync.Memory),
    (palimpsest.Tree, sync.Tree),
    (palimpsest.State, sync.State),
    (palimpsest.Producer, sync.Producer),
    (palimpsest.Agent, sync.Agent),
]
#: Of the connection itself, and what is written otherwise without `await`.
WITHIN = {"call", "pages", "responses", "channel", "aclose"}


def members(cls: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and name not in WITHIN
    }


@pytest.mark.parametrize(("awaited", "plain"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_nothing_is_missing_and_parameters_are_the_same(awaited: type, plain: type) -> None:
    have = members(plain)
    for name, method in members(awaited).items():
        assert name in have, f"{plain.__module__}.{plain.__name__}.{name}"
        if callable(method):
            assert parameters(have[name]) == parameters(method), name
            assert inspect.getdoc(have[name]), f"{name} says what it does"


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()
    ]


def test_connect_is_there() -> None:
    assert parameters(sync.connect) == parameters(palimpsest.connect)


def checked(session: sync.Session) -> None:
    """Never runs: mypy reads it, and an ignored error that is none fails there."""
    assert_type(session.search("x", limit=3), palimpsest.SearchResult)
    assert_type(session.create_tree("x", segment_tokens=9), sync.Tree)
    session.search("x", limt=3)  # type: ignore[call-arg]
    session.memory("m").ask("x", after=3)  # type: ignore[arg-type]
