"""Replies of the fake model in parts, as OpenAI-compatible servers send them (SSE)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Streaming:
    """How the fake model streams."""

    part_characters: int = 3
    #: Called before each part of a reply is sent, with its number from 1; may wait.
    before: Callable[[int], object] = lambda _: None
    #: So many parts are sent, then the connection breaks; None: it does not.
    breaks_behind: int | None = None
    #: The stream just ends there, as if it were whole.
    ends_behind: int | None = None
    #: Whether the usage is reported at the end.
    has_usage: bool = True

    def events(self, body: str) -> Iterator[bytes | None]:
        """Yields the events of a response without a stream; None: the connection breaks."""
        whole = json.loads(body)
        (choice,) = whole["choices"]
        text = choice["message"]["content"]
        yield self._event(whole, {"role": "assistant", "content": ""})
        starts = range(0, len(text), self.part_characters)
        for number, at in enumerate(starts, 1):
            if self.breaks_behind is not None and number > self.breaks_behind:
                yield None
                return
            if self.ends_behind is not None and number > self.ends_behind:
                return
            self.before(number)
            yield self._event(whole, {"content": text[at : at + self.part_characters]})
        yield self._event(whole, {}, choice["finish_reason"])
        if self.has_usage:
            yield _data({**_head(whole), "choices": [], "usage": whole["usage"]})
        yield b"data: [DONE]\n\n"

    def _event(self, whole: dict[str, Any], delta: dict[str, Any], end: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return _data({**_head(whole), "choices": [choice]})


def _head(whole: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": whole["model"]}


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
