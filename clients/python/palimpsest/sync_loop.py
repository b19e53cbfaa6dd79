"""An event loop in a thread, for the client without `await`, and what its methods are made by.

`waits`, `lists`, `gives` and `names` make a method of a method that is to be awaited. Its name,
its docstring and its parameters stay, so that editors and type checkers know them.
"""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
Made = TypeVar("Made")
P = ParamSpec("P")


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


class Passing:
    """Passes calls on to `inner`, an object of the client that is awaited, in the loop."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def inner(self) -> Any:
        """The object that calls are passed on to."""
        return self._inner


def waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Makes a method that returns what `method` returns when it is awaited."""

    @functools.wraps(method)
    def passed(self: Passing, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._inner, *arguments, **named))

    return passed


def lists(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Makes a method that iterates over what `method` iterates over."""

    @functools.wraps(method)
    def passed(self: Passing, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(method(self._inner, *arguments, **named))

    return passed


def gives(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    make: Callable[[Loop, T], Made],
) -> Callable[Concatenate[Any, P], Made]:
    """Makes a method that awaits `method`, and returns what `make` makes of its result."""

    @functools.wraps(method)
    def passed(self: Passing, /, *arguments: P.args, **named: P.kwargs) -> Made:
        return make(self._loop, self._loop.run(method(self._inner, *arguments, **named)))

    return passed


def names(
    method: Callable[Concatenate[Any, P], T], make: Callable[[Loop, T], Made]
) -> Callable[Concatenate[Any, P], Made]:
    """Makes a method as `gives` does, of one that is not awaited."""

    @functools.wraps(method)
    def passed(self: Passing, /, *arguments: P.args, **named: P.kwargs) -> Made:
        # In the thread of the loop, where what it makes belongs.
        made = self._loop.call(method, self._inner, *arguments, **named)
        return make(self._loop, made)

    return passed
