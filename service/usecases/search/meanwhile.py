"""Runs one piece of work beside another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from storage.engine.tasks import cancel

_T = TypeVar("_T")


@contextlib.asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, _T]) -> AsyncIterator[asyncio.Task[_T]]:
    """Runs `work` beside a block that awaits its result; it ends with the block at the latest."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel([task])
