"""Native ends: what Anthropic and Bedrock say of the end of a reply, which litellm loses.

litellm makes "stop" of an end that it does not know, and of a tool's JSON that was cut off; of
OpenAI's kin it keeps the provider's own name, of these it does not. So the provider's response
is read once more, as it came.
"""

import json
from collections.abc import Mapping
from typing import Any

#: A response that is longer is not read again: no reply of ours is.
MAX_CHARACTERS = 8 * 1024 * 1024


class NativeEnd:
    """Sees the responses of one call, as litellm's `logger_fn`."""

    def __init__(self) -> None:
        self._body = ""

    def __call__(self, details: Mapping[str, Any]) -> None:
        """Keeps the provider's response; litellm calls it before the request as well."""
        body = details.get("original_response")
        if isinstance(body, str) and len(body) <= MAX_CHARACTERS:
            self._body = body

    def read(self) -> tuple[str, str]:
        """The provider's name of the end, and its words on it; empty where there are none."""
        try:
            said = json.loads(self._body)
        except (ValueError, RecursionError):
            return "", ""
        if not isinstance(said, dict):
            return "", ""
        details = said.get("stop_details")
        words: object = ""
        if isinstance(details, dict):
            words = details.get("explanation") or details.get("category")
        reason = said.get("stop_reason") or said.get("stopReason")
        return _text(reason), _text(words)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
