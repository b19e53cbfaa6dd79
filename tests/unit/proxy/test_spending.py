"""What is reserved before a call, and what is charged after it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.domain.spend.prices import CacheFamily, ModelPrices
from service.proxy import budget as budgets
from service.proxy import spending as spendings
from service.proxy.budget import Budget, OverBudget
from service.proxy.conversation import CHAT, MESSAGES, RESPONSES, Form, conversation_of
from service.proxy.replies import Reply
from service.proxy.spending import LEAST_OUTPUT_TOKENS, UNLIMITED_OUTPUT_TOKENS, Purse

#: A millionth of a dollar for a token of the prompt, five for one of the reply.
PRICES = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=1e-6,
    read=0.1,
    write=1.0,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=300,
)


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget(path=tmp_path / "state" / "spent.json", usd=0.1, period="day")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def purse(budget: Budget, clock: Clock) -> Purse:
    return Purse(budget, lambda name: PRICES, clock)


def spent(budget: Budget) -> int:
    """Returns what is spent or reserved."""
    return int(json.loads(budget.path.read_text())["micro_usd"])


def body_of(form: Form = CHAT, **fields: Any) -> dict[str, Any]:
    """Returns a request."""
    return {"model": "m", form.messages: [{"role": "user", "content": "Hi"}], **fields}


async def reserve(purse: Purse, body: dict[str, Any], form: Form = CHAT) -> spendings.Spending:
    """Reserves for a request."""
    return await purse.reserve(conversation_of(form, body), body)


async def test_the_counts_of_the_provider_replace_what_was_reserved(
    purse: Purse, budget: Budget
) -> None:
    held = await reserve(purse, body_of(max_tokens=1000))
    assert 5000 < spent(budget) < 5200
    reply = Reply(input_tokens=40, cached_tokens=30, output_tokens=7, is_ended=True)
    await purse.charge(held, reply, was_cut=False)
    assert spent(budget) == 10 + 3 + 35


async def test_a_reply_that_is_cut_is_charged_what_may_have_been_written(
    purse: Purse, budget: Budget, clock: Clock
) -> None:
    held = await reserve(purse, body_of(max_tokens=10_000))
    clock.now += 2.0
    # Anthropic counts the prompt at the start, and one token of reply.
    reply = Reply(text="word " * 10, input_tokens=40, output_tokens=1)
    await purse.charge(held, reply, was_cut=True)
    assert spent(budget) == 40 + 5 * 2 * spendings.TOKENS_PER_SECOND


@pytest.mark.parametrize(("text", "seconds"), [("word " * 99_000, 0.0), ("", 1e6)])
async def test_it_is_never_charged_more_than_was_reserved(
    purse: Purse, budget: Budget, clock: Clock, text: str, seconds: float
) -> None:
    held = await reserve(purse, body_of(max_tokens=1000))
    before = spent(budget)
    clock.now += seconds
    await purse.charge(held, Reply(text=text), was_cut=True)
    assert spent(budget) == before


async def test_what_says_nothing_of_its_end_stays_reserved(purse: Purse, budget: Budget) -> None:
    held = await reserve(
        purse, body_of(RESPONSES, background=True, max_output_tokens=900), RESPONSES
    )
    before = spent(budget)
    await purse.charge(held, Reply(), was_cut=False)
    assert spent(budget) == before


@pytest.mark.parametrize(
    ("form", "field"), [(CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens")]
)
async def test_a_request_without_a_limit_gets_that_of_what_is_left(
    purse: Purse, budget: Budget, form: Form, field: str
) -> None:
    body = body_of(form)
    await reserve(purse, body, form)
    # A reply of 32,000 tokens would cost 16 cents.
    assert LEAST_OUTPUT_TOKENS < body[field] < 20_000
    assert 0 <= 100_000 - spent(budget) <= 5
    with pytest.raises(OverBudget, match="may cost"):
        await reserve(purse, body_of(form), form)
    assert 0 <= 100_000 - spent(budget) <= 5


async def test_with_enough_left_the_limit_is_the_usual_one(tmp_path: Path) -> None:
    rich = Purse(Budget(path=tmp_path / "s.json", usd=9, period="day"), lambda name: PRICES)
    body = body_of()
    await reserve(rich, body)
    assert body["max_completion_tokens"] == UNLIMITED_OUTPUT_TOKENS
    # Anthropic refuses a request without one, and is left to do so.
    body = body_of(MESSAGES)
    await reserve(rich, body, MESSAGES)
    assert "max_tokens" not in body


async def test_calls_at_once_never_reserve_more_than_there_is(purse: Purse, budget: Budget) -> None:
    made = 0
    for _ in range(40):
        try:
            await reserve(purse, body_of(max_tokens=1000))
        except OverBudget:
            continue
        made += 1
    assert made == 19
    assert spent(budget) <= 100_000


async def test_all_that_fits_is_called_when_calls_cost_less_than_they_might(
    purse: Purse, budget: Budget
) -> None:
    for _ in range(500):
        held = await reserve(purse, body_of(max_tokens=1000))
        reply = Reply(input_tokens=9, output_tokens=30, is_ended=True)
        await purse.charge(held, reply, was_cut=False)
    assert spent(budget) == 500 * (9 + 150)


async def test_an_hour_in_the_cache_costs_twice_the_prompt(purse: Purse, budget: Budget) -> None:
    part = {"type": "text", "text": "word " * 1000, "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "max_tokens": 1, "system": [part], "messages": []}
    short = await reserve(purse, body, MESSAGES)
    part["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    long = await reserve(purse, body, MESSAGES)
    assert long.reserved.micro_usd > 1.9 * short.reserved.micro_usd


async def test_a_call_is_charged_to_the_period_of_its_start(
    purse: Purse, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await reserve(purse, body_of(max_tokens=1000))

    class Tomorrow:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime(2100, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(budgets, "datetime", Tomorrow)
    await reserve(purse, body_of(max_tokens=1000))
    today = spent(budget)
    await purse.release(held)
    assert spent(budget) == today > 0


async def test_a_file_that_cannot_be_written_stops_calls(purse: Purse, budget: Budget) -> None:
    budget.path.parent.write_text("no folder")
    with pytest.raises(OverBudget, match="cannot be used"):
        await reserve(purse, body_of(max_tokens=1))
