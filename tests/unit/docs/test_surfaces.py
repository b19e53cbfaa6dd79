"""The page of surfaces is that of the tests that it names."""

from tests import surfaces
from verification import newcomer


def test_the_page_of_surfaces_names_tests_that_exist() -> None:
    assert list(surfaces.missing()) == []


def test_the_page_of_surfaces_is_the_written_one() -> None:
    written = surfaces.PAGE.read_text()
    assert written.startswith(surfaces.page()), "run python -m tests.surfaces"


def test_each_way_of_a_newcomer_is_on_its_page_and_was_measured() -> None:
    measured = surfaces.PAGE.read_text().partition(surfaces.NEWCOMER)[2]
    for name, surface in newcomer.SURFACES.items():
        cells = f"| {name} | {newcomer.lines_of(surface)} | {len(newcomer.commands(surface))} |"
        assert cells in measured, f"run python -m verification.newcomer --only {name!r}"
