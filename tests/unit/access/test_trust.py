"""Levels of trust: their order, and what prompts say of them."""

import pytest

from service.domain.access.trust import Trust, least_trust
from service.domain.prompting.marking import marked, trust_note

KEY = b"key"


def test_the_least_trusted_level_counts() -> None:
    assert least_trust(()) is Trust.TRUSTED
    assert least_trust((Trust.UNVERIFIED, Trust.TRUSTED)) is Trust.UNVERIFIED
    assert least_trust((Trust.UNVERIFIED, Trust.BLOCKED, Trust.TRUSTED)) is Trust.BLOCKED


@pytest.mark.parametrize("level", Trust)
@pytest.mark.parametrize("least", Trust)
def test_a_level_suffices_where_it_is_no_lower(level: Trust, least: Trust) -> None:
    assert level.suffices(least) is (list(Trust).index(level) <= list(Trust).index(least))


def test_a_mark_names_a_level_that_is_not_the_highest() -> None:
    assert marked("text", KEY, Trust.TRUSTED) == marked("text", KEY)
    first, rest = marked("text", KEY, Trust.UNVERIFIED).split("\n", 1)
    plain_first, plain_rest = marked("text", KEY).split("\n", 1)
    assert (first, rest) == (f"{plain_first} unverified", plain_rest)


def test_a_prompt_says_what_the_level_means_only_where_it_shows_one() -> None:
    assert trust_note([Trust.TRUSTED, Trust.TRUSTED]) == ""
    assert "unverified" in trust_note([Trust.TRUSTED, Trust.UNVERIFIED])
