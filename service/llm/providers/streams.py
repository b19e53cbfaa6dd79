"""Collects the parts of a streamed reply."""

from collections.abc import Callable, Sequence
from typing import Any

from service.llm.providers.native import NativeAnswer

#: More arguments of a call that streams, with the provider's usage at its end.
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


class BrokenStream(Exception):
    """A stream that ended before its reply; the message is one sentence."""


async def whole_response(
    litellm: Any,
    stream: Any,
    on_text: Callable[[str], None],
    native: NativeAnswer | None = None,
) -> Any:
    """Returns the response of a stream as if it had not been streamed.

    `on_text` gets each part of the reply; `native` has heard it. Raises litellm's errors and
    BrokenStream.
    """
    said: list[str] = []
    thought: list[str] = []
    usage: Any = None
    finish_reason: str | None = None
    try:
        async for part in stream:
            usage = getattr(part, "usage", None) or usage
            for choice in part.choices[:1]:
                finish_reason = choice.finish_reason or finish_reason
                thought.append(_thought(choice))
                if text := _said(choice):
                    said.append(text)
                    on_text(text)
    finally:
        # An unfinished stream would keep its connection.
        await stream.aclose()
    # The parts as received, before litellm adds to them.
    parts: Sequence[Any] = stream.chunks
    has_usage = any(getattr(part, "usage", None) is not None for part in parts)
    # Usage is no end: Anthropic reports it first, vLLM with every part.
    ended = any(choice.finish_reason for part in parts for choice in part.choices[:1])
    if native is not None and native.has_known_end:
        # litellm invents an end for Gemini even there.
        ended = bool(native.reason)
    if not ended:
        raise BrokenStream("its reply ended before its end")
    message = {
        "role": "assistant",
        "content": "".join(said),
        "reasoning_content": "".join(thought) or None,
    }
    response = litellm.ModelResponse(
        choices=[{"index": 0, "finish_reason": finish_reason, "message": message}]
    )
    response.model = stream.model
    # Without the provider's usage litellm has an estimate here; ours is made in `usage`.
    response.usage = usage if has_usage else litellm.Usage()
    return response


def _said(choice: Any) -> str:
    """Returns the text of a part; a server of one's own may send anything in its place."""
    text = getattr(getattr(choice, "delta", None), "content", None) or ""
    if not isinstance(text, str):
        raise BrokenStream("a part of its reply is no text")
    return text


def _thought(choice: Any) -> str:
    text = getattr(getattr(choice, "delta", None), "reasoning_content", None)
    return text if isinstance(text, str) else ""
