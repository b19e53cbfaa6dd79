"""The same client without `await`, for programs that have no event loop.

A loop of its own runs in a background thread; every call is passed on to it. For what
is here, see the functions of the same names in `palimpsest.client`.
"""

import asyncio
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from datetime import date
from types import TracebackType
from typing import Any, TypeVar

from palimpsest import client, connection, memory, producer, provenance, trees, values, watch
from palimpsest.budgets import Budget, BudgetSet, Period
from palimpsest.costs import Cost, SpendReport
from palimpsest.edits import Edit
from palimpsest.errors import PalimpsestError
from palimpsest.navigation_values import NavigationStatistics, TrainingExample, TrajectoryEvent
from palimpsest.schemas import Schema
from palimpsest.tree_values import TextPart, TreeNode

T = TypeVar("T")


async def _next(items: AsyncIterator[T]) -> tuple[bool, T | None]:
    """Whether there is a next item, and that. A coroutine may not raise StopIteration."""
    try:
        return True, await anext(items)
    except StopAsyncIteration:
        return False, None


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
        while True:
            there, item = self.run(_next(items))
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

    def set_budget(self, period: Period, **limits: int | None) -> BudgetSet:
        """Bounds what the tenant may spend."""
        return self._loop.run(self._client.set_budget(period, **limits))

    def budgets(self) -> Iterator[Budget]:
        """All budgets, the tenant's first."""
        return self._loop.iterate(self._client.budgets())

    def clear_budget(self, period: Period) -> int:
        """Takes a budget away; how many held memories try again."""
        return self._loop.run(self._client.clear_budget(period))

    def spend(self, **wanted: Any) -> SpendReport:
        """What all model calls came to."""
        return self._loop.run(self._client.spend(**wanted))

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

    def create_memory(self, name: str, schema: Schema | None = None, **spec: Any) -> "Memory":
        """Creates a PRISM memory."""
        made = self._loop.run(self._session.create_memory(name, schema, **spec))
        return Memory(self._loop, made)

    def memory(self, name: str) -> "Memory":
        """A memory by its name."""
        return Memory(self._loop, self._loop.call(self._session.memory, name))

    def create_tree(self, name: str, **settings: Any) -> "Tree":
        """Creates a summary tree."""
        return Tree(self._loop, self._loop.run(self._session.create_tree(name, **settings)))

    def tree(self, name: str) -> "Tree":
        """A tree by its name."""
        return Tree(self._loop, self._loop.call(self._session.tree, name))

    def memories(self) -> Sequence[values.MemoryInfo]:
        """The session's memories, by name."""
        return self._loop.run(self._session.memories())

    def flush(self) -> values.Flushed:
        """Ends the wait for more chunks of all memories."""
        return self._loop.run(self._session.flush())

    def answer(self, answer_id: str) -> values.Answer:
        """Reads a stored answer."""
        return self._loop.run(self._session.answer(answer_id))

    def trajectory(self, answer_id: str) -> Iterator[TrajectoryEvent]:
        """What a navigation did, in order."""
        return self._loop.iterate(self._session.trajectory(answer_id))

    def generate_schema(
        self, domain: str, example_query: str, **options: Any
    ) -> values.SchemaDraft:
        """Has a model write a schema."""
        return self._loop.run(self._session.generate_schema(domain, example_query, **options))

    def schema_draft(self, draft_id: str) -> values.SchemaDraft:
        """Reads a schema that was asked for."""
        return self._loop.run(self._session.schema_draft(draft_id))

    def set_budget(self, period: Period, **limits: int | None) -> BudgetSet:
        """Bounds what the session may spend."""
        return self._loop.run(self._session.set_budget(period, **limits))

    def budgets(self) -> Iterator[Budget]:
        """Its budgets, then those of its memories."""
        return self._loop.iterate(self._session.budgets())

    def clear_budget(self, period: Period) -> int:
        """Takes a budget away; how many held memories try again."""
        return self._loop.run(self._session.clear_budget(period))

    def spend(self, memory: str = "", **wanted: Any) -> SpendReport:
        """What the session's model calls came to, in lines."""
        return self._loop.run(self._session.spend(memory, **wanted))

    def cost(self, memory: str = "", **days: date | None) -> Cost:
        """What the session, or a memory, came to, and what it would have come to."""
        return self._loop.run(self._session.cost(memory, **days))

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

    def amendments(self, **wanted: Any) -> Iterator[values.Amendment]:
        """The changes that made the memory, oldest first."""
        return self._loop.iterate(self._memory.amendments(**wanted))

    def rejections(self) -> Iterator[values.Rejection]:
        """Everything the schema refused, oldest first."""
        return self._loop.iterate(self._memory.rejections())

    def revisions(self) -> Iterator[values.Revision]:
        """Every revision and what caused it, oldest first."""
        return self._loop.iterate(self._memory.revisions())

    def provenance(self, path: str, *, revision: int | None = None) -> "Provenance":
        """What the path holds; iterate over it for the amendments that made it."""
        found = self._loop.run(self._memory.provenance(path, revision=revision))
        return Provenance(self._loop, found)

    def diff(
        self,
        *,
        revision: int | None = None,
        other: "Memory | str" = "",
        other_revision: int | None = None,
    ) -> values.Diff:
        """Compares two revisions, of this memory or of two."""
        name = other if isinstance(other, str) else other.name
        return self._loop.run(
            self._memory.diff(revision=revision, other=name, other_revision=other_revision)
        )

    def watch(self, **options: Any) -> "Watch":
        """The revisions as they are committed; use it with `with`, or close it."""
        return Watch(self._loop, self._loop.call(self._memory.watch, **options))

    def revise(self, edits: Iterable[Edit], **options: Any) -> values.Revised:
        """Makes all edits as one revision, or none."""
        return self._loop.run(self._memory.revise(edits, **options))

    def rollback(self, revision: int, **options: Any) -> values.MemoryInfo:
        """Restores the state of an earlier revision."""
        return self._loop.run(self._memory.rollback(revision, **options))

    def fold(self) -> values.Folded:
        """Writes the amendments into a new base."""
        return self._loop.run(self._memory.fold())

    def consolidate(self) -> values.MemoryInfo:
        """Asks for a pass that merges and shortens."""
        return self._loop.run(self._memory.consolidate())

    def update_schema(self, schema: Schema, **options: Any) -> values.MemoryInfo:
        """Gives the memory a schema with more fields."""
        return self._loop.run(self._memory.update_schema(schema, **options))

    def rebuild(self, new_name: str, **changes: Any) -> "Memory":
        """Reads the whole log again into a new memory.

        `on_progress` is called in the client's own thread.
        """
        return Memory(self._loop, self._loop.run(self._memory.rebuild(new_name, **changes)))

    def flush(self) -> values.Flushed:
        """Ends the wait for more chunks."""
        return self._loop.run(self._memory.flush())

    def set_budget(self, period: Period, **limits: int | None) -> BudgetSet:
        """Bounds what the memory may spend."""
        return self._loop.run(self._memory.set_budget(period, **limits))

    def clear_budget(self, period: Period) -> int:
        """Takes a budget away; how many held memories try again."""
        return self._loop.run(self._memory.clear_budget(period))

    def retry(self) -> values.MemoryInfo:
        """Lets a stalled memory try again."""
        return self._loop.run(self._memory.retry())

    def ask(self, query: str, **options: Any) -> values.Answer:
        """Asks the memory. `on_event` is called in the client's own thread."""
        return self._loop.run(self._memory.ask(query, **options))

    def ask_all(
        self, queries: Iterable[str], **options: Any
    ) -> Sequence[values.Answer | PalimpsestError]:
        """Asks many questions; their answers, or errors, in the same order."""
        return self._loop.run(self._memory.ask_all(queries, **options))

    def trajectory(self, answer_id: str) -> Iterator[TrajectoryEvent]:
        """What a navigation did, in order."""
        return self._loop.iterate(self._memory.trajectory(answer_id))

    def navigation_statistics(self) -> NavigationStatistics:
        """What all navigations of the tree came to."""
        return self._loop.run(self._memory.navigation_statistics())

    def export_trajectories(self, answer_ids: Iterable[str] = ()) -> Iterator[TrainingExample]:
        """The moves of navigations that found an answer, oldest first."""
        return self._loop.iterate(self._memory.export_trajectories(answer_ids))


class Tree(Memory):
    """See `palimpsest.trees.Tree`."""

    def __init__(self, loop: _Loop, tree: trees.Tree) -> None:
        super().__init__(loop, tree)
        self._tree = tree

    def seal(self, **options: Any) -> values.MemoryInfo:
        """Closes the tree. `on_progress` is called in the client's own thread."""
        return self._loop.run(self._tree.seal(**options))

    def outline(self, *, revision: int | None = None) -> values.TreeOutline:
        """The levels, the nodes without a parent, and the tail."""
        return self._loop.run(self._tree.outline(revision=revision))

    def node(self, node_id: str) -> TreeNode:
        """A node."""
        return self._loop.run(self._tree.node(node_id))

    def children(self, node_id: str) -> Iterator[TreeNode]:
        """The children of a node, in the order of the text."""
        return self._loop.iterate(self._tree.children(node_id))

    def level(self, level: int) -> Iterator[TreeNode]:
        """The nodes of a level, in the order of the text."""
        return self._loop.iterate(self._tree.level(level))

    def text(self, node_id: str) -> Iterator[TextPart]:
        """The text under a node, chunk by chunk."""
        return self._loop.iterate(self._tree.text(node_id))

    def rebuild(self, new_name: str, **changes: Any) -> "Tree":
        """Builds another tree over the whole log."""
        return Tree(self._loop, self._loop.run(self._tree.rebuild(new_name, **changes)))


class Provenance:
    """See `palimpsest.provenance.Provenance`."""

    def __init__(self, loop: _Loop, inner: provenance.Provenance) -> None:
        self._loop = loop
        self._provenance = inner
        self.path = inner.path
        self.revision = inner.revision
        self.exists = inner.exists
        self.value = inner.value

    def __iter__(self) -> Iterator[values.ProvenanceEntry]:
        return self._loop.iterate(aiter(self._provenance))


class Watch:
    """See `palimpsest.watch.Watch`. `close` may be called from any thread."""

    def __init__(self, loop: _Loop, inner: watch.Watch) -> None:
        self._loop = loop
        self._watch = inner

    def __enter__(self) -> "Watch":
        self._loop.run(self._watch.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Watch":
        return self

    def __next__(self) -> values.Committed:
        there, event = self._loop.run(_next(self._watch))
        if not there:
            raise StopIteration
        return event  # type: ignore[return-value]

    @property
    def resume_token(self) -> str:
        """Goes on behind what was told last."""
        return self._watch.resume_token

    def close(self) -> None:
        """Ends the watch; whoever waits for a revision gets none."""
        self._loop.run(self._watch.aclose())


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
