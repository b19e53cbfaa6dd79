"""OpenRouter: takes what any of its providers may, and says which one answered."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json, Request, Response, json_response
from tests.providers.openai import ERRORS
from tests.providers.openai_like import FINISH, STATUSES, OpenAiLike
from tests.providers.scenarios import Said, Scenario

#: What a call costs, whatever its length.
COST_USD = 0.000321


class OpenRouter(OpenAiLike):
    name = "openrouter"
    model = "openrouter/openai/gpt-4.1-mini"
    base = "/api/v1"
    path = "/api/v1/chat/completions"
    finish: ClassVar[Mapping[Scenario, str]] = {
        **FINISH,
        Scenario.REFUSAL: "stop",
        Scenario.FILTER: "content_filter",
    }
    natives = ("error",)
    statuses: ClassVar[Mapping[Scenario, int]] = {
        **STATUSES,
        Scenario.QUOTA: 402,
        Scenario.PROMPT_FILTERED: 403,
    }
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        **ERRORS,
        Scenario.SCHEMA_400: (400, "", "Provider returned error: invalid schema response_format"),
        Scenario.RATE_LIMIT: (429, "", "Rate limit exceeded: limit_rpm"),
        Scenario.RATE_LIMIT_DELAY: (429, "", "Rate limit exceeded: limit_rpm"),
        Scenario.QUOTA: (
            402,
            "",
            "Insufficient credits. Add more using https://openrouter.ai/settings/credits",
        ),
        Scenario.OVERLOADED: (503, "", "No instances available"),
        Scenario.ERROR_WITH_200: (502, "", "Provider returned error"),
        Scenario.TOO_LONG: (
            400,
            "",
            "This endpoint's maximum context length is 128000 tokens. However, you requested about"
            " 200000 tokens. Please reduce the length of either one.",
        ),
        Scenario.PROMPT_FILTERED: (
            403,
            "",
            "openai/gpt-4.1-mini requires moderation on OpenAI. Your input was flagged for"
            ' "violence".',
        ),
        Scenario.KEY_REFUSED: (401, "", "User not found."),
    }
    thought_field = "reasoning"
    #: Whether one of its providers keeps to schemas.
    takes_schemas = True

    def check_body(self, body: Json) -> None:
        form = (body.get("response_format") or {}).get("type")
        must = (body.get("provider") or {}).get("require_parameters")
        if form == "json_schema" and must and not self.takes_schemas:
            said = "No endpoints found that can handle the requested parameters."
            raise Invalid("parameters", said, status=404)

    def invalid(self, error: Invalid) -> Response:
        if error.rule == "key":
            return self.error(Scenario.KEY_REFUSED)
        return json_response(self.error_body(error.message, "", error.status, None), error.status)

    def error_body(self, message: str, kind: str, code: object, param: str | None) -> Json:
        metadata = {"provider_name": "OpenAI", "raw": message}
        return {"error": {"code": code, "message": message, "metadata": metadata}}

    def beside(self, said: Said) -> Json:
        native = {"native_finish_reason": said.finish}
        if said.finish == "error":
            return {**native, "error": {"code": 502, "message": "Upstream error"}}
        return native

    def extra(self) -> Json:
        return {"provider": "OpenAI"}

    def usage(self, said: Said) -> Json:
        # Asked for with `usage: {include: true}`, as litellm does.
        return {**super().usage(said), "cost": COST_USD, "is_byok": False}

    def message(self, said: Said) -> Json:
        shown = super().message(said)
        if said.thought:
            shown["reasoning_details"] = [{"type": "reasoning.text", "text": said.thought}]
        return {"refusal": None, **shown}

    def events(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        # So that clients do not give up while it looks for a provider.
        yield b": OPENROUTER PROCESSING\n\n"
        yield from super().events(said, request, stop)

    def stream_error(self) -> Json:
        choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
        return {
            "id": "gen-1",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "openai/gpt-4.1-mini",
            "choices": [choice],
            **self.error_body("Provider disconnected", "", 502, None),
        }
