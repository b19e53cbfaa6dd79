"""Feeds pages that the event loop reads to long work in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Stopped(Exception):
    """The caller does not wait for the work any more."""


class _Feed(Iterator[T]):
    """Iterates in a thread over the items of an asynchronous iterator of pages."""

    def __init__(self, pages: AsyncIterator[Sequence[T]], loop: asyncio.AbstractEventLoop) -> None:
        self._pages = pages
        self._loop = loop
        self._page: Iterator[T] = iter(())
        self._awaited: Future[Sequence[T] | None] | None = None
        self._stopped = threading.Event()

    def __next__(self) -> T:
        for one in self._page:
            return one
        page = self._next_page()
        while page is not None and not page:
            page = self._next_page()
        if page is None:
            raise StopIteration
        self._page = iter(page)
        return next(self._page)

    def stop(self) -> None:
        """Ends the work at its next page, or at once when it waits for one."""
        self._stopped.set()
        if self._awaited is not None:
            self._awaited.cancel()

    def _next_page(self) -> Sequence[T] | None:
        if self._stopped.is_set():
            raise _Stopped
        self._awaited = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        if self._stopped.is_set():
            # It was stopped since the check above, when there was nothing yet to cancel.
            self._awaited.cancel()
        return self._awaited.result()

    async def _read(self) -> Sequence[T] | None:
        return await anext(self._pages, None)


async def in_thread(pages: AsyncIterator[Sequence[T]], work: Callable[[Iterator[T]], R]) -> R:
    """Runs `work` in a thread on the items of `pages`; returns its result.

    A page is read when the work has used up the one before, so that one is in memory at a time.
    Cancelled, the work ends at its next page.
    """
    feed = _Feed(pages, asyncio.get_running_loop())
    try:
        return await asyncio.to_thread(work, feed)
    finally:
        feed.stop()
