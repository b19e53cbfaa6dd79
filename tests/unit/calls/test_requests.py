"""Requests to each provider, by profile and settings."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from structlog.testing import capture_logs

from service.domain.calls.ledger import CallInProgress, CallScope, Lease, Reservation
from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.facts import Facts
from service.llm.providers.failures import ModelFailure, RefusedFeature
from service.llm.providers.forms import REMEMBERED_SECONDS, Refusals, Shape, is_closed, shape_of
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.profiles import HEADROOM_TOKENS, Profiles
from service.llm.providers.requests import Requests
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.settings.profiles import Effort, SchemaMode
from tests.providers.ollama import Ollama
from tests.providers.server import Emulator, emulators
from tests.support.fake_anthropic import FakeAnthropic
from tests.support.fake_index import DictIndex
from tests.support.fake_model import FakeModel, fake_model, served
from tests.unit.calls.scripted_calls import SCOPE, Ledger, Script, gateway

CANONICAL = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
#: Its keys are free: Claude could only fill it with {}.
FREE = {"type": "object", "properties": {"facts": {"type": "object"}}}
ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(
        Segment(kind=SegmentKind.TASK, text="Answer as JSON.\n"),
        Segment(kind=SegmentKind.CHUNK, text="What is a harbour?", reusable=False),
    ),
    max_output_tokens=512,
)
SHAPED = replace(ASK, reply_schema=CANONICAL)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    """OpenAI, DeepSeek, xAI and Azure themselves, as far as litellm knows."""
    with fake_model() as model:
        for name in ("OPENAI", "DEEPSEEK", "XAI", "AZURE", "MISTRAL"):
            monkeypatch.setenv(f"{name}_API_KEY", "none")
            monkeypatch.setenv(f"{name}_API_BASE", model.url)
            monkeypatch.setenv(f"{name}_BASE_URL", model.url)
        monkeypatch.setenv("MISTRAL_AZURE_API_BASE", model.url)
        monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
        yield model


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAnthropic]:
    model = FakeAnthropic()
    with served(model) as url:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_API_BASE", url)
        monkeypatch.setenv("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        yield model


def configured(**settings: Any) -> Config:
    return Config(**settings)


def transport(**settings: Any) -> LitellmTransport:
    return LitellmTransport(configured(**settings))


def asked_with(**setting: Any) -> LitellmTransport:
    return transport(model_settings={"*": setting})


async def test_gpt_5_is_asked_with_temperature_0_configured_and_logged_once(
    provider: FakeModel,
) -> None:
    one = transport(model_settings={"openai/*": {"temperature": 0, "top_p": 0.5, "seed": 7}})
    with capture_logs() as logs:
        await one.complete(ASK, "openai/gpt-5")
        await one.complete(ASK, "openai/gpt-5")
        await one.complete(ASK, "openai/gpt-4.1-mini")
    first, _, plain = provider.requests
    assert not {"temperature", "top_p"} & set(first)
    assert (first["seed"], plain["temperature"], plain["top_p"]) == (7, 0, 0.5)
    assert [one["cause"] for one in logs if one["event"].startswith("a setting")] == [
        "openai/gpt-5 takes no temperature: it is left out",
        "openai/gpt-5 takes no top_p: it is left out",
    ]


async def test_a_model_that_thinks_has_room_for_it(provider: FakeModel) -> None:
    await transport().complete(ASK, "openai/gpt-5")
    await asked_with(reasoning_effort="minimal").complete(ASK, "openai/gpt-5")
    await asked_with(reasoning_effort="low", max_output_tokens=900).complete(ASK, "openai/gpt-5")
    await transport().complete(ASK, "openai/gpt-5.1")
    bounds = [request["max_completion_tokens"] for request in provider.requests]
    assert bounds == [
        512 + HEADROOM_TOKENS[Effort.MEDIUM],
        512 + HEADROOM_TOKENS[Effort.MINIMAL],
        900,
        512,
    ]
    efforts = [request.get("reasoning_effort") for request in provider.requests]
    assert efforts == [None, "minimal", "low", None]


async def test_no_bound_passes_the_models_longest_reply(provider: FakeModel) -> None:
    profiles = {"openai/gpt-5": {"max_output_tokens": 4000}}
    await transport(model_profiles=profiles).complete(ASK, "openai/gpt-5")
    assert provider.requests[0]["max_completion_tokens"] == 4000


async def test_a_level_that_a_model_does_not_know_becomes_the_one_below(
    provider: FakeModel,
) -> None:
    with capture_logs() as logs:
        await asked_with(reasoning_effort="none").complete(ASK, "openai/gpt-5")
        await asked_with(reasoning_effort="minimal").complete(ASK, "openai/gpt-5.1")
        await asked_with(reasoning_effort="high").complete(ASK, "openai/gpt-4.1-mini")
    assert [one.get("reasoning_effort") for one in provider.requests] == ["minimal", "none", None]
    assert [one["cause"] for one in logs if "cause" in one] == [
        'openai/gpt-5 takes no reasoning_effort "none": "minimal" is sent',
        'openai/gpt-5.1 takes no reasoning_effort "minimal": "none" is sent',
        "openai/gpt-4.1-mini takes no reasoning_effort: it is left out",
    ]


async def test_effort_reaches_models_that_litellm_does_not_know(provider: FakeModel) -> None:
    profiles = {
        "azure/prod": {"like": "openai/gpt-5"},
        "xai/grok-9": {"effort_levels": ["low", "high"]},
    }
    one = transport(model_profiles=profiles, model_settings={"*": {"reasoning_effort": "low"}})
    await one.complete(ASK, "azure/prod")
    await one.complete(ASK, "xai/grok-9")
    azure, xai = provider.requests
    assert (azure["reasoning_effort"], xai["reasoning_effort"]) == ("low", "low")
    assert azure["max_completion_tokens"] == 512 + HEADROOM_TOKENS[Effort.LOW]
    assert "max_tokens" not in azure


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
async def test_the_bound_is_above_the_budget_of_a_claude(
    anthropic: FakeAnthropic, effort: str
) -> None:
    await asked_with(reasoning_effort=effort).complete(ASK, "anthropic/claude-sonnet-4-5")
    # Also where a setting allows too little.
    little = asked_with(reasoning_effort=effort, max_output_tokens=100)
    await little.complete(ASK, "anthropic/claude-sonnet-4-5")
    for request in anthropic.requests:
        assert request["max_tokens"] >= request["thinking"]["budget_tokens"] + 512


async def test_a_claude_that_thinks_unasked_is_asked_not_to(anthropic: FakeAnthropic) -> None:
    off = asked_with(reasoning_effort="none", temperature=0, seed=1)
    for name in ("sonnet-4-5", "sonnet-5", "opus-5-5"):
        await off.complete(ASK, f"anthropic/claude-{name}")
    older, newer, always = anthropic.requests
    assert "thinking" not in older
    assert (older["temperature"], older["max_tokens"]) == (0, 512)
    assert (newer["thinking"], newer["max_tokens"]) == ({"type": "disabled"}, 512)
    # It cannot be switched off: it thinks as little as it can.
    assert always["output_config"] == {"effort": "low"}
    assert always["max_tokens"] == 512 + HEADROOM_TOKENS[Effort.LOW]
    assert not any({"seed", "top_p"} & set(one) for one in anthropic.requests)
    assert not any("temperature" in one for one in (newer, always))


@pytest.mark.parametrize("field", ["extra", "extra_body"])
async def test_extras_reach_claude_as_fields_of_its_own(
    anthropic: FakeAnthropic, provider: FakeModel, field: str
) -> None:
    one = asked_with(**{field: {"metadata": {"user_id": "u-1"}}})
    await one.complete(ASK, "anthropic/claude-sonnet-4-5")
    await one.complete(ASK, "openai/gpt-4.1-mini")
    assert anthropic.requests[0]["metadata"] == {"user_id": "u-1"}
    assert provider.requests[0]["metadata"] == {"user_id": "u-1"}
    assert not any("extra" in name for name in anthropic.requests[0])


async def test_mistrals_seed_is_not_lost_beside_extras(provider: FakeModel) -> None:
    one = asked_with(seed=7, extra={"safe_prompt": True})
    await one.complete(ASK, "mistral/mistral-large-latest")
    (request,) = provider.requests
    assert (request["random_seed"], request["safe_prompt"]) == (7, True)


async def test_settings_of_a_purpose_win_and_are_part_of_its_calls_keys_only(
    provider: FakeModel,
) -> None:
    setting = {
        "temperature": 0,
        "extra": {"user": "a", "verbosity": "low"},
        "purposes": {"answer": {"temperature": 0.7, "extra": {"verbosity": "high"}}},
    }
    one = transport(model_settings={"openai/*": setting})
    await one.complete(ASK, "openai/gpt-4.1-mini")
    await one.complete(replace(ASK, purpose=Purpose.REVISE), "openai/gpt-4.1-mini")
    assert [
        (request["temperature"], request["user"], request["verbosity"])
        for request in provider.requests
    ] == [(0.7, "a", "high"), (0, "a", "low")]

    def key(**setting: Any) -> bytes:
        settings = transport(model_settings={"openai/*": setting}).requests
        return settings.output_settings("openai/x", Purpose.ANSWER)

    assert key(purposes={"revise": {"seed": 1}}) == b""
    assert key(cache_ttl="1h") == b"", "it changes no reply"
    assert key(purposes={"answer": {"seed": 1}}) == key(seed=1) != b""
    # As the release before had it: what was paid for is found again.
    assert key(seed=1, extra_body={"a": 1}) == b'settings:{"extra_body":{"a":1},"seed":1}'


def test_the_window_and_what_is_reserved_leave_room_for_thinking() -> None:
    config = configured(model_profiles={"openai/gpt-5": {"headroom_tokens": 10_000}})
    plain = Facts(config).of("openai/gpt-4.1-mini").window_tokens
    thinking = Facts(config).of("openai/gpt-5").window_tokens
    assert (plain, thinking) == (1_047_576, 272_000 - 10_000)
    assert LitellmTransport(config).requests.reply_tokens(ASK, "openai/gpt-5") == 512 + 10_000
    assert b"10000" in LitellmTransport(config).requests.output_settings(
        "openai/gpt-5", Purpose.ANSWER
    )
    more = {"openai/gpt-5": {"purposes": {"answer": {"reasoning_effort": "high"}}}}
    some = Facts(configured(model_settings=more)).of("openai/gpt-5").window_tokens
    assert some == 272_000 - HEADROOM_TOKENS[Effort.HIGH], "the purpose that thinks most"


@dataclass
class Reserving(Ledger):
    """Remembers what is reserved."""

    reserved: list[Reservation] = field(default_factory=list)

    async def begin(self, scope: CallScope, key: bytes, wanted: Reservation) -> Any:
        self.reserved.append(wanted)
        found = await super().begin(scope, key, wanted)
        assert isinstance(found, Lease | CallInProgress) or found.text
        return found


async def test_a_budget_is_held_for_what_may_be_thought() -> None:
    ledger = Reserving()
    calls = gateway(Script(["one"]), ledger, DictIndex(), [], transport().requests)
    await calls.call(ASK, model="openai/gpt-5", scope=SCOPE)
    (reserved,) = ledger.reserved
    assert reserved.tokens >= 512 + HEADROOM_TOKENS[Effort.MEDIUM]


async def test_a_schema_goes_out_as_its_provider_takes_it(
    provider: FakeModel, anthropic: FakeAnthropic
) -> None:
    one = transport()
    for ask in (SHAPED, replace(ASK, reply_schema=FREE), ASK):
        await one.complete(ask, "openai/gpt-4.1-mini")
        await one.complete(ask, "deepseek/deepseek-chat")
        await one.complete(ask, "anthropic/claude-sonnet-4-5")
    formats = [one.get("response_format") for one in provider.requests]
    strict = {"name": "reply", "schema": CANONICAL, "strict": True}
    assert formats[0::2] == [
        {"type": "json_schema", "json_schema": strict},
        # Not every one can be kept to.
        {"type": "json_schema", "json_schema": {"name": "reply", "schema": FREE}},
        None,
    ]
    assert formats[1::2] == [{"type": "json_object"}, {"type": "json_object"}, None]
    assert [("output_format" in one) for one in anthropic.requests] == [True, False, False]


async def test_json_is_not_asked_for_where_the_prompt_does_not_say_so(provider: FakeModel) -> None:
    silent = replace(SHAPED, segments=(Segment(kind=SegmentKind.CHUNK, text="What?"),))
    await transport().complete(silent, "deepseek/deepseek-chat")
    assert "response_format" not in provider.requests[0]


REFUSED = json.dumps(
    {
        "error": {
            "message": "Invalid schema for response_format 'reply': In context=(), 'x' is not",
            "type": "invalid_request_error",
            "param": "response_format",
        }
    }
)


async def test_a_refused_schema_is_asked_for_otherwise_at_once_and_remembered(
    provider: FakeModel,
) -> None:
    one = transport()
    provider.script = [(400, {}, REFUSED)]
    with capture_logs() as logs:
        done = await one.complete(SHAPED, "openai/gpt-4.1-mini")
        await one.complete(SHAPED, "openai/gpt-4.1-mini")
        await one.complete(SHAPED, "openai/gpt-4.1")
    assert done.text
    formats = [(one.get("response_format") or {}).get("type") for one in provider.requests]
    assert formats == ["json_schema", "json_object", "json_object", "json_schema"]
    assert [one["form"] for one in logs if "refuses a form" in one["event"]] == ["schema"]
    assert len({json.dumps(one["messages"]) for one in provider.requests}) == 1


async def test_a_schema_that_is_refused_takes_none_from_others(provider: FakeModel) -> None:
    one = transport()
    theirs = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=x)"}}}
    provider.script = [(400, {}, REFUSED)]
    await one.complete(replace(SHAPED, reply_schema=theirs), "openai/gpt-4.1-mini")
    await one.complete(SHAPED, "openai/gpt-4.1-mini")
    await one.complete(replace(SHAPED, reply_schema=theirs), "openai/gpt-4.1-mini")
    kinds = [one["response_format"]["type"] for one in provider.requests]
    assert kinds == ["json_schema", "json_object", "json_schema", "json_object"]


async def test_json_that_is_refused_too_leaves_the_prompt_alone(provider: FakeModel) -> None:
    one = transport()
    provider.script = [(400, {}, REFUSED), (422, {}, REFUSED)]
    await one.complete(SHAPED, "openai/gpt-4.1-mini")
    await one.complete(SHAPED, "openai/gpt-4.1-mini")
    assert [("response_format" in one) for one in provider.requests] == [True, True, False, False]


@pytest.mark.parametrize(
    ("ask", "status", "body"),
    [
        (ASK, 400, REFUSED),
        (SHAPED, 400, '{"error": {"message": "max_tokens is too large"}}'),
        (SHAPED, 401, REFUSED),
        (SHAPED, 500, REFUSED),
    ],
)
async def test_what_is_no_refusal_of_a_form_fails_as_ever(
    provider: FakeModel, ask: ModelRequest, status: int, body: str
) -> None:
    provider.script = [(status, {}, body)]
    with pytest.raises(ModelFailure):
        await transport().complete(ask, "openai/gpt-4.1-mini")
    assert len(provider.requests) == 1


async def test_one_reply_that_did_not_fit_is_not_held_against_the_model(
    provider: FakeModel,
) -> None:
    one = transport()
    body = json.dumps({"error": {"message": "Failed", "code": "json_validate_failed"}})
    provider.script = [(400, {}, body)]
    await one.complete(SHAPED, "openai/gpt-4.1-mini")
    await one.complete(SHAPED, "openai/gpt-4.1-mini")
    kinds = [one["response_format"]["type"] for one in provider.requests]
    assert kinds == ["json_schema", "json_object", "json_schema"]


async def test_a_template_without_a_system_message_is_asked_without_one() -> None:
    with fake_model() as model:
        one = transport(model_base_url=model.url)
        model.script = [(500, {}, '{"error": {"message": "System role not supported"}}')]
        await one.complete(ASK, "openai/gemma-2")
        await one.complete(ASK, "openai/gemma-2")
    roles = [[message["role"] for message in one["messages"]] for one in model.requests]
    assert roles == [["system", "user"], ["user"], ["user"]]
    assert model.prompts == [ASK.text] * 3


def test_a_refused_form_is_tried_again_after_an_hour() -> None:
    now = [0.0]
    refusals = Refusals(clock=lambda: now[0])
    profile = replace(Profiles(Config()).of("openai/gpt-4.1"), json_object=False)
    wanted = shape_of(SHAPED, profile, Effort.NONE)
    lesser = refusals.without("p", "m/x", SHAPED, wanted, RefusedFeature.SCHEMA, profile)
    assert lesser == Shape(SchemaMode.NONE, system=True)
    now[0] = REMEMBERED_SECONDS - 1
    assert refusals.allowed("p", SHAPED, wanted, profile) == lesser
    assert refusals.allowed("other", SHAPED, wanted, profile) == wanted
    now[0] = REMEMBERED_SECONDS
    assert refusals.allowed("p", SHAPED, wanted, profile) == wanted


def test_refused_forms_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    refusals, profile = Refusals(), Profiles(Config()).of("openai/gpt-4.1")
    sent = shape_of(SHAPED, profile, Effort.NONE)
    for refused in (RefusedFeature.SCHEMA, RefusedFeature.SCHEMA_ONCE, RefusedFeature.SYSTEM):
        refusals.without("p", "openai/gpt-4.1", SHAPED, sent, refused, profile)
    found = reader.get_metrics_data()
    assert found is not None
    points = [
        (point.attributes, point.value)  # type: ignore[union-attr]
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "palimpsest.llm.forms_refused"
        for point in metric.data.data_points
    ]
    assert sorted((said["form"], count) for said, count in points) == [  # type: ignore[index]
        ("schema", 1),
        ("system message", 1),
    ]


async def test_a_reply_with_a_schema_is_not_streamed(provider: FakeModel) -> None:
    told: list[str] = []
    for ask in (SHAPED, ASK):
        await transport().complete(ask, "openai/gpt-4.1-mini", CallPlan(on_text=told.append))
    assert [bool(one.get("stream")) for one in provider.requests] == [False, True]
    assert told, "prose is told as it is written"


async def test_a_claude_keeps_its_prefix_for_an_hour_where_that_is_set(
    anthropic: FakeAnthropic,
) -> None:
    settings = {"anthropic/*": {"cache_ttl": "1h"}}
    hour = Prices(configured(model_settings=settings)).of("anthropic/claude-sonnet-4-5")
    assert (hour.ttl_seconds, hour.write, hour.mark_ttl) == (3600, 2.0, "1h")
    one = transport(model_settings=settings)
    await one.complete(ASK, "anthropic/claude-sonnet-4-5", CallPlan(marks=(0,)))
    (request,) = anthropic.requests
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert request["system"] == [
        {"type": "text", "text": "Answer as JSON.\n", "cache_control": mark}
    ]
    assert request["messages"][0]["content"] == [{"type": "text", "text": "What is a harbour?"}]


async def test_an_o_series_model_gets_one_message(provider: FakeModel) -> None:
    await transport().complete(ASK, "openai/o4-mini")
    assert provider.requests[0]["messages"] == [{"role": "user", "content": ASK.text}]


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (CANONICAL, True),
        ({**CANONICAL, "properties": {"text": {"type": "array", "items": CANONICAL}}}, True),
        ({**CANONICAL, "properties": {"text": {"enum": ["a"]}}}, False),
        ({**CANONICAL, "properties": {"text": {"type": ["string", "null"]}}}, False),
        ({**CANONICAL, "properties": {"text": {"type": "integer", "minimum": 1}}}, False),
        ({**CANONICAL, "required": []}, False),
        ({**CANONICAL, "additionalProperties": {"type": "string"}}, False),
        ({"type": "array", "items": CANONICAL}, False),
        ({**CANONICAL, "properties": {"text": {"$ref": "#"}}}, False),
        (FREE, False),
    ],
)
def test_a_closed_schema_is_what_every_provider_takes(schema: dict[str, Any], closed: bool) -> None:
    assert is_closed(schema) is closed


@dataclass
class Ending:
    """Claude, or Bedrock, with replies that end in its own ways."""

    reason: str = ""
    url: str = ""
    content: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, str] | None = None

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        said: dict[str, Any]
        if "inferenceConfig" in request:
            said = {
                "output": {"message": {"role": "assistant", "content": [{"text": "half a"}]}},
                "stopReason": self.reason,
                "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
                "metrics": {"latencyMs": 1},
            }
            return 200, {}, json.dumps(said)
        said = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": self.content or [{"type": "text", "text": "half a"}],
            "stop_reason": self.reason,
            "stop_sequence": None,
            "stop_details": self.details,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        return 200, {}, json.dumps(said)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ending]:
    one = Ending()
    with served(one) as url:
        one.url = url
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_API_BASE", url)
        monkeypatch.setenv("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        monkeypatch.setenv("AWS_BEDROCK_RUNTIME_ENDPOINT", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        monkeypatch.setenv("AWS_REGION_NAME", "us-east-1")
        yield one


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("end_turn", End.COMPLETE),
        ("model_context_window_exceeded", End.LENGTH),
        ("max_tokens", End.LENGTH),
        ("pause_turn", End.UNKNOWN),
        ("malformed_model_output", End.UNKNOWN),
    ],
)
@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-sonnet-4-5",
        "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
        "bedrock/amazon.nova-pro-v1:0",
    ],
)
async def test_an_end_that_litellm_takes_for_complete_is_what_it_is(
    ending: Ending, model: str, reason: str, end: End
) -> None:
    ending.reason = reason
    assert (await transport().complete(ASK, model)).end is end


async def test_a_refusal_of_claude_says_why(ending: Ending) -> None:
    ending.reason, ending.details = "refusal", {"type": "refusal", "category": "cyber"}
    done = await transport().complete(ASK, "anthropic/claude-sonnet-4-5")
    assert (done.end, done.said) == (End.REFUSAL, "cyber")


async def test_a_tool_that_was_cut_off_is_no_whole_reply(ending: Ending) -> None:
    ending.reason = "max_tokens"
    ending.content = [{"type": "tool_use", "id": "t", "name": "json_tool_call", "input": {}}]
    held = transport(model_profiles={"anthropic/*": {"structured": "tool"}})
    done = await held.complete(SHAPED, "anthropic/claude-opus-4-1")
    assert done.end is not End.COMPLETE


async def test_an_end_is_seen_at_deployments_too(ending: Ending) -> None:
    ending.reason = "model_context_window_exceeded"
    places = [{"name": "one", "model": "anthropic/claude-sonnet-4-5", "api_base": ending.url}]
    one = transport(deployments=places)
    done = await one.complete(ASK, "anthropic/claude-sonnet-4-5", CallPlan(deployment="one"))
    assert done.end is End.LENGTH


@pytest.fixture
def ollama() -> Iterator[Emulator]:
    with emulators() as found:
        yield found["ollama"]


def saying(text: str, **fields: Any) -> ModelRequest:
    return replace(ASK, segments=(Segment(kind=SegmentKind.TASK, text=text),), **fields)


async def options_at(
    ollama: Emulator, model: str, ask: ModelRequest, **more: Any
) -> dict[str, Any]:
    """Returns what Ollama is asked for in a process's first call."""
    end = ollama.endpoint(model)
    await LitellmTransport(end.config(**more)).complete(
        ask, model, CallPlan(deployment=end.deployment)
    )
    options: dict[str, Any] = ollama.seen[-1].request.body["options"]
    return options


READINGS = [{"id": n, "at": 1_700_000_000 + 7 * n, "values": [n, n + 1]} for n in range(480)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(READINGS),
        " ".join(str(uuid5(NAMESPACE_OID, str(n))) for n in range(400)),
        "今天天气很好我们去公园散步吧然后吃晚饭。" * 165,
    ],
    ids=["json", "uuids", "chinese"],
)
async def test_ollamas_window_holds_texts_of_short_tokens(ollama: Emulator, text: str) -> None:
    options = await options_at(ollama, "ollama_chat/mine", saying(text, max_output_tokens=100))
    # A tokenizer of the usual kind, which litellm contains.
    tokens = Facts(Config()).of("openai/gpt-4").count(text)
    assert options["num_ctx"] >= tokens + options["num_predict"]


@pytest.mark.parametrize(
    ("model", "setting", "reply_tokens"),
    [
        ("ollama_chat/deepseek-r1", {}, 512 + 16_384),
        ("ollama_chat/qwen3", {}, 512 + 16_384),
        ("ollama_chat/mine", {"max_output_tokens": 30_000}, 30_000),
    ],
)
async def test_ollamas_window_holds_what_is_thought(
    ollama: Emulator, model: str, setting: dict[str, Any], reply_tokens: int
) -> None:
    options = await options_at(ollama, model, ASK, model_settings={model: setting})
    assert options["num_predict"] == reply_tokens
    assert options["num_ctx"] == 32_768


def test_a_model_of_ollamas_has_one_window_by_either_route() -> None:
    profiles = Profiles(Config())
    routes = ("ollama/llama3", "ollama_chat/llama3")
    assert [profiles.of(model).window_tokens for model in routes] == [8_192, 8_192]


async def test_ollama_loads_a_model_for_larger_windows_only_and_none_above_its_own(
    ollama: Emulator,
) -> None:
    end = ollama.endpoint("ollama_chat/mine")
    window = {"ollama_chat/mine": {"window_tokens": 10_000}}
    one = LitellmTransport(end.config(model_profiles=window))
    for words in (500, 2_000, 4_400, 4_800, 1_000, 4_500, 10):
        ask = saying("word " * words)
        await one.complete(ask, end.model, CallPlan(deployment=end.deployment))
    assert isinstance(ollama.provider, Ollama)
    assert ollama.provider.loads == [4_096, 8_192, 10_000]


async def test_what_cannot_fit_ollamas_window_is_refused_before_it_is_cut(
    ollama: Emulator,
) -> None:
    ask = saying("word " * 10_000)
    with pytest.raises(ModelFailure) as refused:
        await options_at(ollama, "ollama_chat/llama3", ask)
    assert (refused.value.fault, refused.value.retryable) == (Fault.TOO_LONG, False)
    assert "a prompt of 50000 bytes, a window of 8192 tokens" in str(refused.value)
    assert not ollama.seen


def test_a_window_of_ollamas_that_is_set_counts() -> None:
    config = configured(model_settings={"ollama_chat/*": {"extra": {"num_ctx": 6_000}}})
    requests, model = Requests(config, Prices(config)), "ollama_chat/mine"
    ask = saying("word " * 10_000)
    sent = requests.arguments(ask, model, CallPlan(), requests.shape(ask, model))
    assert sent["num_ctx"] == 6_000
