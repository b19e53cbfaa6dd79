"""Memories without `await`. See the classes of the same names in `palimpsest`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from palimpsest import memory, provenance, states, trees, values, watch
from palimpsest.budgets import BudgetSet, Period
from palimpsest.edits import Edit
from palimpsest.errors import PalimpsestError
from palimpsest.navigation_values import NavigationStatistics, TrainingExample, TrajectoryEvent
from palimpsest.schemas import Schema
from palimpsest.state_values import StateVector
from palimpsest.sync_loop import Loop, after
from palimpsest.tree_values import TextPart, TreeNode


class Memory:
    """See `palimpsest.memory.Memory`."""

    def __init__(self, loop: Loop, memory: memory.Memory) -> None:
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

    def update_model(self, model: str = "") -> values.MemoryInfo:
        """Gives the memory another model, as provider/name; empty: the service's default."""
        return self._loop.run(self._memory.update_model(model))

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

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> Iterator[TrainingExample]:
        """The moves of navigations that found an answer, oldest first."""
        return self._loop.iterate(self._memory.export_trajectories(answer_ids, good=good))


class Tree(Memory):
    """See `palimpsest.trees.Tree`."""

    def __init__(self, loop: Loop, tree: trees.Tree) -> None:
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


class State(Memory):
    """See `palimpsest.states.State`."""

    def __init__(self, loop: Loop, state: states.State) -> None:
        super().__init__(loop, state)
        self._state = state

    def context(self, **options: Any) -> values.WorkingContext:
        """The vectors in use, and the steps since."""
        return self._loop.run(self._state.context(**options))

    def vectors(self, *, level: int = 0) -> Iterator[StateVector]:
        """The state vectors, oldest first."""
        return self._loop.iterate(self._state.vectors(level=level))

    def rebuild(self, new_name: str, **changes: Any) -> "State":
        """Reads the whole log again into a new memory."""
        return State(self._loop, self._loop.run(self._state.rebuild(new_name, **changes)))


class Provenance:
    """See `palimpsest.provenance.Provenance`."""

    def __init__(self, loop: Loop, inner: provenance.Provenance) -> None:
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

    def __init__(self, loop: Loop, inner: watch.Watch) -> None:
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
        there, event = self._loop.run(after(self._watch))
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
