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
    ProgressColumn,
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


class _Bar:
    """Chunks that were read, of so many. Use it as a context manager."""

    def __init__(self, what: str, total: int | None, *columns: ProgressColumn) -> None:
        self._what = what
        self._shown = time.monotonic()
        #: Why it waits, as it was shown last.
        self._cause = ""
        self._progress = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            *columns,
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, revision=0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _say_why(self, waiting: str, cause: str | None) -> None:
        """Says once why nothing goes on: a probe may hide it for a moment."""
        if cause is not None and cause != self._cause:
            self._cause = cause
            say(f"{waiting}, and going on by itself: {cause}")

    def _say(self, line: str) -> None:
        """Says how far it is, now and then, where there is no terminal."""
        if not err.is_terminal and time.monotonic() - self._shown > LINE_SECONDS:
            self._shown = time.monotonic()
            say(f"{self._what}: {line}")


class Bar(_Bar):
    """Chunks that a memory has read, of so many. Use it as a context manager."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total, TextColumn("chunks, revision {task.fields[revision]}"))
        self._total = total

    def show(self, info: palimpsest.MemoryInfo, *, total: int | None = None) -> None:
        """Shows how far the memory is. Raises CommandError when it stalled or is held."""
        self._total = self._total if total is None else total
        done = min(info.applied_position, self._total)
        self._progress.update(self._task, completed=done, total=self._total, revision=info.revision)
        if done < self._total:
            refuse_stopped(info)
            waits = info.status is palimpsest.MemoryStatus.WAITING
            cause = info.blocked.cause if waits and info.blocked is not None else None
            self._say_why("waiting for the model", cause)
            self._say(f"{done} of {self._total}, revision {info.revision}")


class OperationBar(_Bar):
    """Chunks that an operation has read, of so many. Use it as a context manager."""

    def __init__(self, what: str) -> None:
        super().__init__(what, None, TextColumn("chunks"))

    def show(self, info: palimpsest.OperationInfo[Any]) -> None:
        """Shows how far the operation is, and once why it does not go on."""
        if info.progress is None:
            return
        done, total, blocked = info.progress.completed, info.progress.total, info.progress.blocked
        self._progress.update(self._task, completed=done, total=total or None)
        self._say_why("waiting", None if blocked is None else blocked.cause)
        if total:
            self._say(f"{done} of {total}")


async def follow_operation(
    operation: palimpsest.Operation[Any], what: str, *, timeout: float | None = None
) -> Any:
    """Waits for an operation and shows how far it is; returns its result."""
    with OperationBar(what) as bar:
        bar.show(operation.info)
        return await operation.wait(timeout=timeout, on_progress=bar.show)


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

    Raises CommandError, or what the server says, when it stalled, is held, or is a tree that
    is closed before that.
    """
    state = await memory.get()
    head = state.info.head
    if KINDS[state.info.kind].lingers and state.applied_position < head:
        # A command that waits does not wait for more chunks as well.
        await memory.flush()
    with Bar("revising", head) as bar:
        bar.show(state.info)
        while state.applied_position < head:
            try:
                # The server says at once what never gets there.
                state = await memory.get(fully_applied=True, timeout=WAIT_SECONDS)
            except (palimpsest.DeadlineExceeded, palimpsest.Unavailable):
                state = await memory.get()
            bar.show(state.info)
    return state


@asynccontextmanager
async def ticking(what: str) -> AsyncIterator[None]:
    """Prints every now and then how long something takes, for as long as it does."""
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
