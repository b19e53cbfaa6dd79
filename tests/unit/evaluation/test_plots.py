"""Plots: what is drawn, and that nothing is fetched to draw it."""

import re
from xml.etree import ElementTree

from service.evaluation.plots import lines

SERIES = {"one <way>": [(10.0, 1.0), (200.0, 0.25)], "another": [(10.0, 0.5), (200.0, 0.0)]}


def drawn() -> bytes:
    return lines("How it <went>", x_title="steps", y_title="share", y_range=(0, 1), series=SERIES)


def test_every_series_has_a_line_and_its_name() -> None:
    root = ElementTree.fromstring(drawn())
    texts = [one.text for one in root.iter() if one.tag.endswith("}text")]
    assert {"How it <went>", "steps", "share", "one <way>", "another"} <= {
        text for text in texts if text is not None
    }
    paths = [one for one in root.iter() if one.get("class", "").startswith("line reactive")]
    assert len(paths) == len(SERIES)


def test_the_same_figures_give_the_same_file() -> None:
    assert drawn() == drawn()


def test_it_names_no_script_and_no_picture_elsewhere() -> None:
    addresses = set(re.findall(rb'(?:href|src)="([^"]*)"', drawn()))
    assert addresses == set()
