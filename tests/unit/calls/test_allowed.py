"""Models that may be asked: those that the operator configured, and no others."""

import pytest
from pydantic import ValidationError

from service.domain.prompting.flows import ModelRequest
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import InvalidInput
from service.domain.values.memory_specs import OnFailure
from service.domain.values.reasons import Reason
from service.llm.gateway.allowed import AllowedModels, AllowedTransport
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import PLAIN, CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.unit.calls.scripted_calls import make_ask

PLACES = (Deployment(name="one", model="openai/served#1", api_base="http://127.0.0.1:1"),)


def allowed(models: str | None = None, **settings: object) -> AllowedModels:
    given = {} if models is None else {"models": models}
    return AllowedModels(Config(**{"model": "openai/default", **given, **settings}))  # type: ignore[arg-type]


def test_by_default_these_are_what_is_configured_and_what_needs_no_network() -> None:
    models = allowed(deployments=PLACES)
    for name in ("openai/default", "openai/served#1", "offline/extractive", "local/minilm"):
        assert models.allows(name), name
        assert models.refusal(name) is None
    for name in ("openai/other", "openai/defaults", "openai/served", "anthropic/claude", "x", ""):
        assert not models.allows(name), name


#: litellm calls these on this machine, or anywhere, without any setting.
@pytest.mark.parametrize(
    "name",
    [
        "ollama/llama3",
        "ollama_chat/llama3",
        "llamafile/x",
        "lm_studio/x",
        "langgraph/agent",
        "oobabooga/x",
        "oobabooga/http://127.0.0.1:80/internal",
        "huggingface/http://169.254.169.254/latest",
        "xinference/x",
        "lemonade/x",
        "docker_model_runner/x",
        "petals/x",
        "custom/x",
        "nonsense/x",
    ],
)
def test_what_litellm_would_reach_by_itself_is_refused(name: str) -> None:
    for models in (allowed(), allowed("openai/*,anthropic/claude-*")):
        assert not models.allows(name)
        with pytest.raises(InvalidInput) as caught:
            models.check(name, "prism.model")
        refused = caught.value
        assert (refused.reason, refused.field) == (Reason.MODEL_NOT_ALLOWED, "prism.model")
        assert refused.metadata == {"model": name}
        what = "without any address" if "://" in name else "PALIMPSEST_MODELS"
        assert what in str(refused)


def test_patterns_allow_more_and_the_default_model_stays() -> None:
    models = allowed("openai/gpt-*, ollama/*\tbedrock/us.*-v1:0 azure/exact,openrouter/*/x*y")
    for name in (
        "openai/default",
        "openai/gpt-5",
        "openai/gpt-",
        "ollama/llama3:8b",
        "bedrock/us.anthropic.claude-v1:0",
        "azure/exact",
        "openrouter/a/b/x1y",
    ):
        assert models.allows(name), name
    for name in (
        "openai/gp",
        "azure/exacter",
        "offline/extractive",
        "OpenAI/gpt-5",
        "xopenai/gpt-5",
    ):
        assert not models.allows(name), name


@pytest.mark.parametrize(
    "name",
    [
        "ollama/http://10.0.0.1/x",
        "ollama//evil",
        "ollama/../admin",
        "ollama/x?y",
        "ollama/x#y",
        "ollama/x%2fy",
        "ollama/x\\y",
        "ollama/x y",
        "ollama/x\ny",
        "ollama/x\x1b[0m",
        "ollama/x\0",
        "ollama/\N{RIGHT-TO-LEFT OVERRIDE}x",
    ],
)
def test_what_a_star_stands_for_leads_out_of_no_url(name: str) -> None:
    refusal = allowed("ollama/*").refusal(name)
    assert refusal is not None
    assert refusal.isprintable()


def test_a_long_name_takes_no_longer_for_many_stars() -> None:
    assert not allowed(f"a/{'*x' * 100}").allows(f"a/{'x' * 5000}!")


def test_an_empty_name_is_the_default_and_both_models_of_a_tree_are_looked_at() -> None:
    models = allowed()
    models.check("", "model")
    spec = TreeSpec(model="offline/extractive", navigation_model="ollama/x")
    assert spec.on_failure is OnFailure.STALL
    with pytest.raises(InvalidInput) as refused:
        models.check_spec(spec, "tree.")
    assert refused.value.field == "tree.navigation_model"


@pytest.mark.parametrize(
    ("models", "expected"),
    [("", ()), (" , ", ()), ("a/b", ("a/b",)), ("a/b,,c/* d/e\n", ("a/b", "c/*", "d/e"))],
)
def test_patterns_are_read_as_they_are_written(models: str, expected: tuple[str, ...]) -> None:
    assert Config(models=models).models == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "models",
    ["*", "*/*", "open*/gpt", "gpt-4o", "oobabooga/http://h/x", "a/", "/a", "a/\x1b", "é/x"],
)
def test_a_pattern_names_its_provider(models: str) -> None:
    with pytest.raises(ValidationError):
        Config(models=models)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Config(models=",".join(["a/b"] * 257))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["oobabooga/http://127.0.0.1:5000", "openai/a b", "openai/\x07"])
def test_the_configured_models_are_names_too(name: str) -> None:
    with pytest.raises(ValidationError, match="is no name of a model"):
        Config(model=name)
    with pytest.raises(ValidationError):
        Config(embedding_model=name)


class Refuses:
    """A transport that must not be asked."""

    def __init__(self) -> None:
        self.models: list[str] = []

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.models.append(model)
        raise ModelFailure("asked", retryable=True)


async def test_no_call_leaves_for_a_model_that_is_allowed_no_more() -> None:
    asked = Refuses()
    transport = AllowedTransport(asked, allowed())
    with pytest.raises(ModelFailure, match="PALIMPSEST_MODELS") as refused:
        await transport.complete(make_ask("task"), "ollama/x", PLAIN)
    assert (refused.value.retryable, asked.models) == (False, [])
    with pytest.raises(ModelFailure, match="asked"):
        await transport.complete(make_ask("task"), "openai/default", PLAIN)
    assert asked.models == ["openai/default"]
