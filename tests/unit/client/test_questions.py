"""Errors of questions name the field."""

from typing import Any

import pytest

from palimpsest import BrowseSettings, Question
from palimpsest._convert_answers import request_of


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"browsing": BrowseSettings(window_tokens=-(2**40))},
            "window_tokens cannot be -1099511627776",
        ),
        ({"browsing": BrowseSettings(pieces=2**40)}, "pieces cannot be 1099511627776"),
        ({"hybrid_leaves": 2**40}, "hybrid_leaves cannot be 1099511627776"),
        ({"model": "a/\ud800"}, "surrogates not allowed in model"),
    ],
)
def test_a_number_or_text_that_cannot_be_sent_is_named(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        request_of("s", Question(query="Who?", **asked))
