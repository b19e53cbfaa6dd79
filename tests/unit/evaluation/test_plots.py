"""Plots: what is drawn, and that nothing is fetched to draw it."""

import re
from xml.etree import ElementTree

from service.evaluation.plots import lines

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
