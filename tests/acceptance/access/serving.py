"""An API server in the process of the test, with the settings of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.app.serve import serve
from service.settings.config import Config


@asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[str]:
    """Yields the address of the API."""
    async with serving_both(url, **settings) as (address, _):
        yield address


@asynccontextmanager
async def serving_both(url: str, **settings: Any) -> AsyncIterator[tuple[str, str]]:
    """Yields the address of the API and its URL over HTTP, which is empty unless it is set."""
    given = {"listen": "127.0.0.1:0", "stop_seconds": 1, **settings}
    urls: list[str] = []
    config = Config.model_validate({"database_url": url, **given})
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, stop, ready.set_result, urls.append))
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield ready.result(), "".join(urls)
    finally:
        stop.set()
        await asyncio.wait([running])
