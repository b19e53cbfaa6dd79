"""Addresses in the names of models: does the service call what a client names?"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import psycopg

import palimpsest
from tests.support.harness import api, worker
from verification.attacks.attack import Attack, Outcome, Stage

SCHEMA = "class Notes:\n    said: list[str]\n"
#: What litellm calls by a name alone: an address in it, or one that it assumes. Those that it
#: assumes are led to our listener, which plays a server beside the service.
ASSUMED = ("ollama_chat", "llamafile", "lm_studio", "langgraph", "xinference", "hosted_vllm")
_SHORT = 2
#: How long a worker may take to show that a memory makes no progress.
_SECONDS = 120.0


@dataclass
class Listener:
    """An HTTP server inside, which no client may have called."""

    url: str = ""
    calls: list[str] = field(default_factory=list)

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes litellm assume it."""
        return {f"{name.upper().removesuffix('_CHAT')}_API_BASE": self.url for name in ASSUMED}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Notes the call and replies as a model does."""
        self.calls.append((await reader.readline()).decode(errors="replace").strip())
        text = '[OBJECTS FOR ADD]\n{"$.said": {"add": ["internal"]}}'
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
        body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1}}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    """Yields a listener at a port of this machine."""
    listener = Listener()
    server = await asyncio.start_server(listener.answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        listener.url = f"http://{host}:{port}/internal/admin"
        yield listener


async def attack(stage: Stage) -> Outcome:
    """Names models everywhere that a client can, then puts such names into the database."""
    url = stage.servers.new_database()
    async with listening() as listener:
        names = [f"{one}/model" for one in ASSUMED[: _SHORT if stage.short else None]]
        names += [f"{one}/{listener.url}" for one in ("oobabooga", "huggingface")]
        with (
            api(url) as (_, address),
            worker(url, PALIMPSEST_STEP_TRIES="1", **listener.environment),
        ):
            async with palimpsest.connect(address) as client:
                taken = [one for name in names for one in await _named(client, name)]
                stopped = [
                    await _stored(client, stage.servers.as_superuser(url), name) for name in names
                ]
        held = not taken and not listener.calls and all(stopped)
        tried = f"{len(names)} names at 6 calls each and in {len(names)} stored memories"
        return Outcome(
            held=held,
            found=f"{tried}: {len(taken)} taken, {stopped.count(False)} applied,"
            f" {len(listener.calls)} calls at the listener {sorted(set(listener.calls))[:3]}",
        )


async def _named(client: palimpsest.Client, name: str) -> list[str]:
    """Names a model in each call that takes one; the calls that were not refused for it."""
    session = await client.create_session(f"s-{uuid4().hex}")
    memory = await session.create_memory("plain", schema_source=SCHEMA)
    calls: Mapping[str, Callable[[], Awaitable[object]]] = {
        "prism": lambda: session.create_memory("prism", schema_source=SCHEMA, model=name),
        "tree": lambda: session.create_tree("tree", navigation_model=name),
        "state": lambda: session.create_state("state", model=name),
        "ask": lambda: session.ask("What?", reader="whole", model=name),
        "schema": lambda: session.generate_schema("notes", "What?", model=name),
        "rebuild": lambda: memory.rebuild("again", model=name),
    }
    taken = []
    for called, call in calls.items():
        try:
            await call()
        except palimpsest.PalimpsestError as error:
            # Any other refusal comes after the name was taken, perhaps after a call.
            if error.reason == "MODEL_NOT_ALLOWED":
                continue
        taken.append(f"{called} {name}")
    return taken


async def _stored(client: palimpsest.Client, url: str, name: str) -> bool:
    """Writes a name where an older release would have; whether the memory does not use it."""
    session = await client.create_session(f"s-{uuid4().hex}")
    memory = await session.create_memory("old", schema_source=SCHEMA)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        changed = await connection.execute(
            "UPDATE memory SET spec = jsonb_set(spec, '{model}', to_jsonb(%s::text))"
            " FROM session WHERE session.session_key = memory.session_key"
            " AND session.name = %s",
            (name, session.id),
        )
        assert changed.rowcount == 1, "the memory's spec was not found"
    async with session.producer("p") as producer:
        await producer.append("The gate is open.")
    async with asyncio.timeout(_SECONDS):
        while True:
            info = (await memory.get()).info
            if info.applied_position or info.status == "waiting":
                return not info.applied_position
            await asyncio.sleep(0.1)


ATTACK = Attack(
    name="models-by-name",
    finding="core 2",
    summary="models whose names hold an address, or that litellm assumes on this machine",
    goal="every call is refused and nothing reaches the listener",
    before="the executor posted to the listener and its reply was readable as memory",
    run=attack,
)
