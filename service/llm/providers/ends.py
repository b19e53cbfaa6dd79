"""Finds how a reply ended.

litellm maps the reasons of fifty providers to a few, so a provider's own reason counts if it was
heard (`service.llm.providers.native`). An empty reply that ends with "stop" may be a refusal, only
thinking, or a tool call.
"""

from typing import Any

from service.domain.prompting.ends import End
from service.domain.prompting.flows import MAX_SAID_CHARACTERS
from service.domain.prompting.thoughts import said as without_thoughts

#: Reasons of litellm or of a provider, in lower case.
_REASONS = {
    End.COMPLETE: (
        *("", "stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"),
        # Ollama's, if a model was only loaded.
        *("load", "unload"),
        # The message says which tool is called.
        *("tool_calls", "function_call", "tool_use"),
    ),
    End.LENGTH: (
        *("length", "max_tokens", "max_output_tokens", "model_length"),
        *("model_context_window_exceeded", "incomplete", "compaction"),
    ),
    End.REFUSAL: ("refusal", "refused"),
    End.FILTER: (
        *("content_filter", "content_filtered", "guardrail_intervened", "safety", "blocklist"),
        *("recitation", "prohibited_content", "spii", "model_armor", "image_safety"),
        *("image_prohibited_content", "image_recitation", "error_toxic", "sensitive"),
    ),
}
_ENDS = {reason: end for end, reasons in _REASONS.items() for reason in reasons}


def is_known(name: str) -> bool:
    """Returns whether a reason is in the table; an empty one is no end."""
    return bool(name) and name.lower() in _ENDS


def is_refused(name: str) -> bool:
    """Returns whether a reason means that a text was refused or withheld."""
    return _ENDS.get(name.lower(), End.COMPLETE).is_refused


def read_end(response: Any, text: str, seen: tuple[str, str] = ("", "")) -> tuple[End, str]:
    """Returns how a response ended, and a remark on that; `text` is its reply.

    `seen`: the provider's own reason and remark; empty if they were not heard.
    """
    choice = response.choices[0]
    message = choice.message
    refusal = _field(message, "refusal")
    native = seen[0] or _field(choice, "native_finish_reason")
    # litellm maps most reasons to "stop" or a filter's.
    reason = native or str(getattr(choice, "finish_reason", None) or "")
    end = _ENDS.get(reason.lower(), End.UNKNOWN)
    if refusal:
        return End.REFUSAL, refusal[:MAX_SAID_CHARACTERS]
    if end.is_refused:
        # The text so far is no reply, but may be the reason; these names say nothing.
        named = "" if native == "content_filter" else native
        said = (text.strip(), named) if end is End.REFUSAL else (named, text.strip())
        return end, (seen[1] or said[0] or said[1])[:MAX_SAID_CHARACTERS]
    if end is End.UNKNOWN:
        return end, (native or str(choice.finish_reason))[:MAX_SAID_CHARACTERS]
    if not without_thoughts(text).strip():
        return _nothing(response, text, end), ""
    return end, ""


def _nothing(response: Any, text: str, end: End) -> End:
    """Returns the end of a reply without text."""
    choice = response.choices[0]
    message = choice.message
    if getattr(message, "tool_calls", None) or getattr(message, "function_call", None):
        return End.TOOL_CALL
    # A stream does not keep the call itself.
    if str(getattr(choice, "finish_reason", None)) in ("tool_calls", "function_call"):
        return End.TOOL_CALL
    details = getattr(getattr(response, "usage", None), "completion_tokens_details", None)
    thinking = getattr(details, "reasoning_tokens", None) or 0
    has_thought = bool(getattr(message, "reasoning_content", None)) or bool(text.strip())
    if end is End.LENGTH or has_thought or (isinstance(thinking, int) and thinking > 0):
        return End.THINKING
    return End.EMPTY


def _field(of: Any, name: str) -> str:
    """Returns a provider's own field as litellm keeps it; empty if there is none."""
    value = getattr(of, name, None)
    if value is None:
        fields = getattr(of, "provider_specific_fields", None)
        value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else ""
