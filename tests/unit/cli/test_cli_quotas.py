"""Reads what `palimpsest access quota set` is given."""

import pytest

from service.cli.access import _quota_change
from service.cli.output import CommandError


def test_a_quota_is_a_number_or_the_default() -> None:
    assert _quota_change("sessions=0") == ("sessions", 0)
    assert _quota_change(f"stored_bytes={'9' * 18}") == ("stored_bytes", 10**18 - 1)
    assert _quota_change("sessions=default") == ("sessions", None)


@pytest.mark.parametrize(
    "number", ["", "-1", "1.5", "+1", " 1", "\u0661", "9" * 19, "9" * 5000, "DEFAULT"]
)
def test_what_is_no_quota_is_one_clear_error(number: str) -> None:
    with pytest.raises(CommandError, match="give a number of at most 18 digits, 0 or more"):
        _quota_change(f"sessions={number}")
