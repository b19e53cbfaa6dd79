"""The table of an evaluation: nothing of it is cut off, however many strategies there are."""

from itertools import pairwise

import pytest

from evaluation.cli.tables import show_summaries
from evaluation.measures import Measure
from evaluation.strategies import ALL
from evaluation.summary import summarize
from service.cli.output import out
from tests.unit.evaluation.results import result


def shown(names: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    results = [result(1, strategy=name, score=0.5, pieces=3) for name in names]
    results += [result(2, strategy="auto", chosen=chosen) for chosen in ("whole",)]
    results += [result(3, strategy="auto", chosen="dciso-independent")]
    summaries = [summarize(name, results, []) for name in names]
    monkeypatch.setattr(out, "_width", width)
    with out.capture() as capture:
        show_summaries(summaries, Measure.F1)
    return capture.get()


@pytest.mark.parametrize("width", [40, 80, 120, 1000])
def test_all_strategies_are_shown_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(tuple(ALL), width, monkeypatch)
    lines = text.splitlines()
    heads = [line for line, below in pairwise(lines) if below.startswith("questions")]
    assert " ".join(heads).split() == list(ALL)
    assert "…" not in text.replace("… where", "")
    assert text.count("tokens/question") == text.count("  pieces read")
    assert {"whole 1", "dciso-independent 1"} <= {one.strip() for one in text.split("  ")}
    assert all(len(line) <= width for line in lines)
    if width == 1000:
        assert text.count("tokens/question") == 1


def test_what_no_strategy_has_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(("whole", "prism"), 80, monkeypatch)
    for name in ("evidence", "navigation", "building", "chosen"):
        assert name not in text
