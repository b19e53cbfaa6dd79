"""vLLM: unknown fields are ignored, a schema may be more than its grammars can."""

from collections.abc import Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json
from tests.providers.openai_like import STATUSES, OpenAiLike
from tests.providers.scenarios import Scenario
from tests.providers.schemas import check_xgrammar

_BAD = "BadRequestError"


class Vllm(OpenAiLike):
    name = "vllm"
    model = "hosted_vllm/qwen3"
    natives = ("abort",)
    #: As of the releases that name it as OpenAI's own servers do; before: `reasoning_content`.
    thought_field = "reasoning"
    statuses: ClassVar[Mapping[Scenario, int]] = {
        one: status
        for one, status in STATUSES.items()
        if one not in (Scenario.RATE_LIMIT, Scenario.RATE_LIMIT_DELAY, Scenario.QUOTA)
    }
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]] = {
        Scenario.SCHEMA_400: (
            400,
            _BAD,
            "The provided JSON schema contains features not supported by xgrammar.",
        ),
        Scenario.OVERLOADED: (503, "ServiceUnavailableError", "The engine is not ready."),
        Scenario.ERROR_WITH_200: (500, "InternalServerError", "EngineCore encountered an issue."),
        Scenario.TOO_LONG: (
            400,
            _BAD,
            "This model's maximum context length is 32768 tokens. However, your request has 40000"
            " input tokens. Please reduce the length of the input messages.",
        ),
        Scenario.KEY_REFUSED: (401, "Unauthorized", "Unauthorized"),
    }

    def check_body(self, body: Json) -> None:
        form = body.get("response_format") or {}
        if form.get("type") == "json_schema":
            check_xgrammar((form.get("json_schema") or {}).get("schema") or {})
        if int(body.get("max_tokens") or 1) < 1:
            raise Invalid("max_tokens", "max_tokens must be at least 1", code="400")

    def error_body(self, message: str, kind: str, code: object, param: str | None) -> Json:
        if kind == "invalid_request_error":
            kind, code = _BAD, 400
        return {"error": {"message": message, "type": kind, "param": param, "code": code}}
