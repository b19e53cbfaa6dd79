"""Stands in for `python` and `palimpsest` in forked processes: what they start is forked too.

`tests/support/forking.py` copies this file beside its forker's socket, with the interpreter of the
tests in the first line. A command of `palimpsest` becomes a child of the forker, with this
process's arguments, environment, folder and descriptors. This process then represents it: it
forwards signals and ends as the child ends, and the child ends with it. Everything else the
interpreter runs. Only small modules are loaded, so that a start takes milliseconds.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT)


def main() -> None:
    """Runs the command that it was started with."""
    arguments = sys.argv[1:]
    if os.path.basename(sys.argv[0]) != "palimpsest":
        if arguments[:2] != ["-m", "service.cli"]:
            os.execv(sys.executable, [sys.executable, *arguments])
        del arguments[:2]
    forker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forker.connect(os.path.join(os.path.dirname(sys.argv[0]), "orders"))
    handles = [int(name) for name in os.listdir("/proc/self/fd")]
    handles = [one for one in handles if is_inherited(one)]
    order = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "handles": handles,
    }
    # A signal that arrives before the child's id waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    socket.send_fds(forker, [json.dumps(order).encode()], handles)
    pid = int(forker.recv(100))
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    for one in handles:
        os.close(one)
    code = int(forker.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def is_inherited(handle: int) -> bool:
    """Returns whether a descriptor is one that our parent gave us."""
    try:
        return os.get_inheritable(handle)
    except OSError:
        # It was that of the listing.
        return False


if __name__ == "__main__":
    main()
