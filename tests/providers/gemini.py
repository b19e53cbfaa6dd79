"""Gemini: contents and parts, thinking by budget or level, reasons for every end."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tests.providers.exchange import (
    Invalid,
    Json,
    Request,
    Response,
    data,
    json_response,
    names,
    stream,
    text_of,
)
from tests.providers.provider import KEY, Provider
from tests.providers.scenarios import DELAY_SECONDS, Said, Scenario, Turn
from tests.providers.schemas import check_gemini

#: Names as JSON of a message of protocol buffers takes them: either way of writing.
_FIELDS = names("""
    contents systemInstruction tools toolConfig safetySettings generationConfig cachedContent model
    """)
_CONFIG_FIELDS = names("""
    stopSequences responseMimeType responseSchema responseJsonSchema responseModalities
    candidateCount maxOutputTokens temperature topP topK seed presencePenalty frequencyPenalty
    responseLogprobs logprobs enableEnhancedCivicAnswers speechConfig thinkingConfig imageConfig
    mediaResolution
    """)
#: Ends at which the reply is withheld.
_WITHHELD = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")

_ERRORS: Mapping[Scenario, tuple[str, str]] = {
    Scenario.SCHEMA_400: (
        "INVALID_ARGUMENT",
        "The specified schema produces a constraint that has too many states for serving.",
    ),
    Scenario.RATE_LIMIT: ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
    Scenario.RATE_LIMIT_DELAY: (
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    Scenario.QUOTA: (
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    Scenario.OVERLOADED: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
    Scenario.ERROR_WITH_200: ("INTERNAL", "An internal error has occurred."),
    Scenario.TOO_LONG: (
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    Scenario.KEY_REFUSED: (
        "INVALID_ARGUMENT",
        "API key not valid. Please pass a valid API key.",
    ),
}


class Gemini(Provider):
    name = "gemini"
    model = "gemini/gemini-2.5-flash"
    finish: ClassVar[Mapping[Scenario, str]] = {
        Scenario.OK: "STOP",
        Scenario.LENGTH: "MAX_TOKENS",
        Scenario.LENGTH_EMPTY: "MAX_TOKENS",
        Scenario.FILTER: "SAFETY",
        Scenario.PROMPT_FILTERED: "",
        Scenario.EMPTY: "STOP",
        Scenario.THINKING: "STOP",
        Scenario.THINKING_ONLY: "STOP",
        Scenario.TOOL_CALL: "STOP",
    }
    natives = (
        "OTHER",
        "LANGUAGE",
        "RECITATION",
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "A_NEW_ONE",
    )
    statuses: ClassVar[Mapping[Scenario, int]] = {
        Scenario.SCHEMA_400: 400,
        Scenario.RATE_LIMIT: 429,
        Scenario.RATE_LIMIT_DELAY: 429,
        Scenario.QUOTA: 429,
        Scenario.OVERLOADED: 503,
        Scenario.ERROR_WITH_200: 200,
        Scenario.TOO_LONG: 400,
        Scenario.KEY_REFUSED: 400,
    }

    def check(self, request: Request) -> None:
        model = _model(request)
        method = request.path.rpartition(":")[2]
        if not model or method not in ("generateContent", "streamGenerateContent"):
            raise Invalid("path", "Requested entity was not found.", status=404)
        if request.headers.get("x-goog-api-key", request.query.get("key")) != KEY:
            raise Invalid("key", _ERRORS[Scenario.KEY_REFUSED][1])
        body = request.body
        _check_names(body, _FIELDS, "")
        config = _value(body, "generationConfig") or {}
        _check_names(config, _CONFIG_FIELDS, " at 'generation_config'")
        contents = body.get("contents")
        if not contents:
            raise Invalid(
                "contents", "* GenerateContentRequest.contents: contents is not specified"
            )
        for content in contents:
            if content.get("role", "user") not in ("user", "model"):
                raise Invalid("role", "Please use a valid role: user, model.")
        self._check_form(config)
        _check_thinking(model, _value(config, "thinkingConfig") or {})
        temperature = config.get("temperature")
        if temperature is not None and not 0 <= temperature <= 2:
            said = "temperature must be in the range [0.0, 2.0]."
            raise Invalid("temperature", f"* GenerateContentRequest.generation_config: {said}")

    def _check_form(self, config: Json) -> None:
        schemas = [_value(config, name) for name in ("responseJsonSchema", "responseSchema")]
        found = [schema for schema in schemas if schema is not None]
        if found and _value(config, "responseMimeType") != "application/json":
            said = "responseSchema needs the response_mime_type application/json"
            raise Invalid("mime type", said)
        for schema in found:
            check_gemini(schema)

    def invalid(self, error: Invalid) -> Response:
        if error.rule == "key":
            return self.failed(
                Scenario.KEY_REFUSED, Request(path="", query={}, headers={}, body={})
            )
        kind = "NOT_FOUND" if error.status == 404 else "INVALID_ARGUMENT"
        return json_response(_error(error.status, kind, error.message), error.status)

    def prompt(self, request: Request) -> str:
        said = [text_of((_value(request.body, "systemInstruction") or {}).get("parts"))]
        said += [text_of(one.get("parts")) for one in request.body.get("contents", ())]
        return "\n".join(text for text in said if text)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def failed(self, scenario: Scenario, request: Request) -> Response:
        status = self.statuses[scenario]
        details: list[Json] = []
        if scenario is Scenario.RATE_LIMIT_DELAY:
            kind = "type.googleapis.com/google.rpc"
            quota = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}
            details = [
                {"@type": f"{kind}.QuotaFailure", "violations": [quota]},
                {"@type": f"{kind}.RetryInfo", "retryDelay": f"{DELAY_SECONDS}s"},
            ]
        body = _error(500 if status == 200 else status, *_ERRORS[scenario], details)
        return json_response(body, status)

    def said(self, turn: Turn, text: str) -> Said:
        said = super().said(turn, text)
        if said.finish in _WITHHELD:
            return Said(text="", finish=said.finish)
        return said

    def whole(self, said: Said, request: Request) -> Response:
        if not said.finish:
            feedback = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
            return json_response({**feedback, **_beside(said, request)})
        return json_response(_chunk(said, request, list(_parts(said)), said.finish))

    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        return stream(self._events(said, request, stop))

    def _events(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        end = "\r\n\r\n"
        if not said.finish:
            yield b"data: " + self.whole(said, request).body + end.encode()
            return
        parts = list(_parts(said))
        for number, part in enumerate(parts[:-1]):
            if number == 1:
                break
            yield data(_chunk(said, request, [part], ""), end)
        if stop is Scenario.CUT_STREAM:
            return
        if stop is Scenario.STREAM_ERROR:
            yield data(_error(503, *_ERRORS[Scenario.OVERLOADED]), end)
            return
        yield data(_chunk(said, request, parts[1:] if len(parts) > 1 else parts, said.finish), end)


def _model(request: Request) -> str:
    before, _, name = request.path.partition("/models/")
    return name.partition(":")[0] if before in ("", "/v1", "/v1beta") else ""


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _value(of: Json, name: str) -> Any:
    """Returns a field by either way of writing it."""
    return next((value for key, value in of.items() if _camel(key) == name), None)


def _check_names(of: Json, known: frozenset[str], at: str) -> None:
    for name in of:
        if _camel(name) not in known:
            said = f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
            raise Invalid("unknown field", said)


def _check_thinking(model: str, thinking: Json) -> None:
    budget = _value(thinking, "thinkingBudget")
    level = _value(thinking, "thinkingLevel")
    if budget is not None and level is not None:
        raise Invalid("thinking", "You can only set one of thinking budget and thinking level.")
    if budget == 0 and "2.5-pro" in model:
        raise Invalid("budget", "Budget 0 is invalid. This model only works in thinking mode.")
    if level is not None and not model.startswith("gemini-3"):
        raise Invalid("thinking", "Thinking level is not supported for this model.")


def _error(code: int, kind: str, message: str, details: list[Json] | None = None) -> Json:
    error: Json = {"code": code, "message": message, "status": kind}
    if details:
        error["details"] = details
    return {"error": error}


def _parts(said: Said) -> Iterator[Json]:
    if said.thought:
        yield {"text": said.thought, "thought": True}
    if said.tool is not None:
        yield {"functionCall": {"name": "look_up", "args": said.tool}}
    for part in said.parts:
        yield {"text": part}


def _chunk(said: Said, request: Request, parts: list[Json], finish: str) -> Json:
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    if not parts:
        candidate["content"] = {"role": "model"}
    if finish:
        candidate["finishReason"] = finish
    if finish in _WITHHELD:
        candidate.pop("content")
    return {"candidates": [candidate], **_beside(said, request)}


def _beside(said: Said, request: Request) -> Json:
    usage = {
        "promptTokenCount": said.prompt_tokens,
        "candidatesTokenCount": said.text_tokens,
        "totalTokenCount": said.prompt_tokens + said.output_tokens,
    }
    if said.thought_tokens:
        usage["thoughtsTokenCount"] = said.thought_tokens
    return {"usageMetadata": usage, "modelVersion": _model(request), "responseId": "r1"}
