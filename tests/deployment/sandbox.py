"""Runs a command under the system call filter of a systemd unit, without systemd.

    python -m tests.deployment.sandbox FILTER COMMAND…

FILTER is JSON: `calls` that are allowed, `families` of sockets, and `no_new_code`, as
MemoryDenyWriteExecute does it. What is not allowed fails with EPERM. By libseccomp, which apt
needs, so that Debian has it.
"""

import ctypes
import errno
import json
import mmap
import os
import socket
import sys

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_EQUAL, _MASKED_EQUAL = 4, 7


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """Refuses every system call that is not allowed."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libseccomp.so.2")
        except OSError:
            raise SystemExit("libseccomp is not installed: apt-get install libseccomp2") from None
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(_REFUSE)))

    def allow(self, name: str, *compares: _Compare) -> None:
        """Allows a call, where all of these are so. One that this machine has not is left out."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        rules = (_Compare * len(compares))(*compares)
        done = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(_ALLOW), number, len(compares), rules
        )
        if done != 0:
            raise OSError(-done, f"no rule for {name}")

    def load(self) -> None:
        """Loads the filter for this process and all that it starts."""
        done = self._library.seccomp_load(self._context)
        if done != 0:
            raise OSError(-done, "the filter cannot be loaded")


def _without(argument: int, bit: int) -> _Compare:
    return _Compare(argument, _MASKED_EQUAL, bit, 0)


def apply(calls: list[str], families: list[str], *, no_new_code: bool) -> None:
    """Restricts this process."""
    filtered = Filter()
    for name in calls:
        if name == "socket":
            for family in families:
                number = getattr(socket, family)
                filtered.allow(name, _Compare(0, _EQUAL, number, 0))
        elif no_new_code and name in ("mprotect", "pkey_mprotect"):
            filtered.allow(name, _without(2, mmap.PROT_EXEC))
        elif no_new_code and name == "mmap":
            filtered.allow(name, _without(2, mmap.PROT_EXEC))
            filtered.allow(name, _without(2, mmap.PROT_WRITE))
        else:
            filtered.allow(name)
    filtered.load()


if __name__ == "__main__":
    apply(**json.loads(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
