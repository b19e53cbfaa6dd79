"""Which of its options an answer is."""

import pytest

from service.domain.answers.options import same_option


@pytest.mark.parametrize(
    ("answer", "options", "option"),
    [
        ("Bern", ("Bern", "Basel"), "Bern"),
        (" bern. ", ("Bern", "Basel"), "Bern"),
        ("well known", ("Well-known", "unknown"), "Well-known"),
        ("10 5", ("10-5", "105"), "10-5"),
        ("in Bern", ("Bern", "Basel"), None),
        ("A", ("a", "A."), None),
        # A sign makes another number of it, and a mark another name.
        ("5", ("-5", "7"), None),
        ("-5", ("-5", "5"), "-5"),
        ("C", ("C++", "Java"), None),
        ("c#.", ("C", "C#"), "C#"),
        ("None", ("None", "Some"), "None"),
    ],
)
def test_an_option_is_recognized_by_its_words(
    answer: str, options: tuple[str, ...], option: str | None
) -> None:
    assert same_option(answer, options) == option
