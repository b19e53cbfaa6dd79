"""Mistral: unknown fields are 422, the last message is the user's, thoughts are blocks."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tests.providers.exchange import Invalid, Json, Response, json_response, names, unknown_fields
from tests.providers.openai_like import STATUSES, OpenAiLike
from tests.providers.scenarios import Said, Scenario

_FIELDS = names("""
    model messages temperature top_p max_tokens stream stop random_seed metadata response_format
    tools tool_choice presence_penalty frequency_penalty n prediction parallel_tool_calls
    prompt_mode reasoning_effort safe_prompt guardrails prompt_cache_key
    """)
_MESSAGE_FIELDS = frozenset({"role", "content", "prefix", "tool_calls", "tool_call_id", "name"})


class Mistral(OpenAiLike):
    name = "mistral"
    model = "mistral/mistral-large-latest"
    natives = ("model_length", "error")
    statuses: ClassVar[Mapping[Scenario, int]] = {**STATUSES, Scenario.QUOTA: 402}
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        Scenario.SCHEMA_400: (
            "3051",
            "invalid_request_error",
            "Invalid JSON schema in response_format: schema is not supported.",
        ),
        Scenario.RATE_LIMIT: ("1300", "rate_limited", "Rate limit exceeded"),
        Scenario.RATE_LIMIT_DELAY: ("1300", "rate_limited", "Rate limit exceeded"),
        Scenario.QUOTA: ("1110", "payment_required", "Payment required: billing limit reached"),
        Scenario.OVERLOADED: ("3505", "service_tier_capacity_exceeded", "Service unavailable."),
        Scenario.ERROR_WITH_200: ("3000", "internal_server_error", "Internal Server Error"),
        Scenario.TOO_LONG: (
            "3051",
            "invalid_request_error",
            "Prompt contains 200000 tokens and 0 draft tokens, too large for model with 131072"
            " maximum context length",
        ),
        Scenario.KEY_REFUSED: (None, "", "Unauthorized"),
    }

    def check_body(self, body: Json) -> None:
        for name in unknown_fields(body, _FIELDS):
            raise Invalid("unknown field", name, status=422)
        for at, message in enumerate(body["messages"]):
            for name in unknown_fields(message, _MESSAGE_FIELDS):
                place = f"messages.{at}.{message['role']}.{name}"
                raise Invalid("unknown field", place, status=422)
            content = message.get("content")
            for number, block in enumerate(content if isinstance(content, list) else ()):
                for name in unknown_fields(block, frozenset({"type", "text", "thinking"})):
                    place = f"messages.{at}.{message['role']}.content.{number}.{name}"
                    raise Invalid("unknown field", place, status=422)
        last = body["messages"][-1]
        if last["role"] == "assistant" and not last.get("prefix"):
            said = (
                "Expected last role User or Tool (or Assistant with prefix True) for serving but"
                " got assistant"
            )
            raise Invalid("last role", said, code="3230")

    def invalid(self, error: Invalid) -> Response:
        if error.rule != "unknown field":
            return super().invalid(error)
        detail: dict[str, Any] = {
            "type": "extra_forbidden",
            "loc": ["body", *error.message.split(".")],
            "msg": "Extra inputs are not permitted",
            "input": None,
        }
        return json_response(
            {
                "object": "error",
                "message": {"detail": [detail]},
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            },
            422,
        )

    def error(self, scenario: Scenario) -> Response:
        if scenario is Scenario.KEY_REFUSED:
            return json_response({"detail": "Unauthorized"}, 401)
        return super().error(scenario)

    def error_body(self, message: str, kind: str, code: object, param: str | None) -> Json:
        return {"object": "error", "message": message, "type": kind, "param": param, "code": code}

    def message(self, said: Said) -> Json:
        shown = super().message(said)
        shown.pop(self.thought_field, None)
        if said.thought:
            text = [{"type": "text", "text": said.text}] if said.text else []
            shown["content"] = [_thinking(said.thought), *text]
        return shown

    def deltas(self, said: Said) -> Iterator[Json]:
        if said.thought:
            yield {"content": [_thinking(said.thought)]}
        if said.tool is not None:
            yield {"tool_calls": self.message(said)["tool_calls"]}
        for part in said.parts:
            yield {"content": part}

    def usage(self, said: Said) -> Json:
        return {
            "prompt_tokens": said.prompt_tokens,
            "completion_tokens": said.output_tokens,
            "total_tokens": said.prompt_tokens + said.output_tokens,
        }

    def tells_usage_at_the_end(self, wanted: bool) -> bool:
        return True


def _thinking(thought: str) -> Json:
    return {"type": "thinking", "thinking": [{"type": "text", "text": thought}], "closed": True}
