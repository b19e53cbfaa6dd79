"""Alternates several jobs, so that what slows the machine down slows all of them."""

import time
from collections.abc import Awaitable, Callable, Mapping


async def alternate(
    jobs: Mapping[str, Callable[[], Awaitable[object]]], seconds: float, *, warm: int
) -> dict[str, list[float]]:
    """Returns the times of each job, in seconds, after `warm` turns that do not count."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(warm):
        for job in jobs.values():
            await job()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, job in jobs.items():
            start = time.perf_counter()
            await job()
            times[name].append(time.perf_counter() - start)
    return times
