"""Bedrock's Converse: one shape around many makers' models, with their own errors inside."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar
from urllib.parse import unquote

from tests.providers import event_stream
from tests.providers.anthropic import forced_arguments
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
from tests.providers.provider import KEY, Endpoint, Provider
from tests.providers.scenarios import Said, Scenario
from tests.providers.schemas import check_claude

#: Identifies the caller; does not look like a real one.
ACCESS_KEY = "ACCESSKEYOFTHEEMULATOR"
REGION = "eu-central-1"

_PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream)")
#: What Claude takes besides what Converse has fields for.
_CLAUDE_FIELDS = names(
    "thinking output_config anthropic_beta top_k tools tool_choice anthropic_version"
)
_THEIRS = "The model returned the following errors: "

_ERRORS: Mapping[Scenario, tuple[str, str]] = {
    Scenario.SCHEMA_400: (
        "ValidationException",
        f"{_THEIRS}output_config.format.schema: For 'object' type, 'additionalProperties' must be"
        " explicitly set to false",
    ),
    Scenario.RATE_LIMIT: (
        "ThrottlingException",
        "Too many tokens, please wait before trying again.",
    ),
    Scenario.OVERLOADED: (
        "ServiceUnavailableException",
        "Bedrock is unable to process your request.",
    ),
    Scenario.TOO_LONG: ("ValidationException", "Input is too long for requested model."),
    Scenario.KEY_REFUSED: (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
    ),
}


class Bedrock(Provider):
    name = "bedrock"
    model = "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0"
    finish: ClassVar[Mapping[Scenario, str]] = {
        Scenario.OK: "end_turn",
        Scenario.REFUSAL: "refusal",
        Scenario.LENGTH: "max_tokens",
        Scenario.LENGTH_EMPTY: "max_tokens",
        Scenario.FILTER: "content_filtered",
        Scenario.PROMPT_FILTERED: "guardrail_intervened",
        Scenario.EMPTY: "end_turn",
        Scenario.THINKING: "end_turn",
        Scenario.THINKING_ONLY: "end_turn",
        Scenario.TOOL_CALL: "tool_use",
    }
    natives = (
        "malformed_model_output",
        "malformed_tool_use",
        "model_context_window_exceeded",
    )
    statuses: ClassVar[Mapping[Scenario, int]] = {
        Scenario.SCHEMA_400: 400,
        Scenario.RATE_LIMIT: 429,
        Scenario.OVERLOADED: 503,
        Scenario.TOO_LONG: 400,
        Scenario.KEY_REFUSED: 403,
    }

    def endpoint(self, url: str, model: str | None) -> Endpoint:
        return Endpoint(
            model=model or self.model,
            api_base=f"{url}/{self.name}",
            environment={},
            fields={
                "region": REGION,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": "secret-of-the-emulator",
            },
        )

    def check(self, request: Request) -> None:
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise Invalid("path", "UnknownOperationException", status=404)
        signature = request.headers.get("authorization", "")
        scope = rf"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/\d{{8}}/{REGION}/bedrock/aws4_request,"
        is_signed = re.match(scope, signature) is not None
        # A key of Bedrock's own replaces a signature.
        if not is_signed and request.bearer != KEY:
            raise Invalid("key", _ERRORS[Scenario.KEY_REFUSED][1], status=403)
        body = request.body
        messages = body.get("messages") or [{"role": "assistant"}]
        if messages[0]["role"] != "user":
            said = "A conversation must start with a user message."
            raise Invalid("role", f"{said} Try again with one that starts with a user message.")
        for at, message in enumerate(messages):
            for number, block in enumerate(message["content"]):
                if "text" in block and not block["text"].strip():
                    place = f"messages.{at}.content.{number}"
                    said = f"The text field in the ContentBlock object at {place} is blank."
                    raise Invalid("blank", f"{said} Add text to the text field, and try again.")
        contents = [body.get("system") or [], *(message["content"] for message in messages)]
        marks = sum("cachePoint" in block for content in contents for block in content)
        if marks > MAX_MARKS:
            raise Invalid("marks", f"{_THEIRS}A maximum of {MAX_MARKS} blocks with cache_control")
        claude = claude_of(unquote(found[1]))
        if claude is not None:
            self._check_claude(claude, body)
        elif body.get("outputConfig"):
            raise Invalid("json schema", "This model does not support outputConfig.textFormat.")

    def _check_claude(self, claude: Claude, body: Json) -> None:
        fields = body.get("additionalModelRequestFields") or {}
        for name in unknown_fields(fields, _CLAUDE_FIELDS):
            raise Invalid("unknown field", f"{_THEIRS}{name}: Extra inputs are not permitted")
        config = body.get("inferenceConfig") or {}
        sampled = {
            ours: config[theirs]
            for ours, theirs in (("temperature", "temperature"), ("top_p", "topP"))
            if theirs in config
        }
        choice = (body.get("toolConfig") or {}).get("toolChoice") or {}
        is_forced = bool({"any", "tool"} & set(choice))
        try:
            max_tokens = int(config.get("maxTokens", 4_096))
            check_thinking(claude, fields, max_tokens, is_forced=is_forced)
            check_sampling(claude, {**fields, **sampled})
            form = (body.get("outputConfig") or {}).get("textFormat") or {}
            if form:
                if claude.version not in ((4, 5), (4, 6)):
                    raise Invalid("json schema", "output_config.format: not supported")
                schema = form["structure"]["jsonSchema"]["schema"]
                check_claude(json.loads(schema), "output_config.format.schema")
        except Invalid as error:
            raise Invalid(error.rule, _THEIRS + error.message) from None

    def invalid(self, error: Invalid) -> Response:
        if error.rule == "key":
            return _failure(Scenario.KEY_REFUSED, 403)
        named = {"x_amzn_errortype": "ValidationException"}
        return json_response({"message": error.message}, error.status, **named)

    def prompt(self, request: Request) -> str:
        said = [text_of(request.body.get("system"))]
        said += [text_of(one.get("content")) for one in request.body.get("messages", ())]
        return "\n".join(text for text in said if text)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def failed(self, scenario: Scenario, request: Request) -> Response:
        return _failure(scenario, self.statuses[scenario])

    def whole(self, said: Said, request: Request) -> Response:
        message = {"role": "assistant", "content": list(_blocks(said, request))}
        return json_response(
            {
                "output": {"message": message},
                "stopReason": said.finish,
                "usage": _usage(said),
                "metrics": {"latencyMs": 1},
            }
        )

    def streamed(self, said: Said, request: Request, stop: Scenario | None) -> Response:
        return stream(self._events(said, request, stop), "application/vnd.amazon.eventstream")

    def _events(self, said: Said, request: Request, stop: Scenario | None) -> Iterator[bytes]:
        yield event_stream.message("messageStart", {"role": "assistant"})
        for number, block in enumerate(_blocks(said, request)):
            at = {"contentBlockIndex": number}
            if "toolUse" in block:
                start = {name: block["toolUse"][name] for name in ("toolUseId", "name")}
                begun = {"start": {"toolUse": start}, **at}
                yield event_stream.message("contentBlockStart", begun)
            for count, delta in enumerate(_deltas(block, said)):
                if count == 1 and stop is Scenario.STREAM_ERROR:
                    error = {"message": _ERRORS[Scenario.OVERLOADED][1]}
                    kind = "serviceUnavailableException"
                    yield event_stream.message(kind, error, is_error=True)
                    return
                if count == 1 and stop is Scenario.CUT_STREAM:
                    return
                yield event_stream.message("contentBlockDelta", {"delta": delta, **at})
            yield event_stream.message("contentBlockStop", at)
        yield event_stream.message("messageStop", {"stopReason": said.finish})
        told = {"usage": _usage(said), "metrics": {"latencyMs": 1}}
        yield event_stream.message("metadata", told)


def _failure(scenario: Scenario, status: int) -> Response:
    kind, message = _ERRORS[scenario]
    return json_response({"message": message}, status, x_amzn_errortype=kind)


def _usage(said: Said) -> Json:
    return {
        "inputTokens": said.prompt_tokens,
        "outputTokens": said.output_tokens,
        "totalTokens": said.prompt_tokens + said.output_tokens,
    }


def _blocks(said: Said, request: Request) -> Iterator[Json]:
    if said.thought:
        thought = {"text": said.thought, "signature": "c2lnbmVk"}
        yield {"reasoningContent": {"reasoningText": thought}}
    arguments, name = said.tool, "look_up"
    choice = (request.body.get("toolConfig") or {}).get("toolChoice") or {}
    if arguments is None and "tool" in choice:
        arguments, name = forced_arguments(said.text), choice["tool"]["name"]
    if arguments is not None:
        yield {"toolUse": {"toolUseId": "tooluse_1", "name": name, "input": arguments}}
    elif said.text:
        yield {"text": said.text}


def _deltas(block: Json, said: Said) -> Iterator[Json]:
    if "reasoningContent" in block:
        text = block["reasoningContent"]["reasoningText"]
        yield {"reasoningContent": {"text": text["text"]}}
        yield {"reasoningContent": {"signature": text["signature"]}}
    elif "toolUse" in block:
        yield {"toolUse": {"input": json.dumps(block["toolUse"]["input"])}}
    else:
        for part in said.parts:
            yield {"text": part}
