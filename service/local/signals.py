"""Signals that ask us to stop, kept away from what must not be cut short."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Ctrl-C, what service managers send, and a terminal that was closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def deferred() -> Iterator[None]:
    """Lets what is inside come to its end; the first signal that came is then delivered.

    Python runs handlers in the main thread only; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        # What is ignored stays ignored, as under nohup; what is not Python's cannot be put back.
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
