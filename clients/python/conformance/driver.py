"""The driver of the Python client: clients/conformance/README.md."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime
from typing import Any

from administration import MoreCalls, retained

import palimpsest

LINE_BYTES = 16 << 20
Args = dict[str, Any]


@dataclass
class Address:
    street: str
    city: str


@dataclass
class Profile:
    """What `type` names."""

    name: str
    age: int
    allergies: list[str]
    facts: dict[str, str]
    address: Address

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "Profile":
        return cls(**{**value, "address": Address(**value["address"])})


TYPES = {"Profile": Profile}
TIMES = ("occurred_at", "occurred_since", "occurred_until", "expires_at")


class Unsupported(Exception):
    """The client cannot do it."""


class Calls(MoreCalls):
    """The calls by their names."""

    def __init__(self) -> None:
        self._client: palimpsest.Client | None = None
        self._handles: dict[str, Any] = {}

    @property
    def client(self) -> palimpsest.Client:
        assert self._client is not None, "connect first"
        return self._client

    async def connect(self, target: str = "", **options: Any) -> Any:
        if self._client is not None:
            await self._client.close()
        self._client = palimpsest.connect(target or os.environ["PALIMPSEST_URL"], **options)
        return {"sdk": "python", "version": palimpsest.__version__}

    async def create_session(self, session: str, **options: Any) -> Any:
        await self.client.create_session(session, **retained(options))
        return await self.get_session(session)

    async def get_session(self, session: str) -> Any:
        return await self.client.session(session).info()

    async def list_sessions(self) -> Any:
        return {"sessions": [one async for one in self.client.sessions()]}

    async def update_session(self, session: str, **options: Any) -> Any:
        return await self.client.session(session).update(**retained(options))

    async def delete_session(self, session: str, **options: Any) -> Any:
        await self.client.delete_session(session, **options)
        return {}

    async def remember(self, session: str, messages: Any, **options: Any) -> Any:
        return await self.client.session(session).remember(messages, **options)

    async def recall(self, session: str, query: Any, **options: Any) -> Any:
        found = await self.client.session(session).recall(query, **options)
        return {**plain(found), "read_token": found.read_point.read_token}

    async def append(self, session: str, chunks: list[Args], **options: Any) -> Any:
        return await self.client.session(session).append(map(appendable, chunks), **options)

    async def list_chunks(self, session: str, **options: Any) -> Any:
        found = self.client.session(session).chunks(**options)
        return {"chunks": [chunk(one) async for one in found]}

    async def search_chunks(self, session: str, query: str, **options: Any) -> Any:
        found = await self.client.session(session).search(query, **options)
        results = [{"rank": one.rank, "chunk": chunk(one.chunk)} for one in found.results]
        return {"results": results, "mode": found.mode}

    async def open_producer(self, handle: str, session: str, **options: Any) -> Any:
        producer = self.client.session(session).producer(**options)
        self._handles[handle] = await producer.__aenter__()
        return {"last_acked_sequence": producer.last_acked_sequence}

    async def send(self, handle: str, chunks: list[Args]) -> Any:
        producer: palimpsest.Producer = self._handles[handle]
        sequences = [await send(producer, one) for one in map(timed, chunks)]
        return {"first_sequence": sequences[0], "last_sequence": sequences[-1]}

    async def flush(self, handle: str) -> Any:
        ack = await self._handles[handle].flush()
        return ack or dict.fromkeys(("producer_sequence", "position", "read_token"))

    async def close_producer(self, handle: str) -> Any:
        producer: palimpsest.Producer = self._handles.pop(handle)
        await producer.__aexit__(None)
        return {"last_acked_sequence": producer.last_acked_sequence}

    async def create_memory(
        self, session: str, memory: str, type: str = "", json_schema: Any = None, **options: Any
    ) -> Any:
        schema = TYPES[type] if type else json_schema
        made = await self.client.session(session).create_memory(memory, schema, **options)
        return await made.look()

    async def get_memory(self, session: str, memory: str, type: str = "", **options: Any) -> Any:
        found = await self.client.session(session).memory(memory).get(**options)
        value = asdict(TYPES[type].read(found.value)) if type else found.value
        return {**plain(found.info), **plain(found), "value": value}

    async def list_memories(self, session: str) -> Any:
        return {"memories": await self.client.session(session).memories()}

    async def delete_memory(self, session: str, memory: str, **options: Any) -> Any:
        await self.client.session(session).memory(memory).delete(**options)
        return {}

    async def edit_memory(self, session: str, memory: str, edits: Any, **options: Any) -> Any:
        wanted = [palimpsest.Edit(**{"value": None, **one}) for one in edits]
        done = await self.client.session(session).memory(memory).edit(wanted, **options)
        return {"revision": done.info.revision, "amendments": plain(done.amendments)}

    async def wait_until_applied(self, session: str, memory: str, **options: Any) -> Any:
        found = await self.client.session(session).memory(memory).get(**options)
        return {"applied_position": found.applied_position, "revision": found.revision}

    async def get_provenance(self, session: str, memory: str, path: str) -> Any:
        why = await self.client.session(session).memory(memory).provenance(path)
        entries = [
            {
                **plain(one.amendment),
                "in_effect": one.in_effect,
                "chunks": [chunk(read) for read in one.chunks],
            }
            async for one in why
        ]
        return {"path": why.path, "exists": why.exists, "value": why.value, "entries": entries}

    async def watch_memory(self, handle: str, session: str, memory: str, **options: Any) -> Any:
        watch = self.client.session(session).memory(memory).watch(**options)
        self._handles[handle] = await watch.__aenter__()
        return {}

    async def next_revision(self, handle: str) -> Any:
        event = plain(await anext(self._handles[handle]))
        return {**event, "revision": event["revision"]["revision"]}

    async def close_watch(self, handle: str) -> Any:
        watch: palimpsest.Watch = self._handles.pop(handle)
        await watch.aclose()
        return {"resume_token": watch.resume_token}

    async def ask(self, session: str, query: str, **options: Any) -> Any:
        return await self.client.session(session).ask(query, **options)

    async def stream_ask(self, handle: str, session: str, query: str, **options: Any) -> Any:
        named = asyncio.get_running_loop().create_future()

        def hear(event: Any) -> None:
            if isinstance(event, palimpsest.Reading) and not named.done():
                named.set_result(event.answer)

        stream = self.client.session(session).stream_ask(query, on_event=hear, **options)
        pieces: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(listen(stream, pieces))
        self._handles[handle] = (task, pieces)
        await asyncio.wait((named, task), return_when=asyncio.FIRST_COMPLETED)
        if not named.done():
            raise (await pieces.get())
        return {"answer_id": named.result()}

    async def next_piece(self, handle: str) -> Any:
        piece = await self._handles[handle][1].get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def close_stream(self, handle: str) -> Any:
        task, _ = self._handles.pop(handle)
        task.cancel()
        await asyncio.wait((task,))
        return {}

    async def resume_answer(self, session: str, answer_id: str, **options: Any) -> Any:
        return await self.client.session(session).resume_answer(answer_id, **options)

    async def cancel_answer(self, session: str, answer_id: str) -> Any:
        return await self.client.session(session).cancel_answer(answer_id)

    async def get_answer(self, session: str, answer_id: str) -> Any:
        return await self.client.session(session).answer(answer_id)

    async def open_agent(self, handle: str, session: str, **options: Any) -> Any:
        agent = await self.client.agent(session, **options).__aenter__()
        self._handles[handle] = agent
        return {"step": agent.step}

    async def record_steps(self, handle: str, steps: list[Args]) -> Any:
        ack = None
        for step in steps:
            ack = await self._handles[handle].record(**step)
        return ack

    async def get_context(self, handle: str) -> Any:
        found = await self._handles[handle].context()
        return {**plain(found), "recent": [chunk(one) for one in found.recent]}

    async def close_agent(self, handle: str) -> Any:
        agent: palimpsest.Agent = self._handles.pop(handle)
        await agent.__aexit__(None)
        return {"step": agent.step}


async def listen(stream: palimpsest.AnswerStream, pieces: "asyncio.Queue[Any]") -> None:
    try:
        async for piece in stream:
            await pieces.put({"text": piece.text, "restarts": piece.restarts})
        await pieces.put({"answer": stream.answer})
    except palimpsest.PalimpsestError as error:
        await pieces.put(error)


async def send(producer: palimpsest.Producer, given: Args) -> int:
    if "message" in given:
        message = given.pop("message")
        return await producer.append_message(message["role"], message["text"], **given)
    if "agent_step" in given:
        return await producer.append_step(**given.pop("agent_step"), **given)
    return await producer.append(given.pop("text"), **given)


def appendable(given: Args) -> Args:
    """Returns a chunk of a script in the form of `append`."""
    given = timed(given)
    message = given.pop("message", None)
    if message is not None:
        return {"role": message["role"], "content": message["text"], **given}
    return {**given.pop("agent_step", {}), **given}


def chunk(one: palimpsest.Chunk) -> Args:
    """Returns a chunk in the form of scripts."""
    found = plain(one)
    kinds = {
        "message": {"role": one.role, "text": one.text},
        "agent_step": {name: found[name] for name in ("observation", "thought", "action")},
        "text": one.text,
    }
    return {**found, one.kind: kinds[one.kind], "redacted": one.redaction is not None}


def timed(args: Args) -> Args:
    """Returns arguments with their times as the client has them."""
    return {
        name: datetime.fromisoformat(value) if name in TIMES else value
        for name, value in args.items()
    }


def plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, palimpsest.PalimpsestError):
        return error_of(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, date):
        return value.isoformat().replace("+00:00", "Z")
    return value.hex() if isinstance(value, bytes) else value


#: gRPC's names of the statuses of the client's errors.
CODES: dict[type[Exception], str] = {
    palimpsest.InvalidArgument: "INVALID_ARGUMENT",
    palimpsest.NotFound: "NOT_FOUND",
    palimpsest.AlreadyExists: "ALREADY_EXISTS",
    palimpsest.OutOfRange: "OUT_OF_RANGE",
    palimpsest.Aborted: "ABORTED",
    palimpsest.ResourceExhausted: "RESOURCE_EXHAUSTED",
    palimpsest.FailedPrecondition: "FAILED_PRECONDITION",
    palimpsest.DeadlineExceeded: "DEADLINE_EXCEEDED",
    palimpsest.Cancelled: "CANCELLED",
    palimpsest.Unavailable: "UNAVAILABLE",
    palimpsest.Unauthenticated: "UNAUTHENTICATED",
    palimpsest.PermissionDenied: "PERMISSION_DENIED",
    ValueError: "INVALID_ARGUMENT",
    TypeError: "INVALID_ARGUMENT",
}


def error_of(error: Exception) -> Args:
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), "UNKNOWN")
    found = {"type": type(error).__name__, "code": code, "message": str(error)}
    names = {"reason": "", "metadata": {}, "fields": {}, "retry_seconds": None}
    return found | {name: getattr(error, name, other) for name, other in names.items()}


async def reply_to(calls: Calls, command: Args) -> Args:
    call: Callable[..., Awaitable[Any]] | None = getattr(calls, command["call"], None)
    if call is None:
        return {"unsupported": f"the driver has no {command['call']}"}
    try:
        return {"result": plain(await call(**timed(command["args"])))}
    except Unsupported as unsupported:
        return {"unsupported": str(unsupported)}
    except (palimpsest.PalimpsestError, ValueError, TypeError) as error:
        return {"error": error_of(error)}


async def lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        yield line


async def main() -> None:
    calls, running = Calls(), set[asyncio.Task[None]]()

    async def do(command: Args) -> None:
        reply = await reply_to(calls, command)
        print(json.dumps({"id": command["id"], **reply}), flush=True)

    async for line in lines():
        task = asyncio.create_task(do(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


asyncio.run(main())
