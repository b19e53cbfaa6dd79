"""Alternates several jobs, so that what slows the machine down slows all of them."""

import statistics
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


async def compare(
    without: Callable[[], Awaitable[object]],
    with_it: Callable[[], Awaitable[object]],
    seconds: float,
    *,
    warm: int,
) -> dict[str, float]:
    """Returns how much longer a job takes with something, as ratios; and the medians in ms."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    jobs = [("without", without), ("with", with_it)]
    # A call is slower after some calls than after others: each order is measured as long.
    for order in (jobs, jobs[::-1]):
        for name, found in (await alternate(dict(order), seconds / 2, warm=warm)).items():
            times[name] += found
    medians = {name: statistics.median(found) for name, found in times.items()}
    means = {name: statistics.fmean(found) for name, found in times.items()}
    # On a busy machine the fastest tenth says more about the work that there is to do.
    quick = {name: statistics.quantiles(found, n=10)[0] for name, found in times.items()}
    return {
        "ratio": round(medians["with"] / medians["without"], 3),
        "quick_ratio": round(quick["with"] / quick["without"], 3),
        "mean_ratio": round(means["with"] / means["without"], 3),
        "calls": len(times["with"]),
        **{f"{name}_ms": round(found * 1000, 3) for name, found in medians.items()},
    }
