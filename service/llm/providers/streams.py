"""Collects the reply that litellm returns in parts into a whole one."""

from collections.abc import Callable, Sequence
from typing import Any

from service.llm.providers.native import NativeAnswer

#: What a call's arguments get for a stream, with the provider's usage at its end.
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


class BrokenStream(Exception):
    """A stream that ended before its reply; the message is one sentence."""


async def whole_response(
    litellm: Any,
    stream: Any,
    on_text: Callable[[str], None],
    native: NativeAnswer | None = None,
) -> Any:
    """Returns the whole response of a stream, as litellm has it of a call without one.

    `on_text` gets each part of the reply; `native` has heard it come. Raises litellm's errors and
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
        # A stream that is not read to its end keeps its connection.
        await stream.aclose()
    # litellm's own parts, before it adds what a provider did not say.
    parts: Sequence[Any] = stream.chunks
    has_usage = any(getattr(part, "usage", None) is not None for part in parts)
    # Usage is no end: some report it first (Anthropic), or with every part (vLLM).
    ended = any(_finish(part) for part in parts)
    if native is not None and native.tells_its_end:
        # Of Gemini litellm has an invented end even there.
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
    # Of what a provider did not say litellm has an estimate of its own here, and nothing where
    # there is no stream: ours is made where every other one is.
    response.usage = usage if has_usage else litellm.Usage()
    return response


def _said(choice: Any) -> str:
    """The text of a part; a server of one's own may send anything in its place."""
    text = getattr(getattr(choice, "delta", None), "content", None) or ""
    if not isinstance(text, str):
        raise BrokenStream("a part of its reply is no text")
    return text


def _thought(choice: Any) -> str:
    text = getattr(getattr(choice, "delta", None), "reasoning_content", None)
    return text if isinstance(text, str) else ""


def _finish(part: Any) -> str | None:
    for choice in part.choices[:1]:
        reason: str | None = choice.finish_reason
        return reason
    return None
