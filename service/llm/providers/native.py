"""Reads a provider's answer from its bytes as they arrive.

litellm converts the answers of fifty providers to one form, and loses how some ended. Unknown
reasons become "stop", streams lose the words of a refusal, a broken stream gets an invented end,
and an error with status 200 a status that was never sent. So each answer is also read here.
"""

import json
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx

from service.domain.prompting.flows import MAX_SAID_CHARACTERS
from service.llm.providers.ends import is_known, is_refused

#: The limit of a whole answer, or of an event of a stream; longer ones are not read here.
MAX_BYTES = 8 * 1024 * 1024
#: Bytes of an error's text that are kept.
MAX_ERROR_BYTES = 16 * 1024

#: Types of streamed answers; any other is whole, or is found to be in lines at its end.
_STREAMS = ("text/event-stream", "ndjson", "jsonl")
_FRAMES = "application/vnd.amazon.eventstream"
#: Before the payload of a frame: its length, that of its headers, and a checksum.
_PRELUDE = struct.Struct(">III")
_CHECKSUM_BYTES = 4

#: What an event of interest contains outside of texts. Quotes in a JSON text are escaped, so none
#: of these can be in a reply.
_OF_INTEREST = re.compile(
    rb'"(?:finish_?[rR]eason|native_finish_reason|stop_?[rR]eason|done_reason|refusal|blockReason)"'
    rb'\s*:\s*"|"(?:error|detail)"\s*:\s*["{\[]|"done"\s*:\s*true|"(?:type|object)"\s*:\s*"error"'
)
#: What the first events contain, outside of texts, of streams whose ends are read here.
_SHAPES = re.compile(
    rb'"(?:choices|candidates)"\s*:\s*\[|"type"\s*:\s*"message_start"|"done"\s*:\s*false'
    rb'|"promptFeedback"'
)
_EXCEPTION = re.compile(rb":exception-type\x07..([A-Za-z]{1,64})", re.DOTALL)

#: The status for each name of an error at Anthropic, AWS and others.
_STATUSES = {
    "invalid_request_error": 400,
    "validationexception": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "accessdeniedexception": 403,
    "not_found_error": 404,
    "resourcenotfoundexception": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "throttlingexception": 429,
    "insufficient_quota": 429,
    "resource_exhausted": 429,
    "overloaded_error": 529,
}
#: Fields of an error that is the body itself.
_ERROR_FIELDS = ("type", "message", "code", "param", "detail")
#: The status of an error without one.
_NO_STATUS = 500


class NativeAnswer:
    """A provider's answer to one request; of several, to the last of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        #: Whether a request was sent.
        self.asked = False
        #: The network's error, if no answer came.
        self.lost = ""
        #: None: no answer began.
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        #: Whether the answer is complete.
        self.is_whole = False
        #: The provider's reason for the end; empty if it gave none.
        self.reason = ""
        #: Whether it contains an error, in place of a reply or after a part of one.
        self.has_error = False
        #: The text of the error, or the beginning of an answer that is no JSON.
        self.error = ""
        #: Whether any of it could be read.
        self.is_json = False
        #: Whether it is of a kind whose end is read here: without an end it broke off.
        self.has_known_end = False
        self._words = ""
        self._error_status: int | None = None
        self._kept = bytearray()
        self._kind = ""

    @property
    def ended(self) -> tuple[str, str]:
        """The provider's reason for the end, and its remark; empty if there are none."""
        return self.reason, self._words

    @property
    def error_status(self) -> int | None:
        """The status of its error; None if it has none."""
        if self.status is not None and self.status >= 400:
            return self.status
        return (self._error_status or _NO_STATUS) if self.has_error else None

    def record(self) -> dict[str, Any]:
        """Returns it as values, for a file."""
        return {
            "reason": self.reason,
            "words": self._words,
            "status": self.error_status,
            "text": self.error,
        }

    @classmethod
    def recorded(cls, said: Mapping[str, Any]) -> "NativeAnswer":
        """Returns the answer for which `record` returned this."""
        found = cls()
        found.reason, found._words = said["reason"], said["words"]
        found.status, found.error = said["status"], said["text"]
        return found

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Begins an answer."""
        self.status, self.headers = status, headers
        self._kind = headers.get("content-type", "").lower()

    def hear(self, part: bytes) -> None:
        """Reads a part of it."""
        self._kept += part
        if len(self._kept) > MAX_BYTES:
            self._kept.clear()
        if self.status is None or self.status >= 400:
            return
        if _FRAMES in self._kind:
            self._read_frames()
        elif any(one in self._kind for one in _STREAMS):
            lines = self._kept.rpartition(b"\n")
            if lines[1]:
                self._kept = lines[2]
                self._read_lines(bytes(lines[0]))

    def end(self) -> None:
        """Completes it."""
        self.is_whole = True
        rest = bytes(self._kept)
        self._kept.clear()
        if _FRAMES in self._kind and not self._is_refused:
            return
        said = _json(rest)
        if isinstance(said, list) and said and isinstance(said[0], dict):
            # Gemini's errors of streams are in a list.
            said = said[0]
        if isinstance(said, dict):
            self._read(said)
        elif not self._is_refused:
            self._read_lines(rest)
        if self._is_refused or not self.is_json:
            self.error = rest[:MAX_ERROR_BYTES].decode(errors="replace")

    @property
    def _is_refused(self) -> bool:
        return self.status is not None and self.status >= 400

    def _read_lines(self, lines: bytes) -> None:
        for line in lines.splitlines():
            said = line.strip().removeprefix(b"data:").strip()
            if not said.startswith(b"{"):
                continue
            self.is_json = True
            self.has_known_end = self.has_known_end or bool(_SHAPES.search(said))
            found = _json(said) if _OF_INTEREST.search(said) else None
            if isinstance(found, dict):
                self._read(found)

    def _read_frames(self) -> None:
        while len(self._kept) >= _PRELUDE.size:
            size, headers, _ = _PRELUDE.unpack_from(self._kept)
            if len(self._kept) < size or size < _PRELUDE.size + headers + _CHECKSUM_BYTES:
                return
            begin = _PRELUDE.size + headers
            said = _json(bytes(self._kept[begin : size - _CHECKSUM_BYTES]))
            exception = _EXCEPTION.search(self._kept, _PRELUDE.size, begin)
            del self._kept[:size]
            if not isinstance(said, dict):
                continue
            if exception is not None:
                said = {"error": {"type": exception[1].decode(), **said}}
            self.has_known_end = self.has_known_end or "role" in said
            self._read(said)

    def _read(self, said: dict[str, Any]) -> None:
        """Reads a whole answer, or an event of a stream."""
        self.is_json = True
        self._read_end(said)
        error = said.get("error")
        # Some gateways send an empty one with each success.
        is_error = any(error.values()) if isinstance(error, dict) else bool(error)
        # Mistral, vLLM and Anthropic mark errors like this.
        is_named = "error" in (said.get("object"), said.get("type"))
        if not (is_error or is_named) or self.has_error:
            return
        self.has_error = True
        # Without a reply that may be beside it.
        shown = {"error": error} if is_error else {name: said.get(name) for name in _ERROR_FIELDS}
        self.error = json.dumps(shown)[:MAX_ERROR_BYTES]
        self._error_status = _status_in(error if isinstance(error, dict) else said)

    def _read_end(self, said: dict[str, Any]) -> None:
        delta = _object(said.get("delta"))
        for of in (said, delta):
            details = _object(of.get("stop_details"))
            self._end(of.get("stop_reason"), details.get("explanation") or details.get("category"))
        self._end(said.get("stopReason"))
        if said.get("done") is True:
            # Old releases of Ollama have no reason.
            self._end(said.get("done_reason") or "stop")
        choice = _first(said.get("choices"))
        if choice:
            message = _object(choice.get("message")) or _object(choice.get("delta"))
            refusal = message.get("refusal")
            if isinstance(refusal, str):
                self._words = (self._words + refusal)[:MAX_SAID_CHARACTERS]
            self._end(_nearer(choice.get("finish_reason"), choice.get("native_finish_reason")))
            if self._words and self.reason:
                self.reason = "refusal"
        self._end(_first(said.get("candidates")).get("finishReason"))
        blocked = _object(said.get("promptFeedback")).get("blockReason")
        if blocked:
            self._end("content_filter", blocked)

    def _end(self, reason: object, words: object = None) -> None:
        if isinstance(reason, str) and reason:
            self.reason = reason
        if isinstance(words, str) and words:
            self._words = words[:MAX_SAID_CHARACTERS]


def _nearer(reason: object, native: object) -> object:
    """Returns the reason of OpenRouter's provider if that is more precise than its own."""
    if not isinstance(native, str) or not is_known(native):
        return reason
    says_more = reason == "stop" or (reason == "content_filter" and is_refused(native))
    return native if says_more else reason


def _status_in(error: Mapping[str, Any]) -> int | None:
    """Returns the status of an error, by its number or its kind."""
    for name in ("code", "status_code", "http_code", "status"):
        value = error.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    kinds = (error.get(name) for name in ("type", "code", "status"))
    known = (_STATUSES.get(kind.lower()) for kind in kinds if isinstance(kind, str))
    return next((status for status in known if status is not None), None)


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(value: object) -> dict[str, Any]:
    return _object(value[0]) if isinstance(value, list) and value else {}


_listener: ContextVar[NativeAnswer | None] = ContextVar("palimpsest_listener", default=None)


@contextmanager
def listening(native: NativeAnswer) -> Iterator[None]:
    """Surrounds one try of a call, whose answer `native` reads."""
    native.reset()
    token = _listener.set(native)
    try:
        yield
    finally:
        _listener.reset(token)


class _Heard(httpx.Response):
    """A response that is heard while it is read, decompressed."""

    native: NativeAnswer

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        if self.is_closed:
            # It is read again from memory.
            async for part in super().aiter_bytes(chunk_size):
                yield part
            return
        async for part in super().aiter_bytes(chunk_size):
            self.native.hear(part)
            yield part
        self.native.end()


def heard(
    handle: Callable[[httpx.Request], Awaitable[httpx.Response]],
) -> Callable[[httpx.Request], Awaitable[httpx.Response]]:
    """Returns a transport's `handle_async_request` that passes responses to listeners."""

    async def handle_async_request(request: httpx.Request) -> httpx.Response:
        native = _listener.get()
        if native is None:
            return await handle(request)
        native.reset()
        native.asked = True
        try:
            response = await handle(request)
        except (httpx.HTTPError, OSError, ValueError) as error:
            native.lost = str(error)
            raise
        native.begin(response.status_code, dict(response.headers))
        found = _Heard(
            status_code=response.status_code,
            headers=response.headers,
            stream=response.stream,
            request=request,
            extensions=response.extensions,
        )
        found.native = native
        return found

    return handle_async_request
