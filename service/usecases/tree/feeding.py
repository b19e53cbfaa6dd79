"""Feeding: long work over what is read in the meantime, beside the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Stopped(Exception):
    """Nobody waits for the work any more."""


class _Feed(Iterator[T]):
    """What an asynchronous iterator brings in pages, one by one, for a thread."""

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
            # Since the look before, when there was nothing yet for `stop` to end.
            self._awaited.cancel()
        return self._awaited.result()

    async def _read(self) -> Sequence[T] | None:
        return await anext(self._pages, None)


async def in_thread(pages: AsyncIterator[Sequence[T]], work: Callable[[Iterator[T]], R]) -> R:
    """What `work` makes in a thread of the items that `pages` brings.

    A page is read when the ones before it are worked off, so that one is held at a time.
    Cancelled, the work ends at its next page.
    """
    feed = _Feed(pages, asyncio.get_running_loop())
    try:
        return await asyncio.to_thread(work, feed)
    finally:
        feed.stop()
