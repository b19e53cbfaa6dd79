"""Memories without `await`. See the classes of the same names in `palimpsest`."""

from collections.abc import Callable

from palimpsest import answers, memory, provenance, states, trees, values, watch
from palimpsest.state_values import StateSettings
from palimpsest.sync_loop import Loop, Passing, after, gives, lists, names, waits
from palimpsest.tree_values import TreeSettings


class AnswerStream(Passing):
    """See `palimpsest.answers.AnswerStream`."""

    __iter__ = lists(answers.AnswerStream.__aiter__)

    @property
    def answer(self) -> values.Answer:
        """The whole answer, after the last piece."""
        stream: answers.AnswerStream = self._inner
        return stream.answer


class Provenance(Passing):
    """See `palimpsest.provenance.Provenance`."""

    def __init__(self, loop: Loop, inner: provenance.Provenance) -> None:
        super().__init__(loop, inner)
        self.path = inner.path
        self.revision = inner.revision
        self.exists = inner.exists
        self.value = inner.value

    __iter__ = lists(provenance.Provenance.__aiter__)


class Watch(Passing):
    """See `palimpsest.watch.Watch`. `close` may be called from any thread."""

    def __init__(self, loop: Loop, inner: watch.Watch) -> None:
        super().__init__(loop, inner)
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


class Memory(Passing):
    """See `palimpsest.memory.Memory`. Callbacks are called in the client's own thread."""

    def __init__(self, loop: Loop, inner: memory.Memory) -> None:
        super().__init__(loop, inner)
        self.name = inner.name

    get = waits(memory.Memory.get)
    amendments = lists(memory.Memory.amendments)
    rejections = lists(memory.Memory.rejections)
    revisions = lists(memory.Memory.revisions)
    provenance = gives(memory.Memory.provenance, Provenance)
    watch = names(memory.Memory.watch, Watch)
    revise = waits(memory.Memory.revise)
    rollback = waits(memory.Memory.rollback)
    fold = waits(memory.Memory.fold)
    consolidate = waits(memory.Memory.consolidate)
    update_schema = waits(memory.Memory.update_schema)
    update_model = waits(memory.Memory.update_model)
    # Not the class itself, which is not there yet.
    rebuild = gives(memory.Memory.rebuild, lambda loop, made: Memory(loop, made))  # noqa: PLW0108
    look = waits(memory.Memory.look)
    flush = waits(memory.Memory.flush)
    set_budget = waits(memory.Memory.set_budget)
    clear_budget = waits(memory.Memory.clear_budget)
    retry = waits(memory.Memory.retry)
    ask = waits(memory.Memory.ask)
    stream_ask = names(memory.Memory.stream_ask, AnswerStream)
    ask_all = waits(memory.Memory.ask_all)
    trajectory = lists(memory.Memory.trajectory)
    navigation_statistics = waits(memory.Memory.navigation_statistics)
    export_trajectories = lists(memory.Memory.export_trajectories)

    def diff(
        self,
        *,
        revision: int | None = None,
        other: "Memory | str" = "",
        other_revision: int | None = None,
    ) -> values.Diff:
        """Compares two revisions, of this memory or of two."""
        name = other if isinstance(other, str) else other.name
        inner: memory.Memory = self._inner
        return self._loop.run(
            inner.diff(revision=revision, other=name, other_revision=other_revision)
        )


class Tree(Memory):
    """See `palimpsest.trees.Tree`."""

    seal = waits(trees.Tree.seal)
    outline = waits(trees.Tree.outline)
    node = waits(trees.Tree.node)
    children = lists(trees.Tree.children)
    level = lists(trees.Tree.level)
    text = lists(trees.Tree.text)

    def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_name: str,
        *,
        settings: TreeSettings | None = None,
        model: str | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> "Tree":
        """Reads the whole log again into a new tree."""
        work = self._inner.rebuild(
            new_name, settings=settings, model=model, on_progress=on_progress
        )
        return Tree(self._loop, self._loop.run(work))


class State(Memory):
    """See `palimpsest.states.State`."""

    context = waits(states.State.context)
    vectors = lists(states.State.vectors)

    def rebuild(  # type: ignore[override]  # what may be changed is another kind's
        self,
        new_name: str,
        *,
        settings: StateSettings | None = None,
        model: str | None = None,
        on_progress: Callable[[values.MemoryInfo], None] | None = None,
    ) -> "State":
        """Reads the whole log again into a new memory."""
        work = self._inner.rebuild(
            new_name, settings=settings, model=model, on_progress=on_progress
        )
        return State(self._loop, self._loop.run(work))
