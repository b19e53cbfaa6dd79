"""Measures how much of its prompts a provider's prefix cache has, through the proxy and without it.

A conversation is sent turn by turn, as a chat client does: each call has all turns so far. The
provider is one of the test's, with OpenAI's rule: a prompt whose beginning an earlier prompt had is
cached up to a multiple of 128 tokens, from 1,024 on; a token is four bytes. Half of the turns
were remembered before, in another thread, so that there is something to recall at each turn.

`value` is the cached share through the proxy divided by that without it. The first turns of
`--dataset`, a file of BEAM's chats as JSON Lines, are sent, or a made conversation without it.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from palimpsest_hook.queue import Queue

import palimpsest
from service.llm.providers.prices import Prices
from service.proxy.application import Proxy
from service.proxy.open_calls import CallsInProgress
from service.settings.config import Config
from tests.support.harness import Servers, api

GOAL = 0.8
TOKEN_BYTES = 4
STEP_TOKENS = 128
LEAST_TOKENS = 1024
#: Characters of a turn.
TURN_CHARACTERS = 2000


class Provider:
    """Answers with the conversation's own replies, and counts what its cache has."""

    def __init__(self, turns: Sequence[str]) -> None:
        self._turns = turns
        self._seen: list[bytes] = []
        self.prompt_tokens = self.cached_tokens = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Serves a call."""
        messages = json.loads(request.content)["messages"]
        prompt = "\0".join(one["content"] for one in messages).encode()
        common = max((_common(prompt, one) for one in self._seen), default=0) // TOKEN_BYTES
        cached = common // STEP_TOKENS * STEP_TOKENS if common >= LEAST_TOKENS else 0
        self._seen.append(prompt)
        self.prompt_tokens += len(prompt) // TOKEN_BYTES
        self.cached_tokens += cached
        message = {"role": "assistant", "content": self._turns[len(messages)]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, content=_streamed(json.dumps({"choices": [choice]})))


async def _streamed(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def _common(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--dataset", type=Path, help="BEAM's chats as JSON Lines")
    parser.add_argument("--turns", type=int, default=60, help="turns of the user")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens that are recalled")


def run(_seconds: float, dataset: Path | None, turns: int, tokens: int) -> dict[str, Any]:
    """Measures; see the module."""
    texts = _texts(dataset)[: 2 * turns]
    with Servers.started() as servers, TemporaryDirectory() as folder:
        with api(servers.new_database()) as (_, address):
            return asyncio.run(_run(address, Path(folder), texts, tokens))


def _texts(dataset: Path | None) -> list[str]:
    """Returns what the user and the assistant say in turn, the user first."""
    if dataset is None:
        return [
            f"{('Answer', 'Question')[number % 2 == 0]} {number} about part {number % 7}, "
            + f"with its detail {number * 7919 % 1000}. " * 12
            for number in range(400)
        ]
    with dataset.open() as file:
        chat = json.loads(file.readline())
    texts: list[str] = []
    for turn in chat["turns"]:
        is_users = turn["speaker"] == "user"
        if is_users == (len(texts) % 2 == 0):
            texts.append(turn["text"][:TURN_CHARACTERS])
    return texts


async def _run(address: str, folder: Path, texts: list[str], tokens: int) -> dict[str, Any]:
    async with palimpsest.connect(address) as client:
        half = len(texts) // 4 * 2
        said = [
            {"role": "user" if at % 2 == 0 else "assistant", "content": text}
            for at, text in enumerate(texts)
        ]
        for at in range(0, half, 2):
            await client.session("s").remember(said[at : at + 2], thread="earlier")
        await client.session("s").recall("anything", fully_applied=False)
        without, _ = await _share(client, folder, texts, 0)
        share, recalled = await _share(client, folder, texts, tokens)
    return {
        "value": round(share / without, 3),
        "goal": GOAL,
        "cached_share": {"without": round(without, 3), "with": round(share, 3)},
        "recalled_tokens_of_a_turn": recalled,
        "turns": len(texts) // 2,
    }


async def _share(
    client: palimpsest.Client, folder: Path, texts: list[str], tokens: int
) -> tuple[float, int]:
    provider = Provider(texts)
    proxy = Proxy(
        client=client,
        upstreams={"openai": "http://provider", "anthropic": "http://provider"},
        session="s",
        queue=Queue(folder / str(tokens)),
        calls=CallsInProgress(folder / str(tokens) / "calls"),
        tokens=tokens,
        hosts=frozenset({"localhost"}),
        prices=Prices(Config.model_validate({"database_url": "postgresql://unused"})).of,
        transport=httpx.MockTransport(provider),
    )
    recalled = 0
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(proxy), base_url="http://localhost"
    ) as http:
        talk: list[dict[str, str]] = []
        for text in texts[::2]:
            talk.append({"role": "user", "content": text})
            body = {"model": "m", "messages": talk}
            response = await http.post("/v1/chat/completions", json=body)
            talk.append(response.json()["choices"][0]["message"])
            recalled += int(response.headers["x-palimpsest-recalled"])
    await proxy.close()
    return provider.cached_tokens / provider.prompt_tokens, recalled * 2 // len(texts)
