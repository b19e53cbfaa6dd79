"""What each emulated provider refuses of a request, and what it takes."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.providers.azure import API_VERSION
from tests.providers.bedrock import ACCESS_KEY, REGION
from tests.providers.exchange import Json, Request
from tests.providers.provider import KEY
from tests.providers.server import PROVIDERS, REPLY, Emulators
from tests.unit.calls.providers.shapes import (
    CANONICAL,
    FREE,
    RECURSIVE,
    flat,
    nested,
    one,
    optional,
    unions,
)

BEARER = {"authorization": f"Bearer {KEY}"}
PATHS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "openai": ("/v1/chat/completions", BEARER),
    "azure": ("/openai/deployments/my-deployment/chat/completions", {"api-key": KEY}),
    "anthropic": ("/v1/messages", {"x-api-key": KEY, "anthropic-version": "2023-06-01"}),
    "gemini": ("/models/gemini-2.5-flash:generateContent", {"x-goog-api-key": KEY}),
    "bedrock": (
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
        {
            "authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}"
            "/bedrock/aws4_request, SignedHeaders=host, Signature=x"
        },
    ),
    "deepseek": ("/chat/completions", BEARER),
    "mistral": ("/v1/chat/completions", BEARER),
    "groq": ("/openai/v1/chat/completions", BEARER),
    "openrouter": ("/api/v1/chat/completions", BEARER),
    "vllm": ("/v1/chat/completions", BEARER),
    "ollama": ("/api/chat", {}),
    "xai": ("/v1/chat/completions", BEARER),
}
MESSAGES = [{"role": "user", "content": "What is the harbour museum?"}]
BODIES: Mapping[str, Json] = {
    **{
        name: {"model": PROVIDERS[name].model.partition("/")[2], "messages": MESSAGES}
        for name in PATHS
    },
    "anthropic": {"model": "claude-sonnet-4-5", "messages": MESSAGES, "max_tokens": 512},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "What is it?"}]}]},
    "bedrock": {
        "messages": [{"role": "user", "content": [{"text": "What is it?"}]}],
        "inferenceConfig": {"maxTokens": 512},
    },
    "ollama": {"model": "llama3.1", "messages": MESSAGES, "stream": False},
}


def request(name: str, change: Json, **headers: str) -> Request:
    """Returns a right request, and a change of its body; `path` in it is the path's."""
    path, its_headers = PATHS[name]
    change = dict(change)
    path = change.pop("path", path)
    return Request(
        path=path,
        query={"api-version": API_VERSION} if name == "azure" else {},
        headers={**its_headers, **{key.replace("_", "-"): value for key, value in headers.items()}},
        body={**copy.deepcopy(BODIES[name]), **change},
    )


def strict(schema: Json, **more: Any) -> Json:
    asked = {"name": "r", "strict": True, "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": asked}}


def claude(schema: Json) -> Json:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def converse(schema: Json) -> Json:
    form = {"jsonSchema": {"name": "r", "schema": json.dumps(schema)}}
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": form}}}


def gemini(schema: Json, **more: Any) -> Json:
    form = {"response_mime_type": "application/json", "response_json_schema": schema}
    return {"generationConfig": {**form, **more}}


def blocks(*texts: str, mark: Json | None = None) -> list[Json]:
    marked = {} if mark is None else {"cache_control": mark}
    content = [{"type": "text", "text": text, **marked} for text in texts]
    return [{"role": "user", "content": content}]


FORCED = {
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "f"},
}
THINKING = {"type": "enabled", "budget_tokens": 1_024}
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
GPT5 = {"model": "gpt-5"}
OPUS = {"model": "claude-opus-5-5"}
SCHEMA_WORD = [{"role": "user", "content": "Write JSON."}]

#: Provider, change, the rule that it breaks, status, and a part of the provider's words.
REFUSED: list[tuple[str, Json, str, int, str]] = [
    ("openai", {"top_k": 5}, "unknown field", 400, "Unknown parameter: 'top_k'"),
    ("openai", {"messages": []}, "messages", 400, "messages"),
    ("openai", {"messages": [{"role": "robot", "content": "?"}]}, "role", 400, "'robot'"),
    ("openai", {"messages": blocks("a", mark=EPHEMERAL)}, "unknown field", 400, "cache_control"),
    ("openai", {"stream_options": {}}, "stream options", 400, "stream_options"),
    ("openai", {"reasoning_effort": "low"}, "effort", 400, "reasoning_effort"),
    ("openai", {**GPT5, "max_tokens": 9}, "max_tokens", 400, "max_completion_tokens"),
    ("openai", {**GPT5, "temperature": 0}, "temperature", 400, "Only the default (1)"),
    ("openai", {**GPT5, "top_p": 0.5}, "top_p", 400, "'top_p' is not supported"),
    ("openai", {**GPT5, "reasoning_effort": "none"}, "effort", 400, "'none'"),
    ("openai", {"model": "o4-mini", "stop": ["x"]}, "stop", 400, "'stop'"),
    (
        "openai",
        {"model": "gpt-5.1", "temperature": 0, "reasoning_effort": "low"},
        "temperature",
        400,
        "'temperature'",
    ),
    (
        "openai",
        {"response_format": {"type": "json_object"}},
        "json word",
        400,
        "must contain the word 'json'",
    ),
    ("openai", strict(CANONICAL, name="a b"), "name", 400, "json_schema.name"),
    ("openai", strict({"type": "array", "items": {}}), "root", 400, "got 'type: \"array\"'"),
    ("openai", strict(FREE), "additional", 400, "In context=('properties', 'facts')"),
    ("openai", strict(optional(2)), "required", 400, "Missing 'x0'"),
    ("openai", strict(flat({"x": {"not": {"type": "null"}}})), "keyword", 400, "'not'"),
    ("openai", strict(flat({"x": {"allOf": [{}]}})), "keyword", 400, "'allOf'"),
    ("openai", strict(nested(11)), "depth", 400, "nesting"),
    ("openai", strict(one("string", enum=["x"] * 1_001)), "size", 400, "1000"),
    ("azure", strict(FREE), "additional", 400, "additionalProperties"),
    ("azure", {"path": "/v1/chat/completions"}, "path", 404, "Resource not found"),
    ("anthropic", {"extra_body": {}}, "unknown field", 400, "extra_body: Extra inputs"),
    ("anthropic", {"output_format": {}}, "unknown field", 400, "output_format: Extra inputs"),
    ("anthropic", {"messages": [{"role": "system", "content": "x"}]}, "role", 400, "'user' or"),
    ("anthropic", {"messages": blocks(" ")}, "blank", 400, "non-whitespace"),
    ("anthropic", {"messages": blocks("")}, "blank", 400, "non-empty"),
    ("anthropic", {"messages": [{"role": "user", "content": []}]}, "blank", 400, "non-empty"),
    (
        "anthropic",
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": "{"}],
            "model": "claude-opus-4-6",
        },
        "last role",
        400,
        "prefill",
    ),
    ("anthropic", {"messages": blocks(*"abcde", mark=EPHEMERAL)}, "marks", 400, "Found 5"),
    (
        "anthropic",
        {"system": blocks("a", mark=EPHEMERAL)[0]["content"], "messages": blocks("b", mark=HOUR)},
        "marks",
        400,
        "must not come after",
    ),
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 100}}, "budget", 400, "1024"),
    ("anthropic", {"thinking": THINKING}, "budget", 400, "greater than `thinking.budget_tokens`"),
    ("anthropic", {"thinking": {"type": "adaptive"}}, "thinking", 400, "adaptive"),
    ("anthropic", {"thinking": THINKING, **OPUS}, "thinking", 400, "thinking.type.adaptive"),
    ("anthropic", {"thinking": {"type": "disabled"}, **OPUS}, "thinking", 400, "disabled"),
    ("anthropic", {"temperature": 0, **OPUS}, "sampling", 400, "`temperature` is deprecated"),
    ("anthropic", {"temperature": 0, "top_p": 0.5}, "sampling", 400, "cannot both"),
    (
        "anthropic",
        {"thinking": THINKING, "max_tokens": 2_000, "temperature": 0},
        "sampling",
        400,
        "may only be set to 1",
    ),
    ("anthropic", {**FORCED, **OPUS}, "forced tool", 400, "not supported for this model"),
    (
        "anthropic",
        {**FORCED, "thinking": THINKING, "max_tokens": 2_000},
        "forced tool",
        400,
        "Thinking may not be enabled",
    ),
    ("anthropic", {"output_config": {"effort": "low"}}, "effort", 400, "effort"),
    (
        "anthropic",
        {**claude(CANONICAL), "model": "claude-3-haiku-20240307"},
        "json schema",
        400,
        "output format",
    ),
    ("anthropic", claude(FREE), "additional", 400, "explicitly set to false"),
    ("anthropic", claude(RECURSIVE), "recursion", 400, "Circular"),
    ("anthropic", claude(flat({"x": {"$ref": "#/$defs/N"}})), "reference", 400, "#/$defs/N"),
    ("anthropic", claude(unions(17)), "unions", 400, "union types (17"),
    ("anthropic", claude(optional(25)), "optional", 400, "optional parameters (25)"),
    ("anthropic", claude(one("integer", minimum=1)), "bounds", 400, "'minimum'"),
    ("anthropic", claude(one("string", maxLength=1)), "bounds", 400, "'maxLength'"),
    ("anthropic", claude(one("array", minItems=2)), "bounds", 400, "0 or 1"),
    ("bedrock", converse(FREE), "additional", 400, "output_config.format.schema: For 'object'"),
    ("bedrock", converse(one("integer", minimum=1)), "bounds", 400, "'minimum'"),
    (
        "bedrock",
        {**converse(CANONICAL), "path": "/model/anthropic.claude-opus-4-7-v1%3A0/converse"},
        "json schema",
        400,
        "not supported",
    ),
    (
        "bedrock",
        {**converse(CANONICAL), "path": "/model/amazon.nova-pro-v1%3A0/converse"},
        "json schema",
        400,
        "does not support",
    ),
    (
        "bedrock",
        {"additionalModelRequestFields": {"extra_body": {}}},
        "unknown field",
        400,
        "extra_body: Extra inputs",
    ),
    ("bedrock", {"additionalModelRequestFields": {"thinking": THINKING}}, "budget", 400, "greater"),
    (
        "bedrock",
        {"messages": [{"role": "user", "content": [{"text": " "}]}]},
        "blank",
        400,
        "is blank",
    ),
    (
        "bedrock",
        {"messages": [{"role": "user", "content": [{"text": "a"}, *[{"cachePoint": {}}] * 5]}]},
        "marks",
        400,
        "maximum of 4",
    ),
    ("gemini", {"extra_body": {}}, "unknown field", 400, 'Unknown name "extra_body"'),
    ("gemini", {"generationConfig": {"num_ctx": 1}}, "unknown field", 400, "num_ctx"),
    ("gemini", {"contents": []}, "contents", 400, "not specified"),
    ("gemini", {"contents": [{"role": "system", "parts": []}]}, "role", 400, "valid role"),
    ("gemini", gemini(one("array", maxItems=5_000)), "states", 400, "too many states"),
    ("gemini", {"generationConfig": {"responseJsonSchema": {}}}, "mime type", 400, "mime_type"),
    (
        "gemini",
        {
            "path": "/models/gemini-2.5-pro:generateContent",
            "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}},
        },
        "budget",
        400,
        "Budget 0 is invalid",
    ),
    (
        "gemini",
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}}},
        "thinking",
        400,
        "Thinking level",
    ),
    ("deepseek", strict(CANONICAL), "json schema", 400, "This response_format type is unavailable"),
    ("deepseek", {"response_format": {"type": "json_object"}}, "json word", 400, "'json'"),
    (
        "deepseek",
        {"thinking": {"type": "enabled"}, "tool_choice": "required"},
        "forced tool",
        400,
        "tool_choice",
    ),
    ("mistral", {"seed": 1}, "unknown field", 422, "extra_forbidden"),
    ("mistral", {"stream_options": {}}, "unknown field", 422, "stream_options"),
    ("mistral", {"max_completion_tokens": 1}, "unknown field", 422, "max_completion_tokens"),
    ("mistral", {"messages": blocks("a", mark=EPHEMERAL)}, "unknown field", 422, "cache_control"),
    (
        "mistral",
        {"messages": [{"role": "assistant", "content": "x"}]},
        "last role",
        400,
        "last role",
    ),
    ("groq", {"top_k": 5}, "unknown field", 400, "property 'top_k' is unsupported"),
    ("groq", {"prompt_cache_key": "x"}, "unknown field", 400, "prompt_cache_key"),
    (
        "groq",
        {**strict(CANONICAL), "model": "llama-3.3-70b-versatile"},
        "json schema",
        400,
        "does not support response format `json_schema`",
    ),
    ("groq", strict(FREE), "additional", 400, "additionalProperties:false"),
    ("groq", {"response_format": {"type": "json_object"}}, "json word", 400, "'json'"),
    (
        "groq",
        {"model": "llama-3.3-70b-versatile", "reasoning_effort": "low"},
        "effort",
        400,
        "reasoning_effort",
    ),
    ("vllm", strict(one("array", uniqueItems=True)), "xgrammar", 400, "xgrammar"),
    ("vllm", strict(one("number", multipleOf=2)), "xgrammar", 400, "xgrammar"),
    ("ollama", {"format": "xml"}, "format", 400, "invalid format"),
    ("ollama", {"think": True}, "thinking", 400, "does not support thinking"),
    ("ollama", {"messages": blocks("a")}, "content", 400, "of type string"),
    ("xai", {"stop": ["x"]}, "stop", 400, "does not support parameter stop"),
    ("xai", {"model": "grok-4", "reasoning_effort": "low"}, "effort", 400, "reasoningEffort"),
    ("xai", strict(RECURSIVE), "recursion", 400, "circular"),
]

#: What is taken, though others refuse it, or it is close to what is refused.
TAKEN: list[tuple[str, Json]] = [
    *((name, {}) for name in PATHS),
    *(
        (name, strict(CANONICAL))
        for name in ("openai", "azure", "mistral", "groq", "openrouter", "vllm", "xai")
    ),
    ("anthropic", claude(CANONICAL)),
    ("bedrock", converse(CANONICAL)),
    ("gemini", gemini(CANONICAL)),
    ("ollama", {"format": CANONICAL}),
    ("deepseek", {"response_format": {"type": "json_object"}, "messages": SCHEMA_WORD}),
    ("openai", {"response_format": {"type": "json_object"}, "messages": SCHEMA_WORD}),
    ("openai", strict(FREE, strict=False)),
    ("openai", strict(RECURSIVE)),
    ("openai", strict(one("integer", minimum=1))),
    ("openai", strict(unions(17))),
    ("openai", strict(nested(10))),
    ("openai", {**GPT5, "temperature": 1, "max_completion_tokens": 9, "reasoning_effort": "low"}),
    ("openai", {"model": "gpt-5.1", "temperature": 0}),
    ("openai", {"temperature": 0, "max_tokens": 9, "prompt_cache_key": "x"}),
    ("anthropic", claude(unions(16))),
    ("anthropic", claude(optional(24))),
    ("anthropic", {"thinking": THINKING, "max_tokens": 1_025}),
    ("anthropic", {"messages": blocks(*"abcd", mark=EPHEMERAL)}),
    (
        "anthropic",
        {"system": blocks("a", mark=HOUR)[0]["content"], "messages": blocks("b", mark=EPHEMERAL)},
    ),
    ("anthropic", {"temperature": 0, "top_k": 5}),
    ("anthropic", FORCED),
    ("anthropic", {"messages": [*MESSAGES, {"role": "assistant", "content": "{"}]}),
    ("anthropic", {"output_config": {"effort": "low"}, **OPUS}),
    ("bedrock", {"additionalModelRequestFields": {"top_k": 5}}),
    ("gemini", gemini(FREE)),
    ("gemini", gemini(one("string", pattern="x"), max_output_tokens=9)),
    ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
    ("deepseek", {"top_k": 5}),
    ("openrouter", {"top_k": 5, "usage": {"include": True}}),
    ("vllm", {"top_k": 5, "chat_template_kwargs": {}}),
    ("ollama", {"options": {"num_ctx": 9_000}, "x": 1}),
    ("ollama", {"model": "qwen3", "think": True}),
]


@pytest.mark.parametrize(("name", "change", "rule", "status", "words"), REFUSED)
def test_a_request_is_refused_as_the_provider_does(
    servers: Emulators, name: str, change: Json, rule: str, status: int, words: str
) -> None:
    response = servers[name].respond(request(name, change))
    assert servers[name].refusals == [rule]
    assert response.status == status
    body = json.loads(response.body)
    assert words in json.dumps(body, ensure_ascii=False).replace('\\"', '"')
    assert servers[name].prompts == []


@pytest.mark.parametrize(("name", "change"), TAKEN)
def test_a_right_request_is_taken(servers: Emulators, name: str, change: Json) -> None:
    response = servers[name].respond(request(name, change))
    assert servers[name].refusals == []
    assert response.status == 200


@pytest.mark.parametrize("name", [name for name in PATHS if name != "ollama"])
def test_a_wrong_key_is_refused(servers: Emulators, name: str) -> None:
    right = request(name, {})
    headers = {
        key: value.replace(KEY, "x").replace(ACCESS_KEY, "x")
        for key, value in right.headers.items()
    }
    response = servers[name].respond(
        Request(path=right.path, query=right.query, headers=headers, body=right.body)
    )
    assert response.status in (400, 401, 403)
    assert servers[name].refusals == ["key"]


@pytest.mark.parametrize("name", PATHS)
def test_another_path_is_not_there(servers: Emulators, name: str) -> None:
    response = servers[name].respond(request(name, {"path": "/v2/elsewhere"}))
    assert response.status == 404
    assert servers[name].refusals == ["path"]


def test_the_old_form_of_claudes_schemas_needs_its_header(servers: Emulators) -> None:
    old = {"output_format": {"type": "json_schema", "schema": CANONICAL}}
    beta = {"anthropic_beta": "structured-outputs-2025-11-13"}
    assert servers["anthropic"].respond(request("anthropic", old, **beta)).status == 200
    assert servers["anthropic"].respond(request("anthropic", old)).status == 400


def test_a_tool_that_has_to_be_called_gets_the_reply(servers: Emulators) -> None:
    servers["anthropic"].script = []
    servers["anthropic"].answer = lambda prompt: '{"changes": []}'
    body = json.loads(servers["anthropic"].respond(request("anthropic", FORCED)).body)
    servers["anthropic"].answer = lambda prompt: REPLY
    assert body["content"][0]["input"] == {"changes": []}
    prose = json.loads(servers["anthropic"].respond(request("anthropic", FORCED)).body)
    assert prose["content"] == [{"type": "text", "text": REPLY}]


@pytest.mark.parametrize("name", PATHS)
def test_a_request_without_a_body_is_refused(servers: Emulators, name: str) -> None:
    right = request(name, {})
    bare = Request(path=right.path, query=right.query, headers=right.headers, body={})
    assert servers[name].respond(bare).status == 400
    assert len(servers[name].refusals) == 1
