"""An Anthropic-like server: a cache that keeps what ends at a mark, and reports its use."""

import json
from dataclasses import dataclass, field
from typing import Any

#: Blocks that are looked at, back from a mark, for what was kept before.
LOOKBACK_BLOCKS = 20
MAX_MARKS = 4


@dataclass
class FakeAnthropic:
    """Answers the messages API. Tokens are words."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    #: Numbers of the marked blocks of each request.
    marks: list[list[int]] = field(default_factory=list)
    #: Texts up to the ends that were kept.
    kept: set[tuple[str, ...]] = field(default_factory=set)

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a request for a message."""
        self.requests.append(request)
        # As Anthropic has it: what is kept begins with the system prompt.
        contents = (request.get("system", []), request["messages"][-1]["content"])
        blocks = [
            block
            for one in contents
            for block in ([{"type": "text", "text": one}] if isinstance(one, str) else one)
        ]
        marks = [at for at, block in enumerate(blocks) if block.get("cache_control")]
        self.marks.append(marks)
        if len(marks) > MAX_MARKS or any(not block["text"].strip() for block in blocks):
            return 400, {}, json.dumps({"type": "error", "error": {"type": "invalid_request"}})
        texts = tuple(block["text"] for block in blocks)
        read = max((end for mark in marks if (end := self._found(texts, mark))), default=0)
        written = max(marks, default=-1) + 1
        self.kept |= {texts[: mark + 1] for mark in marks}
        usage = {
            "input_tokens": _tokens(texts[max(read, written) :]),
            "output_tokens": 2,
            "cache_read_input_tokens": _tokens(texts[:read]),
            "cache_creation_input_tokens": _tokens(texts[read : max(read, written)]),
        }
        return 200, {}, json.dumps(_message(request["model"], usage))

    def _found(self, texts: tuple[str, ...], mark: int) -> int:
        """Returns how many blocks up to a mark are kept; 0 when none."""
        for end in range(mark + 1, max(mark + 1 - LOOKBACK_BLOCKS, 0), -1):
            if texts[:end] in self.kept:
                return end
        return 0


def _message(model: str, usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "a ship"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def _tokens(texts: tuple[str, ...]) -> int:
    return sum(len(text.split()) for text in texts)
