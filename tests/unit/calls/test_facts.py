"""Facts about a model that need no call."""

import socket

import pytest

from service.domain.prompting.tokens import estimate_tokens
from service.llm.providers import facts as module
from service.llm.providers import prices
from service.llm.providers.facts import OFFLINE_WINDOW_TOKENS, SLICE_CHARACTERS, Facts
from service.llm.providers.prices import Prices
from service.settings.config import Config


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Facts:
    def nobody(*_: object, **__: object) -> None:
        raise AssertionError("somebody asked the network")

    monkeypatch.setattr(socket.socket, "connect", nobody)
    return Facts(Config(model_window_tokens=4321))


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("offline/extractive", OFFLINE_WINDOW_TOKENS),
        ("openai/gpt-4o", 128_000),
        ("gpt-4o", 128_000),
        ("openai/a-model-of-ones-own", 4321),
    ],
)
def test_a_window_is_the_models_own_or_the_configurations(
    facts: Facts, model: str, window: int
) -> None:
    assert facts.of(model).window_tokens == window
    assert facts.of(model) is facts.of(model)


def test_tokens_are_counted_by_the_models_tokenizer_where_it_is_at_hand(facts: Facts) -> None:
    count = facts.of("openai/gpt-4o").count
    assert count("") == 0
    assert count("hello world") == 2
    assert count("<|endoftext|>") > 1, "text is data, whatever it imitates"
    prose = "The harbour museum is closed on Mondays. " * 200
    assert count(prose) == pytest.approx(8 * 200, rel=0.05)


def test_elsewhere_the_estimate_serves(facts: Facts) -> None:
    for model in ("offline/extractive", "openai/a-model-of-ones-own", "anthropic/claude-x"):
        assert facts.of(model).count is estimate_tokens
    assert estimate_tokens("four" * 10) == 10


def test_a_text_without_blanks_is_counted_in_slices(facts: Facts) -> None:
    count = facts.of("openai/gpt-4o").count
    one = count("a" * SLICE_CHARACTERS)
    assert count("a" * SLICE_CHARACTERS * 50) == 50 * one


def test_any_number_of_models_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MODELS", 3)
    monkeypatch.setattr(prices, "KNOWN_MODELS", 3)
    known, priced = Facts(Config()), Prices(Config())
    for number in range(10):
        known.of(f"offline/{number}")
        priced.of(f"offline/{number}")
    sizes = [vars(one)["of"].cache_info().currsize for one in (known, priced)]
    assert sizes == [3, 3]
