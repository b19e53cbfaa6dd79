"""Budgets limit what may be spent in a day or altogether, and refuse calls beyond it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from service.domain.values.errors import BudgetExhausted, CallBound

#: A memory whose model has no price is checked again after so long: the price is set in
#: the configuration, which sends no signal.
PRICE_LOOK_SECONDS = 60.0
#: How often a budget is checked while calls under way reserve the rest of it.
RESERVED_LOOK_SECONDS = 2.0


class BudgetScope(StrEnum):
    """Whose calls a budget bounds."""

    TENANT = "tenant"
    SESSION = "session"
    MEMORY = "memory"


class BudgetPeriod(StrEnum):
    """When what was spent is forgotten: at midnight UTC, or never."""

    DAY = "day"
    TOTAL = "total"


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetOwner:
    """What a budget is set on, by name."""

    scope: BudgetScope
    #: Empty for the tenant's.
    session: str = ""
    #: Empty unless the scope is a memory.
    memory: str = ""

    def __str__(self) -> str:
        match self.scope:
            case BudgetScope.TENANT:
                return "the tenant"
            case BudgetScope.SESSION:
                return f"session {self.session!r}"
            case BudgetScope.MEMORY:
                return f"memory {self.memory!r} of session {self.session!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetLimits:
    """What a budget allows in its period; one of them is set."""

    #: Tokens of prompts and replies together; 0 or more.
    tokens: int | None
    #: Millionths of a US dollar; 0 or more.
    micro_usd: int | None

    def etag(self) -> str:
        """Returns what changes whenever the limits do."""
        return hashlib.sha256(f"{self.tokens}/{self.micro_usd}".encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A budget, and what is spent and reserved of it."""

    owner: BudgetOwner
    period: BudgetPeriod
    #: Tokens of prompts and replies together, cached ones included; None: no limit.
    limit_tokens: int | None
    #: Millionths of a US dollar; None: no limit.
    limit_micro_usd: int | None
    spent_tokens: int
    spent_micro_usd: int
    #: Calls that are in `spent_tokens` and have no price, so not in `spent_micro_usd`.
    unpriced_calls: int
    #: The most that calls under way may use.
    reserved_tokens: int
    reserved_micro_usd: int
    #: The next midnight UTC.
    day_end: datetime
    #: Seconds until then.
    day_seconds: float

    @property
    def limits(self) -> BudgetLimits:
        """What it allows."""
        return BudgetLimits(tokens=self.limit_tokens, micro_usd=self.limit_micro_usd)

    def reserving(self, asked: CallBound) -> "Standing":
        """Returns the same with one more call under way."""
        return replace(
            self,
            reserved_tokens=self.reserved_tokens + asked.tokens,
            reserved_micro_usd=self.reserved_micro_usd + (asked.micro_usd or 0),
        )


def refusal(standings: Iterable[Standing], asked: CallBound) -> BudgetExhausted | None:
    """Returns why the budgets do not allow the call; None when all of them do.

    Of several reasons the one that lasts longest.
    """
    found = [error for one in standings for error in _refusals(one, asked)]
    return max(found, key=_lasts, default=None)


def _lasts(error: BudgetExhausted) -> float:
    if error.waits_for_calls:
        # However soon the day ends: a budget that is used up is the better reason.
        return 0.0
    return float("inf") if error.resume_seconds is None else error.resume_seconds


def _refusals(standing: Standing, asked: CallBound) -> Iterable[BudgetExhausted]:
    if standing.limit_tokens is not None:
        tokens = _Sum("tokens", standing.limit_tokens, standing.spent_tokens)
        yield from _refuse(standing, tokens, standing.reserved_tokens, asked)
    if standing.limit_micro_usd is not None:
        if asked.micro_usd is None:
            yield _no_price(standing, asked)
            return
        money = _Sum("micro_usd", standing.limit_micro_usd, standing.spent_micro_usd)
        yield from _refuse(standing, money, standing.reserved_micro_usd, asked)


@dataclass(frozen=True, slots=True)
class _Sum:
    unit: str
    limit: int
    spent: int

    def of(self, asked: CallBound) -> int:
        return asked.tokens if self.unit == "tokens" else asked.micro_usd or 0

    def words(self, amount: int) -> str:
        return f"{amount:,} tokens" if self.unit == "tokens" else dollars(amount)


def dollars(micro_usd: int) -> str:
    """Returns an amount of money in words: as many decimals as it has, at least two."""
    whole, rest = divmod(micro_usd, 1_000_000)
    return f"${whole:,}.{f'{rest:06}'.rstrip('0').ljust(2, '0')}"


def _refuse(
    standing: Standing, kind: _Sum, reserved: int, call: CallBound
) -> Iterable[BudgetExhausted]:
    asked = kind.of(call)
    if kind.spent + reserved + asked <= kind.limit:
        return
    waits = kind.spent + asked <= kind.limit
    of_day = standing.period is BudgetPeriod.DAY
    resume = RESERVED_LOOK_SECONDS if waits else standing.day_seconds if of_day else None
    yield BudgetExhausted(
        f"the budget of {standing.owner}, {kind.words(kind.limit)}"
        f" {'a day' if of_day else 'in total'}, does not allow the next call:"
        f" {kind.words(kind.spent)} are spent, {kind.words(reserved)} are reserved for calls"
        f" under way, and it may cost {kind.words(asked)}; {_when(waits, of_day)}",
        {
            "scope": standing.owner,
            "period": standing.period.value,
            "unit": kind.unit,
            "limit": kind.limit,
            "spent": kind.spent,
            "reserved": reserved,
            "asked": asked,
        },
        asked=call,
        resume_seconds=resume,
        waits_for_calls=waits,
    )


def _when(waits: bool, of_day: bool) -> str:
    if waits:
        return "it goes on when calls under way have ended and leave enough"
    if of_day:
        return "it goes on at midnight UTC, or when the budget is raised or deleted"
    return "it goes on when the budget is raised or deleted"


def _no_price(standing: Standing, asked: CallBound) -> BudgetExhausted:
    return BudgetExhausted(
        f"the budget of {standing.owner} is in dollars, and the model has no known price: set"
        " one in PALIMPSEST_MODEL_PRICES, or set a budget of tokens instead",
        {"scope": standing.owner, "period": standing.period.value, "unit": "micro_usd"},
        asked=asked,
        resume_seconds=PRICE_LOOK_SECONDS,
    )
