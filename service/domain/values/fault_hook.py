"""The fault hook: boundaries at which a test may make a process fail.

The database engine, the model transport, the dispatcher, the executor's wire and the append
stream report each boundary that they pass. In production nothing is installed, and a report
costs one comparison. decisions/0070 says which boundaries there are.
"""

from collections.abc import Callable

#: Receives the boundary as `name:step`. It may raise, sleep, or end the process.
Hook = Callable[[str], None]

_hook: Hook | None = None


def boundary(name: str, step: str) -> None:
    """Reports that the process is at `step` of `name`."""
    if _hook is not None:
        _hook(f"{name}:{step}")


def install(hook: Hook | None) -> None:
    """Calls `hook` at every boundary from now on; None: no longer."""
    global _hook
    _hook = hook
