"""xAI: errors of its own shape, thoughts beside what is written, some parameters refused."""

import re
from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json
from tests.providers.openai_like import STATUSES, OpenAiLike
from tests.providers.scenarios import Said, Scenario
from tests.providers.schemas import is_recursive

_INVALID = "Client specified an invalid argument"
_EXHAUSTED = "Some resource has been exhausted"


class Xai(OpenAiLike):
    name = "xai"
    model = "xai/grok-4.5"
    statuses: ClassVar[Mapping[Scenario, int]] = {
        **STATUSES,
        Scenario.PROMPT_FILTERED: 403,
        Scenario.KEY_REFUSED: 400,
    }
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        Scenario.SCHEMA_400: (_INVALID, "", "Invalid schema in response_format: circular $ref"),
        Scenario.RATE_LIMIT: (_EXHAUSTED, "", "Too many requests for team. Slow down."),
        Scenario.RATE_LIMIT_DELAY: (_EXHAUSTED, "", "Too many requests for team. Slow down."),
        Scenario.QUOTA: (
            _EXHAUSTED,
            "",
            "Your team has used all available credits or reached its monthly spending limit. To"
            " continue making API requests, please purchase more credits (out of credits).",
        ),
        Scenario.OVERLOADED: ("The service is currently unavailable", "", "Service unavailable."),
        Scenario.ERROR_WITH_200: ("Internal error", "", "Internal error"),
        Scenario.TOO_LONG: (
            _INVALID,
            "",
            "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
        ),
        Scenario.PROMPT_FILTERED: (
            "The caller does not have permission to execute the specified operation",
            "",
            "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
        ),
        Scenario.KEY_REFUSED: (
            _INVALID,
            "",
            "Incorrect API key provided: ke***er. You can obtain an API key from the console.",
        ),
    }

    def check_body(self, body: Json) -> None:
        model = str(body.get("model", ""))
        if re.match(r"grok-(?:[4-9]|code)", model):
            for name in ("stop", "presence_penalty", "frequency_penalty"):
                if body.get(name) is not None:
                    said = f"Model {model} does not support parameter {name}."
                    raise Invalid(name, said)
        if re.match(r"grok-4(?:-|$)", model) and body.get("reasoning_effort") is not None:
            raise Invalid("effort", f"Model {model} does not support parameter reasoningEffort.")
        form = body.get("response_format") or {}
        schema = (form.get("json_schema") or {}).get("schema") or {}
        if form.get("type") == "json_schema" and is_recursive(schema):
            raise Invalid("recursion", "Invalid schema in response_format: circular $ref")

    def error_body(self, message: str, kind: str, code: object, param: str | None) -> Json:
        return {"code": code or _INVALID, "error": message}

    def usage(self, said: Said) -> Json:
        # What is thought is in the sum, and not in what is written.
        return {
            **super().usage(said),
            "completion_tokens": said.text_tokens,
            "total_tokens": said.prompt_tokens + said.output_tokens,
        }
