"""The guide to models: its examples are read, and its tables are those of the code."""

import re
import shlex
from pathlib import Path

import pytest

from service.domain.prompting.flows import Purpose
from service.llm.gateway.allowed import AllowedModels
from service.llm.providers.prices import Prices
from service.llm.providers.profiles import HEADROOM_TOKENS, Profiles
from service.llm.providers.settings import setting_of
from service.llm.providers.transport import LitellmTransport
from service.settings import reading
from service.settings.config import Config
from service.settings.models import ModelSetting, PriceOverride
from service.settings.profiles import Effort, ProfileOverride, SchemaMode
from tests.support.guides import section

PAGE = section("models", "Models")
#: A model for each row of the table of habits.
ROWS = {
    "`openai` before gpt-5.6, `azure`": ["openai/gpt-5.5", "azure/gpt-4o"],
    "`openai` from gpt-5.6 on": ["openai/gpt-5.6", "openai/gpt-6-sol"],
    "`anthropic`, Claude at `bedrock` and `vertex_ai`": [
        "anthropic/claude-sonnet-4-5",
        "vertex_ai/claude-sonnet-4-5",
    ],
    "`xai`": ["xai/grok-4.5"],
    "`gemini`": ["gemini/gemini-2.5-pro"],
    "`deepseek`": ["deepseek/deepseek-chat"],
    "`hosted_vllm`": ["hosted_vllm/x"],
    "`ollama`, a server of your own": ["ollama/codellama"],
    "`offline`": ["offline/extractive"],
}


def examples() -> list[dict[str, str]]:
    """Returns the variables that each indented block sets."""
    blocks = re.findall(r"(?:^ {4}.*\n)+", PAGE, re.MULTILINE)
    found = []
    for block in blocks:
        if "export" not in block:
            # A command.
            continue
        words = shlex.split(block, comments=True)
        found.append(dict(word.split("=", 1) for word in words if word != "export"))
    return found


def test_the_examples_are_taken_as_they_are(tmp_path: Path) -> None:
    # The one thing that is not here is the file of a service account.
    account = tmp_path / "vertex.json"
    account.write_text("{}")
    blocks = examples()
    assert len(blocks) == 12
    environment = {
        name: value.replace("/etc/palimpsest/vertex.json", str(account))
        for block in blocks
        for name, value in block.items()
    }
    config = reading.read(environment).config
    assert config is not None
    assert config.model_window_tokens == 16_384
    (one,) = config.deployments
    assert (config.model, one.project) == (one.model, "our-project")
    assert (config.embedding_model, config.embedding_dimensions) == ("openai/nomic-embed-text", 768)
    assert config.embedding_query_prefix == "search_query: "
    assert AllowedModels(config).allows("openai/gpt-5-mini")
    profiles = Profiles(config)
    assert profiles.of("openai/qwen3").headroom(Effort.LOW) == 6000
    assert profiles.of("azure/my-deployment").default_effort is Effort.MEDIUM
    answers = setting_of(config, "openai/gpt-5-mini", Purpose.ANSWER)
    assert (answers.reasoning_effort, answers.max_output_tokens) == (Effort.HIGH, 30_000)
    assert profiles.of("openai/qwen3").structured is SchemaMode.JSON_SCHEMA
    assert LitellmTransport(config).requests.output_settings("openai/qwen3", Purpose.REVISE) != b""
    found = [
        Prices(config).of(model).input_usd
        for model in ("openai/qwen3", "anthropic/claude-sonnet-4-5")
    ]
    assert found == pytest.approx([0.4e-6, 2.5e-6])


def test_the_table_of_habits_is_the_codes() -> None:
    said = re.findall(
        r"^\| (.+?) \| (explicit|keyed|plain) \| (\S+) \| (.+?) \| (\S+) s \|$",
        PAGE,
        re.MULTILINE,
    )
    assert [row[0] for row in said] == list(ROWS)
    prices = Prices(Config())
    for name, family, granularity, least, seconds in said:
        for model in ROWS[name]:
            found = prices.of(model)
            assert (found.family.value, str(found.granularity_tokens)) == (family, granularity)
            assert f"{found.ttl_seconds:,}" == seconds
            assert least == "by model" or f"{found.min_tokens:,}" == least


def test_the_fields_of_prices_are_the_codes() -> None:
    fields = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [name for name in fields if name in PriceOverride.model_fields] == list(
        PriceOverride.model_fields
    )


def test_the_table_of_profiles_is_the_codes() -> None:
    found = re.findall(
        r"^\| (`.+`.*?) \| (\w+) \| (\w+) \| (always|unthinking|never) \| (system|user)"
        r" \| (\w+) \|$",
        PAGE,
        re.MULTILINE,
    )
    assert len(found) == 22
    profiles = Profiles(Config())
    for names, *row in found:
        for model in re.findall(r"`(\S+)`", names):
            one = profiles.of(model)
            role = "system" if one.system else "user"
            said = [one.structured, one.default_effort, one.sampling, role, one.extras]
            assert said == row, model


def test_the_tables_of_settings_and_profiles_name_every_field() -> None:
    for heading, fields in (
        ("| setting | values |", {*ModelSetting.model_fields} - {"extra_body"}),
        ("| field | values |", {*ProfileOverride.model_fields}),
    ):
        table = PAGE.partition(heading)[2].partition("\n\n")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == fields
    efforts = re.findall(r"^\| (`\S+`(?:, `\S+`)?) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    shown = {name: tokens for names, tokens in efforts for name in re.findall(r"`(\w+)`", names)}
    assert shown == {level.value: f"{tokens:,}" for level, tokens in HEADROOM_TOKENS.items()}
