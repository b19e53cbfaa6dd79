"""Estimates how many tokens a request has at most, so that a budget can reserve what it may cost.

Text is counted by the model's tokenizer where there is one here, else by kinds of characters, with
more for each than the tokenizers that we know make of it. Images, files and what the provider has
stored cost what they may cost at most: their bytes say little, or are not in the request.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from service.proxy.conversation import Form

#: What an image costs at most by the beginning of the model's name; "": any other. Those of
#: gpt-4o-mini are counted as 33 times as many as those of gpt-4o.
IMAGE_TOKENS = {"claude": 4_800, "gpt-4o-mini": 48_200, "": 4_000}
#: An image that the model gets in its own size (`"detail": "original"`).
ORIGINAL_IMAGE_TOKENS = 12_000
#: What is in the request besides its text: the form of the provider's prompt.
FRAME_TOKENS = 50
#: What a provider puts before the descriptions of tools.
TOOLS_TOKENS = 700
#: What it puts in the prompt for each tool of its own, such as a computer or a search.
OWN_TOOL_TOKENS = 2_000
#: Tokens of a prompt of which nothing says how long it may be.
LONGEST_PROMPT_TOKENS = 1_000_000

_MEDIA = ("image", "input_image", "image_url")
_FILES = ("document", "file", "input_file", "input_audio", "audio", "video", "container_upload")
#: Fields that hold encrypted or encoded text, which is shorter than they are.
_SEALED = ("signature", "encrypted_content", "thought_signature")
#: Fields that refer to a prompt, a reply or a conversation that the provider has stored.
_STORED = ("previous_response_id", "conversation", "prompt", "container")
#: Bytes of sealed text for a token of it.
_SEALED_BYTES = 4

_KINDS = re.compile(
    r"(?P<word>[A-Za-z]?[a-z]+)|(?P<capitals>[A-Z]+)|(?P<digits>[0-9]+)|(?P<blank>[ \t\r\n]+)"
    r"|(?P<sign>[!-~])|(?P<alphabet>[\x80-\u052f\u0590-\u06ff])"
    r"|(?P<syllable>[\u3000-\u9fff\uac00-\ud7a3])|(?P<rare>[^\x00-\uffff])|(?P<other>.)",
    re.DOTALL,
)
#: Tokens of one character of each other kind.
_CHARACTER_TOKENS = {"digits": 1, "sign": 1, "alphabet": 1, "syllable": 2, "other": 3, "rare": 4}
#: Longer words are rarely words, and are cut in small pieces.
_LONG_WORD = 20


def most_tokens(text: str) -> int:
    """Returns how many tokens a text has at most with the tokenizers of common models.

    Prose and code have about two thirds of it. No byte-level tokenizer makes more tokens of a
    text than it has bytes.
    """
    total = 0
    for match in _KINDS.finditer(text):
        kind, length = str(match.lastgroup), match.end() - match.start()
        if kind == "word":
            total += -(-(length + 1) // 4) if length <= _LONG_WORD else -(-length * 2 // 3)
        elif kind == "capitals":
            total += -(-length // 2)
        elif kind == "blank":
            total += 0 if match[0] == " " else -(-length // 4)
        else:
            total += _CHARACTER_TOKENS[kind] * length
    return min(total, len(text.encode(errors="replace")))


def request_tokens(
    form: Form,
    body: Mapping[str, Any],
    count: Callable[[str], int],
    *,
    window: int | None,
) -> int:
    """Returns how many tokens a request has at most; no more than the model's `window`."""
    most = window or LONGEST_PROMPT_TOKENS
    if form.messages == "input" and any(body.get(name) for name in _STORED):
        return most
    media = _Media(model=str(body.get("model", "")), most=most)
    text = json.dumps(media.without(body), ensure_ascii=False)
    tools = body.get("tools")
    total = count(text) + media.tokens + FRAME_TOKENS
    if isinstance(tools, list) and tools:
        own = [one for one in tools if isinstance(one, Mapping) and _is_providers(one)]
        total += TOOLS_TOKENS + OWN_TOOL_TOKENS * len(own)
    return min(total, most) if window else total


def _is_providers(tool: Mapping[str, Any]) -> bool:
    return tool.get("type", "custom") not in ("custom", "function")


class _Media:
    """Counts what in a request is no text."""

    def __init__(self, *, model: str, most: int) -> None:
        self._model = model.rpartition("/")[2]
        self._most = most
        self.tokens = 0

    def without(self, value: Any) -> Any:
        """Returns a value without what is no text, and counts that."""
        if isinstance(value, list):
            return [self.without(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        kind = value.get("type")
        if kind in _MEDIA:
            self.tokens += self._image(value)
            return {}
        source = value.get("source")
        if kind in _FILES and not _is_text(source):
            self.tokens += min(self._most, _data_bytes(value) or self._most)
            return {}
        kept = {}
        for name, one in value.items():
            if name in _SEALED and isinstance(one, str):
                self.tokens += -(-len(one) // _SEALED_BYTES)
            else:
                kept[name] = self.without(one)
        return kept

    def _image(self, given: Mapping[str, Any]) -> int:
        within = given.get("image_url")
        details = (given.get("detail"), within.get("detail") if isinstance(within, dict) else None)
        if "original" in details:
            return ORIGINAL_IMAGE_TOKENS
        return next(most for name, most in IMAGE_TOKENS.items() if self._model.startswith(name))


def _is_text(source: Any) -> bool:
    return isinstance(source, Mapping) and source.get("type") in ("text", "content")


def _data_bytes(given: Mapping[str, Any]) -> int:
    """Returns how many characters of data a file has in the request; 0: it is elsewhere."""
    for value in (given, *given.values()):
        if isinstance(value, Mapping):
            for name in ("data", "file_data"):
                if isinstance(value.get(name), str):
                    return len(value[name])
    return 0
