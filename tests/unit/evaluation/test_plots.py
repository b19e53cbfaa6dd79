"""Plots are drawn, and nothing is fetched to draw them."""

import re
from xml.etree import ElementTree

from evaluation.measures import Measure
from evaluation.plots import lines
from evaluation.strategies import Spent
from evaluation.strategy_plot import strategy_plot
from evaluation.summary import summarize
from tests.unit.evaluation.results import result

SERIES = {"one <way>": [(10.0, 1.0), (200.0, 0.25)], "another": [(10.0, 0.5), (200.0, 0.0)]}


def drawn() -> str:
    return lines("How it <went>", x_title="steps", y_title="share", y_range=(0, 1), series=SERIES)


def test_every_series_has_a_line_and_its_name() -> None:
    root = ElementTree.fromstring(drawn())
    texts = {one.text for one in root.iter() if one.tag.endswith("}text")}
    assert {"How it <went>", "steps", "share", "one <way>", "another", "10", "200"} <= texts
    groups = [one for one in root.iter() if one.get("class") == "series lines"]
    drawn_lines = [path for group in groups for path in group]
    assert len(drawn_lines) == len(SERIES)
    looks = {(path.get("stroke"), path.get("stroke-dasharray")) for path in drawn_lines}
    assert len(looks) == len(SERIES)


def test_any_number_of_series() -> None:
    series = {f"way {n}": [(1.0, n / 30), (2.0, 0.5)] for n in range(30)}
    root = ElementTree.fromstring(
        lines("Many", x_title="x", y_title="y", y_range=(0, 1), series=series)
    )
    assert sum(one.get("class") == "series lines" for one in root.iter()) == 30


def test_the_same_figures_give_the_same_file() -> None:
    assert drawn() == drawn()


def test_it_names_no_script_and_no_picture_elsewhere() -> None:
    assert re.findall(r'(?:href|src)="([^"]*)"', drawn()) == []
    assert "<script" not in drawn()


def strategies(count: int) -> str:
    results = [
        result(
            1,
            strategy=f"way-{n}",
            score=n / count,
            evidence_shown=None if n % 2 else 0.5,
            spent=Spent(calls=1, input_tokens=10**n, output_tokens=0),
        )
        for n in range(count)
    ]
    found = [summarize(f"way-{n}", results, []) for n in range(count)]
    return strategy_plot(found, Measure.F1, title="a <set>")


def test_every_strategy_has_a_dot_where_it_has_a_figure() -> None:
    root = ElementTree.fromstring(strategies(4))
    texts = [one.text for one in root.iter() if one.tag.endswith("}text")]
    assert {"a <set>: f1", "a <set>: evidence shown", "1", "1,000"} <= set(texts)
    assert "a <set>: evidence cited" not in texts, "nobody has one"
    assert (texts.count("way-1"), texts.count("way-2")) == (1, 2)
    dots = [dot for dot in root.iter() if dot.tag.endswith("}circle")]
    assert len(dots) == 4 + 2
    assert len({(dot.get("fill"), dot.get("r")) for dot in dots}) == 4
    assert strategies(4) == strategies(4)


def test_any_number_of_strategies_has_looks_of_its_own() -> None:
    root = ElementTree.fromstring(strategies(22))
    dots = [dot for dot in root.iter() if dot.tag.endswith("}circle")]
    assert len({(dot.get("fill"), dot.get("r")) for dot in dots}) == 22
