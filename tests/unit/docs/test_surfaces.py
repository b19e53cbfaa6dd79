"""The page of surfaces is that of the tests that it names."""

from tests import surfaces


def test_the_page_of_surfaces_names_tests_that_exist() -> None:
    assert list(surfaces.missing()) == []


def test_the_page_of_surfaces_is_the_written_one() -> None:
    assert surfaces.PAGE.read_text() == surfaces.page(), "run python -m tests.surfaces"
