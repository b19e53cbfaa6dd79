"""OpenAI: strict schemas, reasoning models that take no sampling, unknown fields refused."""

import re
from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import (
    Invalid,
    Json,
    Request,
    Response,
    json_response,
    unknown_fields,
)
from tests.providers.openai_like import FIELDS, FINISH, STATUSES, OpenAiLike, says_json
from tests.providers.scenarios import Scenario, Turn
from tests.providers.schemas import check_strict

_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d))")
#: Of these the effort is none where it is not set, and sampling is taken then.
_SAMPLES = re.compile(r"^gpt-5\.(?:1|2|4)\b")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PART_FIELDS = frozenset({"type", "text", "prompt_cache_breakpoint"})

ERRORS: Mapping[Scenario, tuple[object, str, str]] = {
    Scenario.SCHEMA_400: (
        None,
        "invalid_request_error",
        "Invalid schema for response_format 'revision': In context=(), 'additionalProperties' is"
        " required to be supplied and to be false.",
    ),
    Scenario.RATE_LIMIT: ("rate_limit_exceeded", "tokens", "Rate limit reached for the model."),
    Scenario.RATE_LIMIT_DELAY: (
        "rate_limit_exceeded",
        "tokens",
        "Rate limit reached for the model. Please try again in 7s.",
    ),
    Scenario.QUOTA: (
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    Scenario.OVERLOADED: (
        None,
        "server_error",
        "The engine is currently overloaded, please try again later",
    ),
    Scenario.ERROR_WITH_200: (502, "server_error", "The upstream server did not answer."),
    Scenario.TOO_LONG: (
        "context_length_exceeded",
        "invalid_request_error",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in"
        " 200000 tokens. Please reduce the length of the messages.",
    ),
    Scenario.KEY_REFUSED: (
        "invalid_api_key",
        "invalid_request_error",
        "Incorrect API key provided: key-of-a-stranger.",
    ),
    Scenario.PROMPT_FILTERED: (
        "invalid_prompt",
        "invalid_request_error",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
    ),
}


class OpenAi(OpenAiLike):
    name = "openai"
    model = "openai/gpt-4.1-mini"
    finish: ClassVar[Mapping[Scenario, str]] = {
        **FINISH,
        Scenario.REFUSAL: "stop",
        Scenario.FILTER: "content_filter",
    }
    statuses: ClassVar[Mapping[Scenario, int]] = {**STATUSES, Scenario.PROMPT_FILTERED: 400}
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = ERRORS
    thought_field = ""
    #: No end, but a 400, of which litellm makes a reply without a word.
    natives = ("could not finish",)

    def respond(self, turn: Turn, text: str, request: Request) -> Response:
        if turn.scenario is Scenario.ODD_END:
            said = (
                "Could not finish the message because max_tokens or model output limit was"
                " reached. Please try again with higher max_tokens."
            )
            return json_response(self.error_body(said, "invalid_request_error", None, None), 400)
        return super().respond(turn, text, request)

    def check_body(self, body: Json) -> None:
        for name in unknown_fields(body, FIELDS):
            raise Invalid(
                "unknown field",
                f"Unknown parameter: '{name}'.",
                param=name,
                code="unknown_parameter",
            )
        self._check_blocks(body["messages"])
        check_sampling(body)
        if body.get("stream_options") is not None and not body.get("stream"):
            said = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise Invalid("stream options", said, param="stream_options")
        check_format(body)

    def _check_blocks(self, messages: list[Json]) -> None:
        for at, message in enumerate(messages):
            content = message.get("content")
            for number, block in enumerate(content if isinstance(content, list) else ()):
                for name in unknown_fields(block, _PART_FIELDS):
                    param = f"messages[{at}].content[{number}].{name}"
                    said = f"Unknown parameter: '{param}'."
                    raise Invalid("unknown field", said, param=param, code="unknown_parameter")


def check_sampling(body: Json) -> None:
    """Refuses what a reasoning model does not take, and what only it does."""
    model = str(body.get("model", ""))
    if not _REASONS.match(model):
        if "reasoning_effort" in body:
            said = "Unrecognized request argument supplied: reasoning_effort"
            raise Invalid("effort", said)
        return
    if "max_tokens" in body:
        said = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
            " 'max_completion_tokens' instead."
        )
        raise Invalid("max_tokens", said, param="max_tokens", code="unsupported_parameter")
    efforts = _efforts(model)
    effort = body.get("reasoning_effort")
    if effort is not None and effort not in efforts:
        named = ", ".join(f"'{one}'" for one in efforts)
        said = (
            f"Unsupported value: '{effort}' is not supported with this model. Supported: {named}."
        )
        raise Invalid("effort", said, param="reasoning_effort", code="unsupported_value")
    if _SAMPLES.match(model) and effort in (None, "none"):
        return
    if body.get("temperature", 1) != 1:
        said = (
            f"Unsupported value: 'temperature' does not support {body['temperature']} with this"
            " model. Only the default (1) value is supported."
        )
        raise Invalid("temperature", said, param="temperature", code="unsupported_value")
    for name in ("top_p", "stop", "presence_penalty", "frequency_penalty"):
        if body.get(name) is not None:
            said = f"Unsupported parameter: '{name}' is not supported with this model."
            raise Invalid(name, said, param=name, code="unsupported_parameter")


def _efforts(model: str) -> tuple[str, ...]:
    if model.startswith("o"):
        return ("low", "medium", "high")
    if re.match(r"gpt-5(?:-|$)", model):
        return ("minimal", "low", "medium", "high")
    return ("none", "low", "medium", "high", "xhigh", "max")


def check_format(body: Json) -> None:
    """Refuses forms of the reply that OpenAI does not take."""
    form = body.get("response_format")
    if form is None:
        return
    kind = form.get("type")
    if kind == "json_object" and not says_json(str(body["messages"])):
        said = (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of"
            " type 'json_object'."
        )
        raise Invalid("json word", said, param="messages")
    if kind != "json_schema":
        return
    asked = form.get("json_schema") or {}
    name = str(asked.get("name", ""))
    if not _NAME.fullmatch(name):
        said = f"Invalid 'response_format.json_schema.name': '{name}'."
        raise Invalid("name", said, param="response_format.json_schema.name")
    if asked.get("strict"):
        check_strict(asked.get("schema") or {}, name)
