"""The same client without `await`, for programs that have no event loop.

A loop of its own runs in a background thread; every call is passed on to it. For what
is here, see the functions of the same names in `palimpsest.client`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from palimpsest import client, connection, memory, producer, values

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="palimpsest", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, make: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of a plain function that must run in the loop's thread."""

        async def work() -> T:
            return make(*arguments, **named)

        return self.run(work())

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items one after the other."""

        async def following() -> tuple[bool, T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            there, item = self.run(following())
            if not there:
                return
            yield item  # type: ignore[misc]

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """See `palimpsest.client.Client`."""

    def __init__(self, address: str = connection.DEFAULT_ADDRESS) -> None:
        self._loop = _Loop()
        self._client = self._loop.call(client.Client, address)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._loop.run(self._client.close())
        self._loop.close()

    def session(self, name: str) -> "Session":
        """A session by its name."""
        return Session(self._loop, self._loop.call(self._client.session, name))

    def create_session(self, name: str, *, exist_ok: bool = False) -> "Session":
        """Creates a session."""
        made = self._loop.run(self._client.create_session(name, exist_ok=exist_ok))
        return Session(self._loop, made)

    def check_schema(self, source: str = "", *, json_schema: str = "") -> str:
        """Checks a schema; it as models will be shown it."""
        return self._loop.run(self._client.check_schema(source, json_schema=json_schema))

    def sessions(self) -> Iterator[values.SessionInfo]:
        """All sessions, by name."""
        return self._loop.iterate(self._client.sessions())


class Session:
    """See `palimpsest.client.Session`."""

    def __init__(self, loop: _Loop, session: client.Session) -> None:
        self._loop = loop
        self._session = session
        self.name = session.name

    def info(self) -> values.SessionInfo:
        """Reads the session."""
        return self._loop.run(self._session.info())

    def producer(self, producer_id: str, **options: Any) -> "Producer":
        """A producer; open it with `with`."""
        made = self._loop.call(self._session.producer, producer_id, **options)
        return Producer(self._loop, made)

    def chunks(self, *, from_position: int = 1) -> Iterator[values.Chunk]:
        """The log from a position on."""
        return self._loop.iterate(self._session.chunks(from_position=from_position))

    def create_memory(self, name: str, **spec: Any) -> "Memory":
        """Creates a PRISM memory."""
        return Memory(self._loop, self._loop.run(self._session.create_memory(name, **spec)))

    def memory(self, name: str) -> "Memory":
        """A memory by its name."""
        return Memory(self._loop, self._loop.call(self._session.memory, name))

    def memories(self) -> Sequence[values.MemoryInfo]:
        """The session's memories, by name."""
        return self._loop.run(self._session.memories())

    def answer(self, answer_id: str) -> values.Answer:
        """Reads a stored answer."""
        return self._loop.run(self._session.answer(answer_id))

    def generate_schema(
        self, domain: str, example_query: str, **options: Any
    ) -> values.SchemaDraft:
        """Has a model write a schema."""
        return self._loop.run(self._session.generate_schema(domain, example_query, **options))

    def schema_draft(self, draft_id: str) -> values.SchemaDraft:
        """Reads a schema that was asked for."""
        return self._loop.run(self._session.schema_draft(draft_id))

    def usage(self, memory: str = "") -> values.UsageReport:
        """What the model calls came to."""
        return self._loop.run(self._session.usage(memory))


class Memory:
    """See `palimpsest.memory.Memory`."""

    def __init__(self, loop: _Loop, memory: memory.Memory) -> None:
        self._loop = loop
        self._memory = memory
        self.name = memory.name

    def get(self, **options: Any) -> values.MemoryState:
        """Reads the memory."""
        return self._loop.run(self._memory.get(**options))

    def amendments(self) -> Iterator[values.Amendment]:
        """Every change that made the memory, oldest first."""
        return self._loop.iterate(self._memory.amendments())

    def rejections(self) -> Iterator[values.Rejection]:
        """Everything the schema refused, oldest first."""
        return self._loop.iterate(self._memory.rejections())

    def retry(self) -> values.MemoryInfo:
        """Lets a stalled memory try again."""
        return self._loop.run(self._memory.retry())

    def ask(self, query: str, **options: Any) -> values.Answer:
        """Asks the memory."""
        return self._loop.run(self._memory.ask(query, **options))


class Producer:
    """See `palimpsest.producer.Producer`."""

    def __init__(self, loop: _Loop, inner: producer.Producer) -> None:
        self._loop = loop
        self._producer = inner

    def __enter__(self) -> "Producer":
        self._loop.run(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._producer.__aexit__(kind, error, traceback))

    @property
    def last_acked_sequence(self) -> int:
        """The highest own number that is durable."""
        return self._producer.last_acked_sequence

    def append(self, text: str, **options: Any) -> int:
        """Appends plain text; its own number."""
        return self._loop.run(self._producer.append(text, **options))

    def append_message(self, role: str, text: str, **options: Any) -> int:
        """Appends a turn of a conversation; its own number."""
        return self._loop.run(self._producer.append_message(role, text, **options))

    def append_step(self, **parts: Any) -> int:
        """Appends a step of an agent; its own number."""
        return self._loop.run(self._producer.append_step(**parts))

    def flush(self) -> values.Ack | None:
        """Waits until everything appended so far is durable."""
        return self._loop.run(self._producer.flush())
