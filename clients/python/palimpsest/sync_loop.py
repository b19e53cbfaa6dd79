"""An event loop in a thread, for the client without `await`."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


async def after(items: AsyncIterator[T]) -> tuple[bool, T | None]:
    """Whether there is a next item, and that. A coroutine may not raise StopIteration."""
    try:
        return True, await anext(items)
    except StopAsyncIteration:
        return False, None


class Loop:
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
            there, item = self.run(after(items))
            if not there:
                return
            yield item  # type: ignore[misc]

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
