"""How the command line reads policies of retention."""

import pytest

from palimpsest import Retention
from service.cli.output import CommandError
from service.cli.session import retention


def test_a_policy_names_days_for_each_kind_of_data() -> None:
    assert retention(()) == Retention()
    given = ("idle=365", "session=36500", "calls=7", "answers=forever", "trajectories=0")
    assert retention(given) == Retention(
        idle_session_days=365, session_days=36_500, call_days=7, answer_days=0, trajectory_days=0
    )
    assert retention(("calls=7", "calls=07")) == Retention(call_days=7)


@pytest.mark.parametrize(
    "wrong",
    ["calls", "calls=", "calls=-1", "calls=1.5", "calls=³", "calls=1000000", "log=7", "=7", ""],
)
def test_what_is_no_policy_is_refused(wrong: str) -> None:
    with pytest.raises(CommandError, match=r"^--retain: "):
        retention((wrong,))


def test_two_values_are_refused() -> None:
    with pytest.raises(CommandError, match="two values"):
        retention(("calls=7", "calls=8"))
