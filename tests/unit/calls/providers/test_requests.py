"""Requests as litellm sends them, and what each emulated provider says of them."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.failures import ModelFailure
from service.llm.providers.library import litellm_library
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import LitellmTransport
from service.settings import reading
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.providers.exchange import Json
from tests.providers.provider import KEY, Endpoint
from tests.providers.scenarios import Scenario, Turn
from tests.providers.server import PROVIDERS, REPLY, Emulators
from tests.unit.calls.providers.shapes import CANONICAL, FREE, RECURSIVE, one, unions

#: Which rules schemas break as litellm sends them, asked for with `strict`; of all others none.
THROUGH: Mapping[tuple[str, str], str] = {
    **{(name, "free"): "additional" for name in ("openai", "azure", "groq", "bedrock")},
    # Claude's free objects litellm closes: only `{}` fits them. Bounds it puts into words.
    **{(name, "unions"): "unions" for name in ("anthropic", "bedrock")},
    # It resolves one level, and leaves the rest without its definitions.
    ("anthropic", "recursive"): "reference",
    ("bedrock", "recursive"): "recursion",
    ("bedrock", "bounds"): "bounds",
    ("xai", "recursive"): "recursion",
    **{
        ("deepseek", schema): "json schema"
        for schema in ("canonical", "free", "recursive", "unions", "bounds")
    },
}
SCHEMAS = {
    "canonical": CANONICAL,
    "free": FREE,
    "recursive": RECURSIVE,
    "unions": unions(17),
    "bounds": one("integer", minimum=1),
}


def form_of(schema: Json) -> Json:
    """litellm's argument for a reply by a schema."""
    asked = {"name": "r", "strict": True, "schema": copy.deepcopy(schema)}
    return {"type": "json_schema", "json_schema": asked}


async def asked(end: Endpoint, **more: Any) -> Any:
    """litellm's response to a call without our service."""
    return await litellm_library().acompletion(
        messages=[{"role": "user", "content": "What is it?"}],
        max_tokens=512,
        num_retries=0,
        max_retries=0,
        **more,
        **end.arguments,
    )


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", PROVIDERS)
async def test_schemas_as_litellm_sends_them(servers: Emulators, name: str, schema: str) -> None:
    broken = THROUGH.get((name, schema))
    form = form_of(SCHEMAS[schema])
    if broken is None:
        await asked(servers.endpoint(name), response_format=form)
        assert servers[name].refusals == []
        return
    with pytest.raises(litellm_library().exceptions.BadRequestError):
        await asked(servers.endpoint(name), response_format=form)
    assert servers[name].refusals == [broken]


ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=512,
)


@pytest.mark.parametrize(
    ("name", "model", "setting", "rule"),
    [
        ("openai", "openai/gpt-4.1-mini", {"extra_body": {"top_k": 5}}, "unknown field"),
        ("anthropic", "anthropic/claude-sonnet-4-5", {"extra_body": {"x": 1}}, "unknown field"),
        ("bedrock", PROVIDERS["bedrock"].model, {"extra_body": {"x": 1}}, "unknown field"),
        ("mistral", "mistral/mistral-large-latest", {"extra_body": {"x": 1}}, "unknown field"),
        ("groq", "groq/openai/gpt-oss-120b", {"extra_body": {"top_k": 5}}, "unknown field"),
        ("gemini", "gemini/gemini-2.5-flash", {"extra_body": {"x": 1}}, "unknown field"),
    ],
)
async def test_settings_that_a_provider_does_not_take(
    servers: Emulators, name: str, model: str, setting: Json, rule: str
) -> None:
    end = servers.endpoint(name, model)
    config: Config = end.config(model_settings={model: setting})
    with pytest.raises(ModelFailure) as caught:
        await LitellmTransport(config).complete(ASK, model, CallPlan(deployment=end.deployment))
    assert caught.value.fault is Fault.REQUEST_REFUSED
    assert servers[name].refusals == [rule]


@pytest.mark.parametrize(
    ("name", "model", "turn", "text", "finish"),
    [
        (name, model, turn, text, finish)
        for name, model, cut in (
            # Of a tool that is cut litellm says "stop" at Claude.
            ("anthropic", "anthropic/claude-3-haiku-20240307", "stop"),
            ("bedrock", "bedrock/amazon.nova-pro-v1:0", "length"),
        )
        for turn, text, finish in (
            (Turn(text='{"changes": []}'), '{"changes": []}', "stop"),
            (Turn(text=REPLY), REPLY, "stop"),
            (Turn(scenario=Scenario.LENGTH, text='{"changes": []}'), "{}", cut),
        )
    ],
)
async def test_a_schema_that_becomes_a_tool(
    servers: Emulators, name: str, model: str, turn: Turn, text: str, finish: str
) -> None:
    servers[name].script = [turn]
    done = await asked(servers.endpoint(name, model), response_format=form_of(CANONICAL))
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == (text, finish)
    (seen,) = servers[name].seen
    assert "json_tool_call" in json.dumps(seen.request.body)


#: Of a model that is asked with a schema, with little effort, without any, and with both first.
EFFORTS = ("schema", "low", "none", "both")
#: Which rules are broken; `raises`: litellm sends nothing.
MODELS: Mapping[str, tuple[str, str, str, str]] = {
    "openai/gpt-4.1-mini": ("", "raises", "raises", "raises"),
    "openai/gpt-5": ("", "", "raises", ""),
    "openai/gpt-5.1": ("", "", "", ""),
    "openai/o4-mini": ("", "", "effort", ""),
    # A budget of 1,024 tokens, whatever the bound is.
    "anthropic/claude-haiku-4-5": ("", "budget", "", "budget"),
    "anthropic/claude-sonnet-4-6": ("", "", "", ""),
    "anthropic/claude-opus-4-7": ("", "", "", ""),
    "anthropic/claude-opus-5-5": ("", "", "", ""),
    "anthropic/claude-sonnet-5-5": ("", "", "", ""),
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0": ("", "budget", "", "budget"),
    "bedrock/anthropic.claude-opus-4-7": ("", "", "", ""),
    "bedrock/amazon.nova-pro-v1:0": ("", "raises", "raises", "raises"),
    "gemini/gemini-2.5-pro": ("", "", "budget", ""),
    "gemini/gemini-3-pro-preview": ("", "", "", ""),
    "deepseek/deepseek-reasoner": ("json schema", "", "", "json schema"),
    "groq/llama-3.3-70b-versatile": ("", "raises", "raises", "raises"),
    "groq/openai/gpt-oss-120b": ("", "", "", ""),
    "ollama_chat/llama3.1": ("", "thinking", "", "thinking"),
    "ollama_chat/qwen3": ("", "", "", ""),
    "xai/grok-4": ("", "raises", "raises", "raises"),
}


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("model", MODELS)
async def test_schemas_and_efforts_by_model(servers: Emulators, model: str, effort: str) -> None:
    litellm = litellm_library()
    name = {"ollama_chat": "ollama"}.get(model.partition("/")[0], model.partition("/")[0])
    more: Json = {"response_format": form_of(CANONICAL)} if effort in ("schema", "both") else {}
    if effort != "schema":
        more["reasoning_effort"] = "none" if effort == "none" else "low"
    expected = MODELS[model][EFFORTS.index(effort)]
    end = servers.endpoint(name, model)
    if expected == "raises":
        with pytest.raises(litellm.exceptions.UnsupportedParamsError):
            await asked(end, **more)
        assert servers[name].seen == []
        return
    if expected:
        with pytest.raises(litellm.exceptions.BadRequestError):
            await asked(end, **more)
        assert servers[name].refusals == [expected]
        return
    await asked(end, **more)
    assert servers[name].refusals == []


async def test_json_mode_of_deepseek_without_an_object(servers: Emulators) -> None:
    litellm = litellm_library()
    done = await litellm.acompletion(
        messages=[{"role": "user", "content": "Write JSON."}],
        response_format={"type": "json_object"},
        **servers.endpoint("deepseek").arguments,
    )
    assert (done.choices[0].message.content.strip(), done.choices[0].finish_reason) == ("", "stop")


async def test_marks_come_where_the_provider_has_them(servers: Emulators) -> None:
    texts = ("The task.", "The memory.", "The question.")
    segments = tuple(Segment(kind=SegmentKind.TASK, text=text) for text in texts)
    ask = replace(ASK, segments=segments)
    for name in servers:
        end = servers.endpoint(name)
        plan = CallPlan(deployment=end.deployment, marks=(0, 1))
        await LitellmTransport(end.config()).complete(ask, end.model, plan)
    assert {name: one.refusals for name, one in servers.items() if one.refusals} == {}
    sent = {name: json.dumps(one.seen[0].request.body) for name, one in servers.items()}
    marks = {
        name: body.count("cache_control") + body.count("cachePoint") for name, body in sent.items()
    }
    assert {name: count for name, count in marks.items() if count} == {"anthropic": 2, "bedrock": 2}


async def test_a_prompt_beyond_the_window(servers: Emulators) -> None:
    end = servers.endpoint("openai")
    servers["openai"].window_words = 3
    with pytest.raises(ModelFailure) as caught:
        await LitellmTransport(end.config()).complete(
            ASK, end.model, CallPlan(deployment="emulated")
        )
    servers["openai"].window_words = None
    assert caught.value.fault is Fault.TOO_LONG


async def test_ollama_is_asked_for_a_window_that_the_prompt_fits(servers: Emulators) -> None:
    end = servers.endpoint("ollama")
    calls = LitellmTransport(end.config())
    read, sent = [], []
    for words in (10, 6_000, 10):
        segment = Segment(kind=SegmentKind.TASK, text="harbour " * words)
        ask = replace(ASK, segments=(segment,))
        done = await calls.complete(ask, end.model, CallPlan(deployment=end.deployment))
        read.append(done.input_tokens)
        sent.append(servers["ollama"].seen[-1].request.body["options"]["num_ctx"])
    assert read == [10, 6_000, 10], "as many as the emulator reads, which cuts what is longer"
    # It was loaded with the large one, and stays so.
    assert sent[0] <= sent[1] == sent[2]
    assert sent[1] > 6_000


async def test_ollamas_window_may_be_set(servers: Emulators) -> None:
    end = servers.endpoint("ollama")
    config = end.config(model_settings={end.model: {"extra": {"num_ctx": 12_345}}})
    plan = CallPlan(deployment=end.deployment)
    await LitellmTransport(config).complete(ASK, end.model, plan)
    (seen,) = servers["ollama"].seen
    assert seen.request.body["options"]["num_ctx"] == 12_345


def test_an_endpoint_says_all_that_a_process_needs(servers: Emulators) -> None:
    end = servers.endpoint("anthropic", "anthropic/claude-opus-4-7")
    config = reading.read(end.variables).config
    assert config is not None
    (one,) = config.deployments
    assert config.model == one.target == "anthropic/claude-opus-4-7"
    assert (one.api_base, one.key()) == (end.api_base, KEY)


async def test_bedrock_by_a_key_of_its_own(servers: Emulators) -> None:
    model = PROVIDERS["bedrock"].model
    base = f"{servers['bedrock'].url}/bedrock"
    one = Deployment(name="keyed", model=model, api_base=base, api_key=SecretStr(KEY))
    config = Config(model=model, deployments=(one,))
    done = await LitellmTransport(config).complete(ASK, model, CallPlan(deployment="keyed"))
    assert done.text == REPLY
    (seen,) = servers["bedrock"].seen
    assert seen.request.headers["authorization"] == f"Bearer {KEY}"
