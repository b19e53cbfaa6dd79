"""When a budget refuses a call, and what it says."""

from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.spend.budgets import (
    PRICE_LOOK_SECONDS,
    BudgetOwner,
    BudgetPeriod,
    BudgetScope,
    Standing,
    dollars,
    refusal,
)
from service.domain.values.errors import CallBound

amounts = st.integers(0, 2**62)
limits = st.none() | amounts


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    return Standing(
        owner=BudgetOwner(scope=draw(st.sampled_from(BudgetScope)), session="s", memory="m"),
        period=draw(st.sampled_from(BudgetPeriod)),
        limit_tokens=draw(limits),
        limit_micro_usd=draw(limits),
        spent_tokens=draw(amounts),
        spent_micro_usd=draw(amounts),
        unpriced_calls=0,
        reserved_tokens=draw(amounts),
        reserved_micro_usd=draw(amounts),
        day_end=datetime(2026, 11, 22, tzinfo=UTC),
        day_seconds=draw(st.floats(0.001, 86_400)),
    )


def fits(one: Standing, asked: CallBound, *, reserved: bool) -> bool:
    """Returns whether there is room for a call, with or without what is reserved."""
    tokens = one.spent_tokens + asked.tokens + one.reserved_tokens * reserved
    money = one.spent_micro_usd + (asked.micro_usd or 0) + one.reserved_micro_usd * reserved
    if one.limit_micro_usd is not None and asked.micro_usd is None:
        return False
    return (one.limit_tokens is None or tokens <= one.limit_tokens) and (
        one.limit_micro_usd is None or money <= one.limit_micro_usd
    )


@given(found=st.lists(standings(), max_size=6), tokens=amounts, micro_usd=st.none() | amounts)
def test_a_call_is_refused_when_any_budget_has_no_room_for_it(
    found: list[Standing], tokens: int, micro_usd: int | None
) -> None:
    asked = CallBound(tokens=tokens, micro_usd=micro_usd)
    error = refusal(found, asked)
    assert (error is None) == all(fits(one, asked, reserved=True) for one in found)
    if error is None:
        return
    assert error.asked is asked
    assert "\n" not in error.message
    if error.waits_for_calls:
        # Then nothing but the calls under way stands in the way.
        assert all(fits(one, asked, reserved=False) for one in found)
    if error.resume_seconds is None:
        totals = [one for one in found if one.period is BudgetPeriod.TOTAL]
        assert not all(fits(one, asked, reserved=False) for one in totals)


def test_a_missing_price_is_looked_for_again_soon() -> None:
    standing = Standing(
        owner=BudgetOwner(scope=BudgetScope.TENANT),
        period=BudgetPeriod.TOTAL,
        limit_tokens=None,
        limit_micro_usd=1,
        spent_tokens=0,
        spent_micro_usd=0,
        unpriced_calls=0,
        reserved_tokens=0,
        reserved_micro_usd=0,
        day_end=datetime(2026, 11, 22, tzinfo=UTC),
        day_seconds=1.0,
    )
    error = refusal([standing], CallBound(tokens=1, micro_usd=None))
    assert error is not None
    assert error.resume_seconds == PRICE_LOOK_SECONDS
    assert not error.waits_for_calls
    assert "the budget of the tenant is in dollars" in error.message


@given(st.integers(0, 2**63 - 1))
def test_money_in_words_is_exact(micro_usd: int) -> None:
    said = dollars(micro_usd)
    assert Fraction(said.removeprefix("$").replace(",", "")) * 1_000_000 == micro_usd


@pytest.mark.parametrize(
    ("micro_usd", "said"),
    [(0, "$0.00"), (2_500_000, "$2.50"), (1, "$0.000001"), (1_234_567_890_000, "$1,234,567.89")],
)
def test_money_has_two_decimals_or_as_many_as_it_needs(micro_usd: int, said: str) -> None:
    assert dollars(micro_usd) == said
