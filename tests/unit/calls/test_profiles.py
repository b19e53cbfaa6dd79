"""Profiles of each family of models, and their overrides in the configuration."""

import json
from typing import Any

import pytest

from service.cli.output import CommandError
from service.cli.run import read_config
from service.llm.providers.profiles import BUDGET_TOKENS, HEADROOM_TOKENS, Profile, Profiles
from service.settings.config import Config
from service.settings.profiles import Effort, Extras, Sampling, SchemaMode


def profile(model: str, **settings: Any) -> Profile:
    return Profiles(Config(**settings)).of(model)


@pytest.mark.parametrize(
    ("model", "structured", "default", "sampling", "system", "extras"),
    [
        ("openai/gpt-4.1-mini", "strict", "none", "always", True, "body"),
        ("openai/gpt-3.5-turbo", "none", "none", "always", True, "body"),
        ("openai/gpt-5", "strict", "medium", "never", True, "body"),
        ("openai/gpt-5-chat-latest", "strict", "none", "always", True, "body"),
        ("openai/gpt-5.1", "strict", "none", "unthinking", True, "body"),
        ("openai/gpt-5.5", "strict", "medium", "never", True, "body"),
        ("openai/gpt-9-nova", "strict", "medium", "never", True, "body"),
        ("openai/o4-mini", "strict", "medium", "never", False, "body"),
        ("azure/gpt-5", "strict", "medium", "never", True, "body"),
        ("azure/some-deployment", "strict", "none", "always", True, "body"),
        ("anthropic/claude-sonnet-4-5", "strict", "none", "unthinking", True, "arguments"),
        ("anthropic/claude-opus-4-7", "strict", "none", "never", True, "arguments"),
        ("anthropic/claude-sonnet-5", "strict", "high", "never", True, "arguments"),
        ("anthropic/claude-3-haiku-20240307", "none", "none", "always", True, "arguments"),
        ("vertex_ai/claude-sonnet-4-5", "tool", "none", "unthinking", True, "arguments"),
        (
            "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "strict",
            "none",
            "unthinking",
            True,
            "arguments",
        ),
        ("bedrock/anthropic.claude-opus-4-7", "tool", "none", "never", True, "arguments"),
        ("bedrock/anthropic.claude-opus-5-5", "none", "high", "never", True, "arguments"),
        ("bedrock/amazon.nova-pro-v1:0", "tool", "none", "always", True, "arguments"),
        ("bedrock/us.deepseek.r1-v1:0", "none", "medium", "always", True, "arguments"),
        ("gemini/gemini-2.5-flash", "json_schema", "medium", "always", True, "body"),
        ("gemini/gemini-2.5-flash-lite", "json_schema", "none", "always", True, "body"),
        ("gemini/gemini-3-pro-preview", "json_schema", "high", "always", True, "body"),
        ("deepseek/deepseek-chat", "json_object", "none", "always", True, "body"),
        ("deepseek/deepseek-v4-pro", "json_object", "high", "always", True, "body"),
        ("mistral/mistral-large-latest", "strict", "none", "always", True, "body"),
        ("mistral/magistral-medium-latest", "strict", "medium", "always", True, "body"),
        ("groq/openai/gpt-oss-120b", "strict", "medium", "always", True, "body"),
        ("groq/llama-3.3-70b-versatile", "json_object", "none", "always", True, "body"),
        ("xai/grok-4", "json_schema", "medium", "always", True, "body"),
        ("openrouter/openai/gpt-5", "strict", "medium", "never", True, "body"),
        ("openrouter/meta-llama/llama-4-scout", "json_schema", "none", "always", True, "body"),
        ("hosted_vllm/qwen2.5-7b", "json_schema", "none", "always", True, "body"),
        ("ollama_chat/llama3.1", "json_schema", "none", "always", True, "arguments"),
        ("together_ai/some/model", "none", "none", "always", True, "body"),
    ],
)
def test_each_family_is_asked_as_it_takes_it(
    model: str, structured: str, default: str, sampling: str, system: bool, extras: str
) -> None:
    found = profile(model)
    assert found.structured is SchemaMode(structured)
    assert found.default_effort is Effort(default)
    assert found.sampling is Sampling(sampling)
    assert found.system is system
    assert found.extras is Extras(extras)


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ("openai/gpt-5", "minimal low medium high"),
        ("openai/gpt-5.1", "none low medium high"),
        ("openai/gpt-5.4", "none low medium high xhigh"),
        ("openai/o3", "low medium high"),
        ("anthropic/claude-sonnet-4-5", "none low medium high"),
        ("anthropic/claude-opus-5-5", "low medium high xhigh max"),
        ("anthropic/claude-haiku-5-5", "none low medium high xhigh max"),
        ("gemini/gemini-2.5-pro", "low medium high"),
        ("gemini/gemini-2.5-flash", "none low medium high"),
        ("deepseek/deepseek-chat", "none high"),
        ("mistral/mistral-medium-latest", "none high"),
        ("mistral/magistral-medium-latest", ""),
        ("openai/gpt-4.1-mini", ""),
    ],
)
def test_levels_of_effort_are_those_that_a_model_takes(model: str, levels: str) -> None:
    assert profile(model).effort_levels == tuple(Effort(one) for one in levels.split())


def test_more_thinking_has_more_room_and_every_budget_fits_in_it() -> None:
    room = [HEADROOM_TOKENS[one] for one in Effort]
    assert room == sorted(room)
    assert all(BUDGET_TOKENS[one] < HEADROOM_TOKENS[one] for one in BUDGET_TOKENS)


def test_headroom_takes_half_of_a_small_window_at_most() -> None:
    small = profile("openai/qwq", model_base_url="http://host/v1", model_window_tokens=8000)
    assert small.default_effort is Effort.MEDIUM
    assert small.headroom(Effort.MEDIUM) == 4000
    assert small.headroom(Effort.NONE) == 0


def test_a_server_of_ones_own_has_the_schemas_that_are_configured() -> None:
    own = {"model_base_url": "http://host/v1"}
    assert profile("openai/mine", **own).structured is SchemaMode.NONE
    held = profile("openai/mine", **own, model_structured_output=True)
    assert (held.structured, held.any_schema) == (SchemaMode.JSON_SCHEMA, True)
    # It may be a proxy of OpenAI's: what those models refuse is left out in any case.
    assert profile("openai/gpt-5", **own).sampling is Sampling.NEVER


def test_what_is_configured_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "azure/prod": {"like": "openai/gpt-5", "headroom_tokens": 9000},
        "openai/mine*": {
            "structured": "json_object",
            "effort_levels": ["low", "high"],
            "default_effort": "low",
            "system": False,
            "refuses": ["seed"],
            "window_tokens": 100_000,
            "max_output_tokens": 5000,
        },
    }
    monkeypatch.setenv("PALIMPSEST_MODEL_PROFILES", json.dumps(said))
    profiles = Profiles(read_config())
    prod, mine = profiles.of("azure/prod"), profiles.of("openai/mine-2")
    assert prod.effort_levels == profiles.of("openai/gpt-5").effort_levels
    assert prod.sampling is Sampling.NEVER
    assert (prod.window_tokens, prod.headroom(Effort.LOW)) == (272_000, 9000)
    assert prod.bound == "max_completion_tokens", "litellm does not know what serves it"
    assert mine.structured is SchemaMode.JSON_OBJECT
    assert mine.effort_levels == (Effort.LOW, Effort.HIGH)
    assert (mine.system, mine.refuses) == (False, frozenset({"seed"}))
    assert (mine.window_tokens, mine.max_output_tokens) == (100_000, 5000)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[]", "is no JSON object from models to settings"),
        ('{"m/x": {"structured": "xml"}}', "m/x: structured: Input should be 'none'"),
        ('{"m/x": {"like": "gpt"}}', "m/x: like: String should match pattern"),
        ('{"m/x": {"headroom_tokens": -1}}', "m/x: headroom_tokens: Input should be greater"),
        ('{"m/x": {"refuses": ["stop"]}}', "m/x: refuses.0: Input should be 'seed'"),
        ('{"m/x": {"thinks": true}}', "m/x: thinks: there is no such setting; there are "),
    ],
)
def test_a_wrong_profile_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_PROFILES", value)
    with pytest.raises(CommandError, match=r"^PALIMPSEST_MODEL_PROFILES: ") as caught:
        read_config()
    assert said in str(caught.value)


def test_a_deployment_is_asked_as_what_serves_it() -> None:
    served = {"litellm_model": "azure/gpt-5-mini", "api_base": "https://ours.example"}
    places = [{"name": "one", "model": "openai/gpt-4o", **served}]
    assert profile("openai/gpt-4o", deployments=places).default_effort is Effort.MEDIUM
