"""Prices: litellm's list read as a file, providers' habits, and what is configured."""

import json
import subprocess
import sys
from typing import Any

import pytest

from service.cli.output import CommandError
from service.cli.run import read_config
from service.domain.spend.prices import CacheFamily, cost_micro_usd
from service.llm.providers.library import litellm_library
from service.llm.providers.model_map import keeps_to_schemas
from service.llm.providers.prices import BREAKPOINT_TTL_SECONDS, SERVER_TTL_SECONDS, Prices
from service.settings.config import Config
from service.settings.models import PriceOverride, matching

EXPLICIT, KEYED, PLAIN = CacheFamily.EXPLICIT, CacheFamily.KEYED, CacheFamily.PLAIN


def prices(overrides: Any = None, *, base_url: str | None = None) -> Prices:
    return Prices(Config(model_base_url=base_url, model_prices=overrides or {}))


@pytest.mark.parametrize(
    ("model", "family", "ratios", "granularity", "min_tokens", "ttl"),
    [
        ("offline/extractive", PLAIN, (0.1, 1.25, 5.0), 1, 0, 300),
        ("openai/gpt-4o", KEYED, (0.5, 1.0, 4.0), 128, 1024, 300),
        ("gpt-4o", KEYED, (0.5, 1.0, 4.0), 128, 1024, 300),
        ("openai/gpt-5.5", KEYED, (0.1, 1.0, 6.0), 128, 1024, 300),
        ("openai/gpt-5.6", EXPLICIT, (0.1, 1.25, 5.0), 1, 1024, BREAKPOINT_TTL_SECONDS),
        ("openai/gpt-7.1", EXPLICIT, (0.1, 1.25, 5.0), 1, 1024, BREAKPOINT_TTL_SECONDS),
        ("azure/gpt-4o", KEYED, (0.5, 1.0, 4.0), 128, 1024, 300),
        ("anthropic/claude-opus-4-6", EXPLICIT, (0.1, 1.25, 5.0), 1, 4096, 300),
        ("claude-sonnet-4-5", EXPLICIT, (0.1, 1.25, 5.0), 1, 1024, 300),
        (
            "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            EXPLICIT,
            (0.1, 1.25, 5.0),
            1,
            1024,
            300,
        ),
        ("bedrock/converse/amazon.nova-pro-v1:0", EXPLICIT, (0.25, 1.0, 4.0), 1, 1024, 300),
        ("vertex_ai/claude-sonnet-4-5", EXPLICIT, (0.1, 1.25, 5.0), 1, 1024, 300),
        ("gemini/gemini-2.5-pro", PLAIN, (0.1, 1.0, 8.0), 1, 2048, 300),
        # Its list has 0 for writing: no extra price, not a free token.
        ("deepseek/deepseek-chat", PLAIN, (0.1, 1.0, 1.5), 1, 0, 300),
        ("hosted_vllm/some-model", PLAIN, (0.1, 1.0, 5.0), 16, 0, SERVER_TTL_SECONDS),
        ("ollama/codellama", PLAIN, (0.1, 1.0, 5.0), 1, 0, SERVER_TTL_SECONDS),
        # Nothing is known of its cache: then there is none.
        ("groq/a-model-that-is-not-listed", PLAIN, (1.0, 1.0, 5.0), 1, 0, 300),
        ("gpt-4", KEYED, (1.0, 1.0, 2.0), 128, 1024, 300),
    ],
)
def test_prices_and_habits_are_the_providers(
    model: str,
    family: CacheFamily,
    ratios: tuple[float, float, float],
    granularity: int,
    min_tokens: int,
    ttl: int,
) -> None:
    found = prices().of(model)
    assert found.family is family
    assert (found.read, found.write, found.output) == ratios
    assert (found.granularity_tokens, found.min_tokens, found.ttl_seconds) == (
        granularity,
        min_tokens,
        ttl,
    )
    assert found.max_marks == (4 if family is EXPLICIT else 0)


def test_what_a_token_costs_is_known_free_or_unknown() -> None:
    assert prices().of("openai/gpt-4o").input_usd == 2.5e-06
    assert prices().of("offline/extractive").input_usd == 0.0
    assert prices().of("groq/a-model-that-is-not-listed").input_usd is None
    # Another provider's model of the same name has not its price.
    assert prices().of("hosted_vllm/gpt-4o").input_usd is None


def test_a_server_of_ones_own_has_no_price_but_the_configured() -> None:
    own = prices(base_url="http://localhost:1/v1")
    assert own.of("openai/gpt-4o").input_usd is None
    assert own.of("openai/gpt-4o").family is PLAIN
    assert own.of("openai/gpt-4o").granularity_tokens == 1
    assert own.listed_as("openai/gpt-4o") is None
    assert own.of("anthropic/claude-opus-4-6").input_usd == 5e-06
    priced = prices({"openai/*": {"input_usd_per_million": 0.5}}, base_url="http://localhost:1/v1")
    assert priced.of("openai/x").input_usd == 5e-07


@pytest.mark.parametrize(
    ("deployment", "family", "granularity", "usd"),
    [
        ({}, KEYED, 128, 2.5e-06),
        ({"api_base": "https://eu.api.openai.com/v1"}, KEYED, 128, 2.5e-06),
        ({"api_base": "http://gpu1:8000/v1"}, PLAIN, 1, None),
        ({"litellm_model": "hosted_vllm/x", "api_base": "http://gpu1:8000"}, PLAIN, 16, None),
        ({"litellm_model": "azure/gpt-4o", "api_base": "https://x.y"}, KEYED, 128, 2.5e-06),
    ],
)
def test_a_model_has_the_habits_of_what_serves_it(
    deployment: dict[str, Any], family: CacheFamily, granularity: int, usd: float | None
) -> None:
    said: Any = [{"name": "a", "model": "openai/gpt-4o", **deployment}]
    one = Prices(Config(deployments=said, model_base_url="http://elsewhere/v1"))
    found = one.of("openai/gpt-4o")
    assert (found.family, found.granularity_tokens, found.input_usd) == (family, granularity, usd)
    assert one.of("openai/other").input_usd is None
    name = one.listed_as("openai/gpt-4o")
    # litellm says 0 of what is not in its list.
    assert name == (None if usd is None else said[0].get("litellm_model", "openai/gpt-4o"))


def test_what_is_configured_wins_over_the_list() -> None:
    one = prices(
        {
            "openai/gpt-4o": {"read": 0.2, "ttl_seconds": 60},
            "groq/*": {"family": "explicit"},
            "anthropic/*": {"family": "plain"},
        }
    )
    listed, found = prices().of("openai/gpt-4o"), one.of("openai/gpt-4o")
    assert (found.read, found.ttl_seconds) == (0.2, 60)
    assert (found.write, found.input_usd) == (listed.write, listed.input_usd)
    assert one.listed_as("openai/gpt-4o") is None
    assert (one.of("groq/x").family, one.of("groq/x").max_marks) == (EXPLICIT, 4)
    assert one.of("anthropic/claude-opus-4-6").max_marks == 0
    name = one.listed_as("anthropic/claude-opus-4-6")
    assert name == "anthropic/claude-opus-4-6", "its habits are configured, not its price"


def test_the_longest_beginning_of_a_name_counts_and_the_whole_name_most() -> None:
    settings = {"*": 0, "a/*": 1, "a/bc*": 2, "a/bcd": 3, "a/b": 4}
    found = [matching(settings, name) for name in ("x", "a/b", "a/bx", "a/bce", "a/bcd", "a/bcdd")]
    assert found == [0, 4, 1, 2, 3, 2]
    assert matching({"a/*": 1}, "b/a/") is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[1]", "is no JSON object from models to settings"),
        ("{", "is no JSON object from models to settings"),
        ("[" * 100_000, "is no JSON object from models to settings"),
        ('{"a/b": {"read": NaN}}', "is no JSON object from models to settings"),
        ('{"a/b": 1}', "a/b: Input should be a valid dictionary"),
        ('{"a/b": {"red": 1}}', "a/b: red: there is no such setting; there are input_"),
        ('{"{a}/b": {"read": 1.5}}', "{a}/b: read: Input should be less than or equal to 1"),
        ('{"a/b": {"input_usd_per_million": -1}}', "a/b: input_usd_per_million: Input should be"),
        ('{"a/b": {"family": "other"}}', "a/b: family: Input should be 'explicit', 'keyed' or"),
        ('{"a/b": {"max_marks": 5}}', "a/b: max_marks: Input should be less than or equal to 4"),
        ('{"a/b": {"ttl_seconds": 0}}', "a/b: ttl_seconds: Input should be greater than or"),
    ],
)
def test_a_wrong_price_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_PRICES", value)
    with pytest.raises(CommandError) as caught:
        read_config()
    assert str(caught.value).startswith(f"PALIMPSEST_MODEL_PRICES: {said}")


def test_prices_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"openai/*": {"input_usd_per_million": 3, "family": "keyed"}}
    monkeypatch.setenv("PALIMPSEST_MODEL_PRICES", json.dumps(value))
    assert read_config().model_prices == {
        "openai/*": PriceOverride(input_usd_per_million=3, family=KEYED)
    }


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_PRICES", "")
    monkeypatch.setenv("PALIMPSEST_MODEL_SETTINGS", " ")
    config = read_config()
    assert (config.model_prices, config.model_settings) == ({}, {})


def test_a_call_costs_its_tokens_at_their_prices() -> None:
    over = {"input_usd_per_million": 2, "read": 0.1, "write": 1.25, "output": 5}
    one = prices({"m/x": over}).of("m/x")
    cost = cost_micro_usd(one, input_tokens=1000, cached=600, written=300, output_tokens=10)
    assert cost == ((100 + 60 + 375 + 50) * 2)
    unknown = prices().of("m/x")
    assert cost_micro_usd(unknown, input_tokens=1, cached=0, written=0, output_tokens=1) is None
    free = prices().of("offline/extractive")
    assert cost_micro_usd(free, input_tokens=9, cached=0, written=0, output_tokens=9) == 0


@pytest.mark.parametrize(
    "provider",
    [
        "anthropic",
        "azure",
        "bedrock",
        "deepseek",
        "gemini",
        "mistral",
        "openai",
        "vertex_ai",
        "xai",
    ],
)
def test_the_list_is_read_as_litellm_reads_it(provider: str) -> None:
    litellm = litellm_library()
    names = [
        name if name.startswith(f"{provider}/") else f"{provider}/{name}"
        for name, said in litellm.model_cost.items()
        if said.get("mode") == "chat"
        and (said["litellm_provider"].removesuffix("_converse").partition("-")[0] == provider)
    ]
    assert len(names) > 5
    by_name = [
        name
        for name in names
        if bool(litellm.supports_response_schema(name)) is not keeps_to_schemas(name)
    ]
    assert by_name == []


def test_neither_prices_nor_facts_import_litellm() -> None:
    code = (
        "import sys\n"
        "from service.settings.config import Config\n"
        "from service.llm.providers.facts import Facts\n"
        "from service.llm.providers.prices import Prices\n"
        "from service.llm.providers.profiles import Profiles\n"
        "from service.llm.providers.transport import LitellmTransport\n"
        "assert Prices(Config()).of('gpt-4o').input_usd\n"
        "assert Facts(Config()).of('openai/gpt-4o').count('hello world') == 2\n"
        "assert LitellmTransport(Config())\n"
        "assert Profiles(Config()).of('openai/gpt-4o').structured\n"
        "assert 'litellm' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
