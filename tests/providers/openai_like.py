"""What speaks OpenAI's chat completions, or nearly."""

import json
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
from tests.providers.scenarios import DELAY_SECONDS, Said, Scenario

#: Ends of all providers that speak it.
FINISH: Mapping[Scenario, str] = {
    Scenario.OK: "stop",
    Scenario.LENGTH: "length",
    Scenario.LENGTH_EMPTY: "length",
    Scenario.EMPTY: "stop",
    Scenario.THINKING: "stop",
    Scenario.THINKING_ONLY: "stop",
    Scenario.TOOL_CALL: "tool_calls",
}

#: Status codes that most of them have.
STATUSES: Mapping[Scenario, int] = {
    Scenario.SCHEMA_400: 400,
    Scenario.RATE_LIMIT: 429,
    Scenario.RATE_LIMIT_DELAY: 429,
    Scenario.QUOTA: 429,
    Scenario.OVERLOADED: 503,
    Scenario.ERROR_WITH_200: 200,
    Scenario.TOO_LONG: 400,
    Scenario.KEY_REFUSED: 401,
}

#: Fields of OpenAI's chat completions.
FIELDS = names("""
    messages model audio frequency_penalty function_call functions logit_bias logprobs
    max_completion_tokens max_tokens metadata modalities n parallel_tool_calls prediction
    presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort
    response_format safety_identifier seed service_tier stop store stream stream_options
    temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
    """)


class OpenAiLike(Provider):
    """The shapes of chat completions; each provider changes what is its own."""

    base: ClassVar[str] = "/v1"
    path: ClassVar[str] = "/v1/chat/completions"
    finish: ClassVar[Mapping[Scenario, str]] = FINISH
    statuses: ClassVar[Mapping[Scenario, int]] = STATUSES
    #: Of `message` and `delta`; empty: thoughts are counted and not shown.
    thought_field: ClassVar[str] = "reasoning_content"
    #: Code, type and message of the errors, by scenario.
    errors: ClassVar[Mapping[Scenario, tuple[object, str, str]]]

    def check(self, request: Request) -> None:
        """Path, key, and what `check_body` refuses."""
        if request.path != self.path:
            raise Invalid("path", f"Invalid URL (POST {request.path})", status=404)
        if self.key(request) != KEY:
            raise Invalid("key", "", status=self.statuses[Scenario.KEY_REFUSED])
        self.check_messages(request.body)
        self.check_body(request.body)

    def key(self, request: Request) -> str:
        return request.bearer

    def check_messages(self, body: Json) -> None:
        """Refuses what is no list of messages."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Invalid("messages", "Invalid 'messages': empty array.", param="messages")
        for at, message in enumerate(messages):
            if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
                role = message.get("role")
                said = f"Invalid value: '{role}'."
                raise Invalid("role", said, param=f"messages[{at}].role", code="invalid_value")

    def check_body(self, body: Json) -> None:
        """Refuses what this provider does not take; each has its own."""

    def prompt(self, request: Request) -> str:
        return "\n".join(text_of(one.get("content")) for one in request.body.get("messages", ()))

    def is_streamed(self, request: Request) -> bool:
        return request.body.get("stream") is True

    # Errors.

    def invalid(self, error: Invalid) -> Response:
        if error.rule == "key":
            return self.error(Scenario.KEY_REFUSED)
        said = self.error_body(error.message, "invalid_request_error", error.code, error.param)
        return json_response(said, error.status)

    def failed(self, scenario: Scenario, request: Request) -> Response:
        return self.error(scenario)

    def error(self, scenario: Scenario) -> Response:
        """Returns the answer to what fails."""
        code, kind, message = self.errors[scenario]
        body = self.error_body(message, kind, code, None)
        is_delayed = scenario is Scenario.RATE_LIMIT_DELAY
        headers = {"retry_after": str(DELAY_SECONDS)} if is_delayed else {}
        return json_response(body, self.statuses[scenario], **headers)

    def error_body(self, message: str, kind: str, code: object, param: str | None) -> Json:
        error = {"message": message, "type": kind, "param": param, "code": code or None}
        return {"error": error}

    # Replies.

    def whole(self, said: Said, request: Request) -> Response:
        choice = {
            "index": 0,
            "message": {"role": "assistant", **self.message(said)},
            "logprobs": None,
            "finish_reason": said.finish,
            **self.beside(said),
        }
        return json_response(
            {
                **self.head(request, "chat.completion"),
                "choices": [choice],
                "usage": self.usage(said),
                **self.extra(),
            }
        )

    def head(self, request: Request, kind: str) -> Json:
        model = request.body.get("model", "")
        return {"id": "chatcmpl-1", "object": kind, "created": 1_760_000_000, "model": model}

    def message(self, said: Said) -> Json:
        """Returns what a message has besides its role."""
        shown: Json = {"content": said.text}
        if said.thought and self.thought_field:
            shown[self.thought_field] = said.thought
        if said.refusal:
            shown |= {"content": None, "refusal": said.refusal}
        if said.tool is not None:
            shown |= {"content": None, "tool_calls": [tool_call(said.tool)]}
        if said.finish == "content_filter":
            shown["content"] = None
        return shown

    def usage(self, said: Said) -> Json:
        """Thoughts are part of what is written."""
        return {
            "prompt_tokens": said.prompt_tokens,
            "completion_tokens": said.output_tokens,
            "total_tokens": said.prompt_tokens + said.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": said.thought_tokens},
        }

    def beside(self, said: Said) -> Json:
        """Returns what else a choice has."""
        return {}

    def extra(self) -> Json:
        """Returns what else a response has, whole or in parts."""
        return {}

    # Streams.

    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        return stream(self.events(said, request, stop))

    def events(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        """Yields the events of a reply, up to `stop`."""

        def event(delta: Json, end: str | None = None, **more: Any) -> bytes:
            head = self.head(request, "chat.completion.chunk")
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
            beside = self.beside(said) if end else {}
            return data({**head, "choices": [{**choice, **beside}], **self.extra(), **more})

        yield event({"role": "assistant", "content": ""})
        for number, delta in enumerate(self.deltas(said)):
            if number == 1 and stop is Scenario.STREAM_ERROR:
                yield data(self.stream_error())
                return
            if number == 1 and stop is Scenario.CUT_STREAM:
                return
            yield event(delta)
        wants_usage = (request.body.get("stream_options") or {}).get("include_usage") is True
        if self.tells_usage_at_the_end(wants_usage):
            yield event({}, said.finish, usage=self.usage(said))
        else:
            yield event({}, said.finish)
            if wants_usage:
                head = self.head(request, "chat.completion.chunk")
                yield data({**head, "choices": [], "usage": self.usage(said), **self.extra()})
        yield b"data: [DONE]\n\n"

    def tells_usage_at_the_end(self, wanted: bool) -> bool:
        """Returns whether the last part has the usage, in place of a part of its own."""
        return False

    def deltas(self, said: Said) -> Iterator[Json]:
        """Yields what the parts have besides their role."""
        if said.thought and self.thought_field:
            yield {self.thought_field: said.thought}
        if said.refusal:
            yield {"refusal": said.refusal}
        if said.tool is not None:
            yield {"tool_calls": [{"index": 0, **tool_call(said.tool)}]}
        for part in said.parts:
            yield {"content": part}

    def stream_error(self) -> Json:
        """Returns the event of an error in the middle of a stream."""
        said = "The server had an error while processing your request"
        return self.error_body(said, "server_error", 500, None)


def tool_call(arguments: dict[str, object]) -> Json:
    """Returns a call of a tool as OpenAI has it."""
    function = {"name": "look_up", "arguments": json.dumps(arguments)}
    return {"id": "call_1", "type": "function", "function": function}


def says_json(prompt: str) -> bool:
    """Returns whether the prompt has the word that JSON mode asks for."""
    return "json" in prompt.lower()
