"""Anthropic: fields one by one, marks, thinking, and schemas that become grammars."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tests.providers.claude import MAX_MARKS, Claude, check_sampling, check_thinking, claude_of
from tests.providers.exchange import (
    Invalid,
    Json,
    Request,
    Response,
    json_response,
    names,
    stream,
    text_of,
    unknown_fields,
)
from tests.providers.provider import KEY, Provider
from tests.providers.scenarios import DELAY_SECONDS, Said, Scenario
from tests.providers.schemas import check_claude

_FIELDS = names("""
    model messages max_tokens metadata stop_sequences stream system temperature thinking tool_choice
    tools top_k top_p service_tier output_config container context_management mcp_servers
    cache_control inference_geo speed
    """)
#: Field of the reply's form, before there was `output_config`, and the header that allows it.
_OLD_FORM = "output_format"
_BETA = "structured-outputs-2025-11-13"

_ERRORS: Mapping[Scenario, tuple[str, str]] = {
    Scenario.FILTER: ("invalid_request_error", "Output blocked by content filtering policy"),
    Scenario.SCHEMA_400: (
        "invalid_request_error",
        "output_format.schema: For 'object' type, 'additionalProperties' must be explicitly set to"
        " false",
    ),
    Scenario.RATE_LIMIT: (
        "rate_limit_error",
        "This request would exceed the rate limit for your organization of 50,000 input tokens per"
        " minute.",
    ),
    Scenario.RATE_LIMIT_DELAY: (
        "rate_limit_error",
        "This request would exceed the rate limit for your organization of 50 requests per minute.",
    ),
    Scenario.QUOTA: (
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing"
        " to upgrade or purchase credits.",
    ),
    Scenario.OVERLOADED: ("overloaded_error", "Overloaded"),
    Scenario.ERROR_WITH_200: ("api_error", "Internal server error"),
    Scenario.TOO_LONG: (
        "invalid_request_error",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ),
    Scenario.KEY_REFUSED: ("authentication_error", "invalid x-api-key"),
}


class Anthropic(Provider):
    name = "anthropic"
    model = "anthropic/claude-sonnet-4-5"
    finish: ClassVar[Mapping[Scenario, str]] = {
        Scenario.OK: "end_turn",
        Scenario.REFUSAL: "refusal",
        Scenario.LENGTH: "max_tokens",
        Scenario.LENGTH_EMPTY: "max_tokens",
        Scenario.EMPTY: "end_turn",
        Scenario.THINKING: "end_turn",
        Scenario.THINKING_ONLY: "end_turn",
        Scenario.TOOL_CALL: "tool_use",
    }
    natives = ("pause_turn", "model_context_window_exceeded")
    statuses: ClassVar[Mapping[Scenario, int]] = {
        Scenario.FILTER: 400,
        Scenario.SCHEMA_400: 400,
        Scenario.RATE_LIMIT: 429,
        Scenario.RATE_LIMIT_DELAY: 429,
        Scenario.QUOTA: 400,
        Scenario.OVERLOADED: 529,
        Scenario.ERROR_WITH_200: 200,
        Scenario.TOO_LONG: 400,
        Scenario.KEY_REFUSED: 401,
    }

    def check(self, request: Request) -> None:
        body = request.body
        if request.path != "/v1/messages":
            raise Invalid("path", "Not found", status=404, code="not_found_error")
        if request.headers.get("x-api-key") != KEY:
            raise Invalid("key", "invalid x-api-key", status=401, code="authentication_error")
        if "anthropic-version" not in request.headers:
            raise Invalid("version", "anthropic-version: header is required")
        is_beta = _BETA in request.headers.get("anthropic-beta", "")
        for name in unknown_fields(body, _FIELDS | ({_OLD_FORM} if is_beta else set())):
            raise Invalid("unknown field", f"{name}: Extra inputs are not permitted")
        for name in ("model", "messages", "max_tokens"):
            if name not in body:
                raise Invalid("required", f"{name}: Field required")
        claude = claude_of(body["model"])
        if claude is None:
            said = f"model: {body['model']}"
            raise Invalid("model", said, status=404, code="not_found_error")
        self._check_messages(claude, body)
        check_marks(body)
        forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
        check_thinking(claude, body, int(body["max_tokens"]), is_forced=forced)
        check_sampling(claude, body)
        self._check_form(claude, body)

    def _check_messages(self, claude: Claude, body: Json) -> None:
        messages = body["messages"]
        if not messages:
            raise Invalid("messages", "messages: at least one message is required")
        for at, message in enumerate(messages):
            if message.get("role") not in ("user", "assistant"):
                said = f"messages.{at}.role: Input should be 'user' or 'assistant'"
                raise Invalid("role", said)
            check_text(f"messages.{at}", message.get("content"))
        if messages[0]["role"] != "user":
            raise Invalid("role", 'messages: first message must use the "user" role')
        if messages[-1]["role"] == "assistant" and not claude.takes_prefill:
            said = "This model does not support assistant message prefill."
            raise Invalid("last role", f"{said} The conversation must end with a user message.")
        check_text("system", body.get("system") or "-")

    def _check_form(self, claude: Claude, body: Json) -> None:
        config = body.get("output_config") or {}
        for field, form in (
            (f"{_OLD_FORM}.schema", body.get(_OLD_FORM)),
            ("output_config.format.schema", config.get("format")),
        ):
            if not form:
                continue
            if not claude.keeps_to_schemas:
                said = f"'{claude.name}' does not support output format."
                raise Invalid("json schema", said)
            check_claude(form.get("schema") or {}, field)

    def invalid(self, error: Invalid) -> Response:
        return json_response(
            _error(error.code or "invalid_request_error", error.message), error.status
        )

    def prompt(self, request: Request) -> str:
        body = request.body
        said = [text_of(body.get("system"))]
        said += [text_of(one.get("content")) for one in body.get("messages", ())]
        return "\n".join(text for text in said if text)

    def is_streamed(self, request: Request) -> bool:
        return request.body.get("stream") is True

    def failed(self, scenario: Scenario, request: Request) -> Response:
        is_delayed = scenario is Scenario.RATE_LIMIT_DELAY
        headers = {"retry_after": str(DELAY_SECONDS)} if is_delayed else {}
        return json_response(_error(*_ERRORS[scenario]), self.statuses[scenario], **headers)

    def whole(self, said: Said, request: Request) -> Response:
        usage = {"input_tokens": said.prompt_tokens, "output_tokens": _written(said)}
        body = {**_head(request), "content": blocks(said, request), **_stop(said)}
        return json_response({**body, "usage": {**_CACHE, **usage}})

    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        return stream(self._events(said, request, stop))

    def _events(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        usage = {**_CACHE, "input_tokens": said.prompt_tokens, "output_tokens": 1}
        start = {**_head(request), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**start, "usage": usage})
        yield _event("ping")
        for number, block in enumerate(blocks(said, request)):
            yield _event("content_block_start", index=number, content_block=_opened(block))
            for count, delta in enumerate(_deltas(block, said)):
                if count == 1 and stop is Scenario.STREAM_ERROR:
                    yield _event("error", error=_error(*_ERRORS[Scenario.OVERLOADED])["error"])
                    return
                if count == 1 and stop is Scenario.CUT_STREAM:
                    return
                yield _event("content_block_delta", index=number, delta=delta)
            yield _event("content_block_stop", index=number)
        yield _event("message_delta", delta=_stop(said), usage={"output_tokens": _written(said)})
        yield _event("message_stop")


_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _written(said: Said) -> int:
    """Returns the tokens written; an empty reply has one, for its end."""
    return max(said.output_tokens, 1)


def check_text(at: str, content: object) -> None:
    """Refuses a content without a letter."""
    if not content:
        raise Invalid("blank", f"{at}: user messages must have non-empty content")
    found: list[Json] = [{"type": "text", "text": content}]
    for block in content if isinstance(content, list) else found:
        if block.get("type") != "text":
            continue
        if not block["text"]:
            raise Invalid("blank", "messages: text content blocks must be non-empty")
        if not block["text"].strip():
            raise Invalid("blank", "messages: text content blocks must contain non-whitespace text")


def check_marks(body: Json) -> None:
    """Refuses too many marks, and an hour's after one of five minutes."""
    contents = [body.get("tools"), body.get("system")]
    contents += [message.get("content") for message in body["messages"]]
    blocks = [block for one in contents if isinstance(one, list) for block in one]
    marks = [block["cache_control"] for block in blocks if block.get("cache_control")]
    if len(marks) > MAX_MARKS:
        said = f"A maximum of {MAX_MARKS} blocks with cache_control may be provided."
        raise Invalid("marks", f"{said} Found {len(marks)}.")
    for mark in marks:
        if mark.get("type") != "ephemeral" or mark.get("ttl", "5m") not in ("5m", "1h"):
            raise Invalid("marks", "cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    lifetimes = [mark.get("ttl", "5m") for mark in marks]
    if lifetimes != sorted(lifetimes):
        said = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."
        raise Invalid("marks", said)


def blocks(said: Said, request: Request) -> list[Json]:
    """Returns the content of a reply. A forced tool gets the text as its input, if it is JSON."""
    found: list[Json] = []
    if said.thought:
        found.append({"type": "thinking", "thinking": said.thought, "signature": "c2lnbmVk"})
    forced = request.body.get("tool_choice") or {}
    arguments, name = said.tool, "look_up"
    if arguments is None and forced.get("type") == "tool":
        arguments, name = forced_arguments(said.text), str(forced.get("name"))
    if arguments is not None:
        found.append({"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments})
    elif said.text:
        found.append({"type": "text", "text": said.text})
    return found


def forced_arguments(text: str) -> dict[str, object] | None:
    """Returns the reply's object, for a tool that has to be called; empty when it was cut."""
    try:
        found = json.loads(text)
    except ValueError:
        return {} if text.lstrip().startswith("{") else None
    return found if isinstance(found, dict) else None


def _head(request: Request) -> Json:
    model = request.body.get("model")
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": model}


def _stop(said: Said) -> Json:
    stop: Json = {"stop_reason": said.finish, "stop_sequence": None}
    if said.refusal:
        stop["stop_details"] = {
            "type": "refusal",
            "category": "cyber",
            "explanation": said.refusal,
        }
    return stop


def _error(kind: str, message: str) -> Json:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": "req_1"}


def _opened(block: Json) -> Json:
    empty: Json = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {name: empty.get(name, value) for name, value in block.items()}


def _deltas(block: Json, said: Said) -> Iterator[Json]:
    if block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "tool_use":
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        for part in said.parts:
            yield {"type": "text_delta", "text": part}


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
