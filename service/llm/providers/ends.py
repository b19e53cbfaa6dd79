"""Reads from litellm's response how a provider's reply ended.

litellm reduces what fifty providers say to a few reasons, so a provider's own name of the
end counts where it was heard (`service.llm.providers.native`). "stop" with nothing said may be a
refusal, thoughts alone or a call of a tool.
"""

from typing import Any

from service.domain.prompting.ends import End
from service.domain.prompting.flows import MAX_SAID_CHARACTERS
from service.domain.prompting.thoughts import said as without_thoughts

#: Reasons as litellm or a provider has them, in lower case.
_ENDS = {
    **dict.fromkeys(
        ("", "stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"),
        End.COMPLETE,
    ),
    # Ollama's, where a model was only loaded: nothing is said.
    **dict.fromkeys(("load", "unload"), End.COMPLETE),
    # What a call of a tool means is in the message.
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), End.COMPLETE),
    **dict.fromkeys(
        (
            *("length", "max_tokens", "max_output_tokens", "model_length"),
            *("model_context_window_exceeded", "incomplete", "compaction"),
        ),
        End.LENGTH,
    ),
    **dict.fromkeys(("refusal", "refused"), End.REFUSAL),
    **dict.fromkeys(
        (
            *("content_filter", "content_filtered", "guardrail_intervened", "safety", "blocklist"),
            *("recitation", "prohibited_content", "spii", "model_armor", "image_safety"),
            *("image_prohibited_content", "image_recitation", "error_toxic", "sensitive"),
        ),
        End.FILTER,
    ),
}


def is_known(name: str) -> bool:
    """Whether a reason is one of the table's; one that is empty names no end."""
    return bool(name) and name.lower() in _ENDS


def is_refused(name: str) -> bool:
    """Whether a reason says that a text was refused, or withheld."""
    return _ENDS.get(name.lower(), End.COMPLETE).is_refused


def read_end(response: Any, text: str, seen: tuple[str, str] = ("", "")) -> tuple[End, str]:
    """Returns how a response ended, and what is said of that; `text` is its reply.

    `seen`: the provider's own name of the end and its words; empty where it was not heard.
    """
    choice = response.choices[0]
    message = choice.message
    refusal = _field(message, "refusal")
    native = seen[0] or _field(choice, "native_finish_reason")
    end = _end_of(choice, native)
    if refusal:
        return End.REFUSAL, refusal[:MAX_SAID_CHARACTERS]
    if end.is_refused:
        # What was said before it is no reply, and may be why; the names of these two say nothing.
        named = "" if native == "content_filter" else native
        said = (text.strip(), named) if end is End.REFUSAL else (named, text.strip())
        return end, (seen[1] or said[0] or said[1])[:MAX_SAID_CHARACTERS]
    if end is End.UNKNOWN:
        return end, (native or str(choice.finish_reason))[:MAX_SAID_CHARACTERS]
    if not without_thoughts(text).strip():
        return _nothing(response, text, end), ""
    return end, ""


def _end_of(choice: Any, native: str) -> End:
    reason = getattr(choice, "finish_reason", None) or ""
    told = _ENDS.get(str(reason).lower(), End.UNKNOWN)
    # litellm makes "stop" or a filter's of most names.
    return _ENDS.get(native.lower(), End.UNKNOWN) if native else told


def _nothing(response: Any, text: str, end: End) -> End:
    """Returns the end of a reply that says nothing."""
    choice = response.choices[0]
    message = choice.message
    if getattr(message, "tool_calls", None) or getattr(message, "function_call", None):
        return End.TOOL_CALL
    # Of a stream the call itself is not kept.
    if str(getattr(choice, "finish_reason", None)) in ("tool_calls", "function_call"):
        return End.TOOL_CALL
    details = getattr(getattr(response, "usage", None), "completion_tokens_details", None)
    thinking = getattr(details, "reasoning_tokens", None) or 0
    has_thought = bool(getattr(message, "reasoning_content", None)) or bool(text.strip())
    if end is End.LENGTH or has_thought or (isinstance(thinking, int) and thinking > 0):
        return End.THINKING
    return End.EMPTY


def _field(of: Any, name: str) -> str:
    """Returns what litellm keeps of a provider's own field; empty where it is none."""
    value = getattr(of, name, None)
    if value is None:
        fields = getattr(of, "provider_specific_fields", None)
        value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else ""
