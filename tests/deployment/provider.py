"""A provider of models for a deployment that is watched, in OpenAI's own shapes."""

import json
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_embeddings import FakeEmbeddings
from tests.support.fake_model import prompt_of
from verification.attacks.outages import OUTAGES, Switched

#: Which is asked by memories of its own, and replies to none while it is silent.
SILENT = "openai/silent"
#: What a memory gets to know with each step: long enough that prompts are worth caching.
FACT = "The harbour of Ostend is closed on Mondays, and open on all other days of the week. " * 8
REFUSED_FORM = json.dumps(
    {
        "error": {
            "message": "Invalid schema for response_format 'reply': In context=(), 'x' is not",
            "type": "invalid_request_error",
            "param": "response_format",
            "code": None,
        }
    }
)


@dataclass
class Provider(Switched):
    """Replies, and keeps the beginnings of prompts; what it does else is switched on and off."""

    #: Its cache keeps nothing.
    forgets: bool = False
    #: Words of prompts that it fails at, refuses, or keeps waiting for as long as they are here.
    fails: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    holds: set[str] = field(default_factory=set)
    #: It gives no vectors.
    blind: bool = False
    #: Words of prompts that it keeps waiting now.
    held: set[str] = field(default_factory=set)
    vectors: FakeEmbeddings = field(default_factory=FakeEmbeddings)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _seen: list[str] = field(default_factory=list)
    _has_refused_form: bool = False

    def release(self, words: str) -> None:
        """Replies to what it kept waiting."""
        with self._changed:
            self.holds.discard(words)
            self.held.discard(words)
            self._changed.notify_all()

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a request for a completion, or for vectors."""
        if "input" in request:
            return OUTAGES["500"] if self.blind else self.vectors.respond(request)
        prompt = prompt_of(request)
        if any(words in prompt for words in self.fails):
            return OUTAGES["500"]
        if "response_format" in request and not self._has_refused_form:
            self._has_refused_form = True
            return 400, {}, REFUSED_FORM
        self._wait(prompt)
        status, headers, body = super().respond(request)
        if status != 200:
            return status, headers, body
        reply = json.loads(body)
        reply["usage"] = self._usage(prompt)
        if any(words in prompt for words in self.refuses):
            refusal = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
            reply["choices"][0]["message"] = refusal
        return status, headers, json.dumps(reply)

    def _wait(self, prompt: str) -> None:
        with self._changed:
            for words in [one for one in self.holds if one in prompt]:
                self.held.add(words)
                self._changed.wait_for(lambda words=words: words not in self.holds)  # type: ignore[misc]

    def _usage(self, prompt: str) -> dict[str, Any]:
        # Four characters a token, and the longest beginning that was here before.
        with self._changed:
            known = (
                0 if self.forgets else max((_alike(prompt, one) for one in self._seen), default=0)
            )
            self._seen.append(prompt)
        return {
            "prompt_tokens": len(prompt) // 4,
            "completion_tokens": 10,
            "total_tokens": len(prompt) // 4 + 10,
            "prompt_tokens_details": {"cached_tokens": known // 4},
        }


def _alike(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
