"""Ollama: its own chat, JSON by lines; a prompt that is too long is cut without a word."""

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from tests.providers.exchange import Invalid, Json, Request, Response, json_response, stream
from tests.providers.provider import Provider
from tests.providers.scenarios import Said, Scenario, Turn

#: Tokens of the window where a machine has less than 24 GB and nothing else is asked for.
WINDOW_TOKENS = 4_096
_THINKS = ("qwen3", "deepseek-r1", "gpt-oss", "magistral", "gemma4")

_ERRORS: Mapping[Scenario, str] = {
    Scenario.SCHEMA_400: "invalid JSON schema in format",
    Scenario.OVERLOADED: "server busy, please try again.  maximum pending requests exceeded",
    Scenario.ERROR_WITH_200: "llama runner process has terminated: exit status 2",
}


class Ollama(Provider):
    name = "ollama"
    model = "ollama_chat/qwen3"
    finish: ClassVar[Mapping[Scenario, str]] = {
        Scenario.OK: "stop",
        Scenario.LENGTH: "length",
        Scenario.LENGTH_EMPTY: "length",
        Scenario.EMPTY: "stop",
        Scenario.THINKING: "stop",
        Scenario.THINKING_ONLY: "stop",
        Scenario.TOOL_CALL: "stop",
        # The middle of the prompt is left out, and the rest answered.
        Scenario.TOO_LONG: "stop",
    }
    natives = ("load", "unload")
    statuses: ClassVar[Mapping[Scenario, int]] = {
        Scenario.SCHEMA_400: 400,
        Scenario.OVERLOADED: 503,
        Scenario.ERROR_WITH_200: 200,
    }

    def __init__(self) -> None:
        #: The window of each time that the model was loaded: another one loads it anew.
        self.loads: list[int] = []

    def aside(self, request: Request) -> Response | None:
        if request.path != "/api/show":
            return None
        info = {"general.architecture": "qwen3", "qwen3.context_length": 40_960}
        return json_response({"details": {}, "model_info": info, "capabilities": ["completion"]})

    def check(self, request: Request) -> None:
        if request.path != "/api/chat":
            raise Invalid("path", "404 page not found", status=404)
        body = request.body
        if not body.get("model"):
            raise Invalid("required", "model is required")
        for message in body.get("messages", ()):
            if not isinstance(message.get("content", ""), str):
                kind = "json: cannot unmarshal array into Go struct field ChatRequest.messages"
                raise Invalid("content", f"{kind}.content of type string")
        form = body.get("format")
        if form and form != "json" and not isinstance(form, dict):
            said = 'expected "json" or a valid JSON Schema object'
            raise Invalid("format", f"invalid format: {json.dumps(form)}; {said}")
        if body.get("think") and not str(body["model"]).startswith(_THINKS):
            raise Invalid("thinking", f'"{body["model"]}" does not support thinking')

    def respond(self, turn: Turn, text: str, request: Request) -> Response:
        if self.loads[-1:] != [_window(request)]:
            self.loads.append(_window(request))
        return super().respond(turn, text, request)

    def invalid(self, error: Invalid) -> Response:
        return json_response({"error": error.message}, error.status)

    def prompt(self, request: Request) -> str:
        return "\n".join(str(one.get("content", "")) for one in request.body.get("messages", ()))

    def is_streamed(self, request: Request) -> bool:
        return request.body.get("stream") is not False

    def failed(self, scenario: Scenario, request: Request) -> Response:
        return json_response({"error": _ERRORS[scenario]}, self.statuses[scenario])

    def said(self, turn: Turn, text: str) -> Said:
        said = super().said(turn, text)
        # A model that is only loaded says nothing.
        return Said(text="", finish=said.finish) if said.finish in self.natives else said

    def whole(self, said: Said, request: Request) -> Response:
        message = {"role": "assistant", "content": said.text, **_beside(said)}
        return json_response({**_head(request), "message": message, **_end(said, request)})

    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        return stream(self._lines(said, request, stop), "application/x-ndjson")

    def _lines(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        def line(value: Json) -> bytes:
            return json.dumps(value).encode() + b"\n"

        def part(message: Json) -> Json:
            return {**_head(request), "message": {"role": "assistant", **message}, "done": False}

        if beside := _beside(said):
            yield line(part({"content": "", **beside}))
        for number, text in enumerate(said.parts):
            if number == 1 and stop is Scenario.STREAM_ERROR:
                yield line({"error": _ERRORS[Scenario.ERROR_WITH_200]})
                return
            if number == 1 and stop is Scenario.CUT_STREAM:
                return
            yield line(part({"content": text}))
        message = {"role": "assistant", "content": ""}
        yield line({**_head(request), "message": message, **_end(said, request)})


def _window(request: Request) -> int:
    options = request.body.get("options") or {}
    return int(options.get("num_ctx", WINDOW_TOKENS))


def _head(request: Request) -> Json:
    return {"model": request.body["model"], "created_at": "2026-01-01T00:00:00Z"}


def _beside(said: Said) -> Json:
    beside: Json = {"thinking": said.thought} if said.thought else {}
    if said.tool is not None:
        call = {"function": {"name": "look_up", "arguments": said.tool}}
        beside["tool_calls"] = [call]
    return beside


def _end(said: Said, request: Request) -> Json:
    return {
        "done": True,
        "done_reason": said.finish,
        "total_duration": 1_000,
        "load_duration": 1,
        "prompt_eval_count": min(said.prompt_tokens, _window(request)),
        "prompt_eval_duration": 1,
        "eval_count": said.output_tokens,
        "eval_duration": 1,
    }
