"""An OpenAI-compatible server of vectors: texts that share words are near each other."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_model import served

DIMENSIONS = 64


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Counts the words of a text, each at the place of its hash; the vector is not normalized."""
    values = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [""]:
        digest = hashlib.sha256(word.encode()).digest()
        values[int.from_bytes(digest[:4], "big") % dimensions] += 2.0
    return values


@dataclass
class FakeEmbeddings:
    """What the server was asked, and what it is to say."""

    dimensions: int = DIMENSIONS
    #: The requests as they came.
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: Status, headers and body of the next responses; when it is empty vectors are given.
    script: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    #: Texts that are refused, whatever else is sent with them.
    refuses: Callable[[str], bool] = lambda _text: False
    #: How long each response takes.
    seconds: float = 0.0
    url: str = ""
    #: Requests under way, and the most that were so at once.
    running: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def texts(self) -> list[str]:
        """All texts that were sent, in order."""
        return [text for request in self.requests for text in request["input"]]

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a request for vectors."""
        with self._lock:
            self.requests.append(request)
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
            said = self.script.pop(0) if self.script else None
        time.sleep(self.seconds)
        with self._lock:
            self.running -= 1
        if said is not None:
            return said
        refused = next((text for text in request["input"] if self.refuses(text)), None)
        if refused is not None:
            error = {"message": f"too long: '{refused}'", "type": "invalid_request_error"}
            return 400, {}, json.dumps({"error": error})
        size = request.get("dimensions", self.dimensions)
        data = [
            {"object": "embedding", "index": at, "embedding": vector_of(text, size)}
            for at, text in enumerate(request["input"])
        ]
        # In any order: which is whose is said by the index.
        data.reverse()
        tokens = sum(len(text.split()) for text in request["input"])
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        body = {"object": "list", "data": data, "model": request["model"], "usage": usage}
        return 200, {}, json.dumps(body)


@contextmanager
def fake_embeddings(**how: Any) -> Iterator[FakeEmbeddings]:
    """Such a server on a free port of this machine."""
    fake = FakeEmbeddings(**how)
    with served(fake) as url:
        fake.url = f"{url}/v1"
        yield fake
