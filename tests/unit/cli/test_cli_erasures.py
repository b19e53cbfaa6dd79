"""Shows what a scan after an erasure found, and what to do about it."""

from collections.abc import Mapping

import pytest

from service.cli.erasure import _show_all
from service.usecases.operations.erasure_scan import ScannedPlace

FILE = "postgres/data/base/1/2: the text as UTF-8"


@pytest.mark.parametrize(
    ("left", "hints"),
    [
        ({}, []),
        ({"chunk: rows": 1}, []),
        ({FILE: 1, "postgres/data/pg_wal/1: the text as hex": 2}, ["--rewrite ends that"]),
        ({"key: the target's id": 2}, ["they expire by themselves"]),
    ],
)
def test_what_is_left_says_what_ends_it(
    left: Mapping[str, int], hints: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ScannedPlace(name="place", left=left, notes={})
    assert _show_all(iter([place]), as_json=False) is bool(left)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(hints)
    assert all(hint in line for hint, line in zip(hints, said, strict=True))
