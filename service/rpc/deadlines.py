"""Deadlines: the server replies shortly before the client gives up."""

import asyncio

from service.rpc.interceptors.base import Context

#: Part of a deadline that is kept for sending the reply, and its bounds in seconds.
_SHARE = 0.1
_MIN_SECONDS = 0.02
_MAX_SECONDS = 0.5


def deadline_of(context: Context) -> float | None:
    """Returns when to stop waiting, in the event loop's time; None when the client set none.

    It is a little before the client's own deadline: after that gRPC reports only that time is
    up, and not how far things are.
    """
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return None
    kept = min(max(remaining * _SHARE, _MIN_SECONDS), _MAX_SECONDS)
    return asyncio.get_running_loop().time() + max(remaining - kept, 0.0)
