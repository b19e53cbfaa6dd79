"""DeepSeek: JSON mode without schemas, thinking that can be switched off, unknown fields pass."""

import json
from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json, Request, Response, json_response
from tests.providers.openai import ERRORS
from tests.providers.openai_like import FINISH, STATUSES, OpenAiLike, says_json
from tests.providers.scenarios import Scenario, Turn


class DeepSeek(OpenAiLike):
    name = "deepseek"
    model = "deepseek/deepseek-chat"
    base = ""
    path = "/chat/completions"
    finish: ClassVar[Mapping[Scenario, str]] = {**FINISH, Scenario.FILTER: "content_filter"}
    natives = ("insufficient_system_resource",)
    statuses: ClassVar[Mapping[Scenario, int]] = {
        **STATUSES,
        Scenario.QUOTA: 402,
        Scenario.PROMPT_FILTERED: 400,
    }
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        **ERRORS,
        Scenario.SCHEMA_400: (
            "invalid_request_error",
            "invalid_request_error",
            "This response_format type is unavailable now",
        ),
        Scenario.QUOTA: ("invalid_request_error", "unknown_error", "Insufficient Balance"),
        Scenario.PROMPT_FILTERED: (
            "invalid_request_error",
            "invalid_request_error",
            "Content Exists Risk",
        ),
        Scenario.KEY_REFUSED: (
            "invalid_request_error",
            "authentication_error",
            "Authentication Fails, Your api key: ****nger is invalid",
        ),
    }

    def check_body(self, body: Json) -> None:
        kind = (body.get("response_format") or {}).get("type", "text")
        if kind not in ("text", "json_object"):
            _, _, said = self.errors[Scenario.SCHEMA_400]
            raise Invalid("json schema", said, code="invalid_request_error")
        if kind == "json_object" and not says_json(str(body["messages"])):
            said = (
                "Prompt must contain the word 'json' in some form to use 'response_format' of type"
                " 'json_object'."
            )
            raise Invalid("json word", said, code="invalid_request_error")
        thinking = (body.get("thinking") or {}).get("type", "enabled")
        if thinking not in ("enabled", "disabled"):
            raise Invalid("thinking", f"unknown variant `{thinking}`", status=422)
        forced = body.get("tool_choice") not in (None, "auto", "none")
        thinks = "thinking" in body or "reasoner" in str(body.get("model"))
        if forced and thinks and thinking == "enabled":
            raise Invalid("forced tool", "Thinking mode does not support this tool_choice")

    def respond(self, turn: Turn, text: str, request: Request) -> Response:
        form = (request.body.get("response_format") or {}).get("type")
        if form == "json_object" and turn.scenario is Scenario.OK and not _is_object(text):
            # In JSON mode a model that has no object to say continues with blanks.
            text = " \n" * 20
        return super().respond(turn, text, request)

    def tells_usage_at_the_end(self, wanted: bool) -> bool:
        return True

    def error(self, scenario: Scenario) -> Response:
        if scenario is Scenario.OVERLOADED:
            body = self.error_body("Service is too busy.", "service_unavailable_error", None, None)
            return json_response(body, 503)
        return super().error(scenario)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
