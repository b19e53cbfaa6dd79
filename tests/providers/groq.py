"""Groq: unknown fields are refused, schemas by some models only, what is too large is a 413."""

from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json, unknown_fields
from tests.providers.openai import ERRORS
from tests.providers.openai_like import FIELDS, STATUSES, OpenAiLike, says_json
from tests.providers.scenarios import Scenario
from tests.providers.schemas import is_object, nodes

_FIELDS = (
    FIELDS
    | {"include_reasoning", "reasoning_format", "search_settings", "citation_options", "documents"}
) - {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "verbosity"}
#: Models that take a schema.
_SCHEMAS = ("openai/gpt-oss", "moonshotai/kimi", "meta-llama/llama-4")


class Groq(OpenAiLike):
    name = "groq"
    model = "groq/openai/gpt-oss-120b"
    base = "/openai/v1"
    path = "/openai/v1/chat/completions"
    thought_field = "reasoning"
    statuses: ClassVar[Mapping[Scenario, int]] = {
        **{one: status for one, status in STATUSES.items() if one is not Scenario.QUOTA},
        Scenario.TOO_LONG: 413,
    }
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        **ERRORS,
        Scenario.SCHEMA_400: (
            "json_validate_failed",
            "invalid_request_error",
            "Failed to generate JSON. Please adjust your prompt.",
        ),
        Scenario.TOO_LONG: (
            "rate_limit_exceeded",
            "tokens",
            "Request too large for model `openai/gpt-oss-120b` on tokens per minute (TPM): Limit"
            " 8000, Requested 20000, please reduce your message size and try again.",
        ),
        Scenario.KEY_REFUSED: ("invalid_api_key", "invalid_request_error", "Invalid API Key"),
    }

    def check_body(self, body: Json) -> None:
        for name in unknown_fields(body, _FIELDS):
            raise Invalid("unknown field", f"property '{name}' is unsupported")
        model = str(body.get("model", ""))
        if "reasoning_effort" in body and not model.startswith(("openai/gpt-oss", "qwen/")):
            raise Invalid("effort", "`reasoning_effort` is not supported with this model")
        form = body.get("response_format") or {}
        if form.get("type") == "json_object" and not says_json(str(body["messages"])):
            said = "'messages' must contain the word 'json' in some form, to use 'response_format'"
            raise Invalid("json word", f"{said} of type 'json_object'.")
        if form.get("type") == "json_schema":
            self._check_schema(model, form.get("json_schema") or {})

    def _check_schema(self, model: str, asked: Json) -> None:
        if not model.startswith(_SCHEMAS):
            said = "This model does not support response format `json_schema`."
            raise Invalid("json schema", said)
        for _, node in nodes(asked.get("schema") or {}) if asked.get("strict") else ():
            at = f"invalid JSON schema for response_format: '{asked.get('name')}'"
            if is_object(node) and node.get("additionalProperties") is not False:
                said = f"{at}: `additionalProperties:false` must be set on every object"
                raise Invalid("additional", said)
            if set(node.get("properties", ())) - set(node.get("required", ())):
                raise Invalid("required", f"{at}: `required` must name every property")

    def extra(self) -> Json:
        # litellm takes it for given.
        return {"service_tier": "on_demand", "x_groq": {"id": "req_1"}}
