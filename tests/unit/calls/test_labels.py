"""By which names models are counted."""

import pytest

from service.llm.providers import labels
from service.llm.providers.labels import ModelLabels
from service.settings.config import Config


def test_configured_models_have_their_names_and_unknown_ones_one_together() -> None:
    made = ModelLabels()
    served = '[{"name": "a", "model": "openai/served", "api_base": "http://127.0.0.1:1"}]'
    config = Config.model_validate(
        {
            "model": "openai/own",
            "embedding_model": "openai/own-vectors",
            "deployments": served,
            "model_settings": {"openai/set": {"seed": 1}},
        }
    )
    made.configure(config)
    known = ("openai/own", "openai/own-vectors", "openai/served", "openai/set")
    for model in (*known, "offline/extractive"):
        assert made.of(model) == model
    assert made.of("openai/nobody-knows-it") == "other"


def test_of_the_models_in_the_list_a_number_have_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels, "MAX_LISTED", 3)
    made = ModelLabels()
    # Tuned models are in the list by their beginning; there is no end to them.
    tuned = [f"openai/ft:gpt-4o-mini-2024-07-18:me::{number}" for number in range(9)]
    assert [made.of(model) for model in tuned * 2] == ([*tuned[:3], *["other"] * 6]) * 2
