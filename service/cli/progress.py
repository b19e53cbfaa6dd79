"""The progress of a memory: a bar on a terminal, else a line now and then."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

import palimpsest
from service.cli.kinds import KINDS
from service.cli.output import CommandError, err, say

#: How often progress is a line, where there is no terminal to draw a bar on.
LINE_SECONDS = 2.0
#: How long one read waits for a memory before it is shown how far that is.
WAIT_SECONDS = 0.5


class Bar:
    """Chunks that were read, of so many. Use it as a context manager."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = time.monotonic()
        #: Why it waits, as it was shown last.
        self._cause: str | None = None
        self._progress = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("chunks{task.fields[note]}"),
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show_memory(self, info: palimpsest.MemoryInfo, total: int) -> None:
        """Shows how far the memory is. Raises CommandError when it stalled or is held."""
        done = min(info.applied_position, total)
        self._show(done, total, f", revision {info.revision}")
        if done < total:
            refuse_stopped(info)
            waits = info.status is palimpsest.MemoryStatus.WAITING
            self._say_why("waiting for the model", info.blocked if waits else None)

    def show_operation(self, info: palimpsest.OperationInfo[Any]) -> None:
        """Shows how far the operation is, and once why it does not go on."""
        if info.progress is not None:
            # The work on a schema has no size.
            self._show(info.progress.completed, info.progress.total or None)
            self._say_why("waiting", info.progress.blocked)

    def _show(self, done: int, total: int | None, note: str = "") -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)
        is_due = time.monotonic() - self._shown > LINE_SECONDS
        if total is not None and done < total and is_due and not err.is_terminal:
            self._shown = time.monotonic()
            say(f"{self._what}: {done} of {total}{note}")

    def _say_why(self, waiting: str, blocked: palimpsest.Blocked | None) -> None:
        """Prints a cause of waiting once, although a probe may hide it for a moment."""
        if blocked is not None and blocked.cause != self._cause:
            self._cause = blocked.cause
            say(f"{waiting}, and going on by itself: {blocked.cause}")


async def follow_operation(
    operation: palimpsest.Operation[Any], what: str, *, timeout: float | None = None
) -> Any:
    """Waits for an operation and shows how far it is; returns its result."""
    with Bar(what) as bar:
        bar.show_operation(operation.info)
        return await operation.wait(timeout=timeout, on_progress=bar.show_operation)


def refuse_stopped(info: palimpsest.MemoryInfo) -> None:
    """Raises CommandError when the memory stalled, or a budget holds it."""
    if info.blocked is None:
        return
    where, cause = info.blocked.position, info.blocked.cause
    if info.status is palimpsest.MemoryStatus.STALLED:
        raise CommandError(f"memory {info.id!r} stalled at position {where}: {cause}")
    if info.status is palimpsest.MemoryStatus.OVER_BUDGET:
        raise CommandError(f"memory {info.id!r} is held: {cause}")


async def follow(memory: palimpsest.Memory) -> palimpsest.MemoryState:
    """Waits until the memory is at today's head, and returns its state.

    Raises CommandError, or the server's error, when it stalled, is held, or is a tree that is
    closed before that.
    """
    state = await memory.get()
    head = state.info.head
    if KINDS[state.info.kind].lingers and state.applied_position < head:
        # A command that waits does not wait for more chunks as well.
        await memory.flush()
    with Bar("revising") as bar:
        bar.show_memory(state.info, head)
        while state.applied_position < head:
            try:
                # The server refuses at once what can never be applied.
                state = await memory.get(fully_applied=True, timeout=WAIT_SECONDS)
            except (palimpsest.DeadlineExceeded, palimpsest.Unavailable):
                state = await memory.get()
            bar.show_memory(state.info, head)
    return state


@asynccontextmanager
async def ticking(what: str) -> AsyncIterator[None]:
    """Prints now and then how long its block has taken."""
    started = time.monotonic()

    async def tick() -> None:
        while True:
            await asyncio.sleep(LINE_SECONDS)
            say(f"{what}: {time.monotonic() - started:.0f} s")

    say(what)
    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
