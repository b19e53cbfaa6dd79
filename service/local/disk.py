"""Room on the disks that embedded servers write to."""

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: A disk with less is full for PostgreSQL: it needs a file of this size to go on writing.
FULL_BYTES = 16 * 1024 * 1024

#: What to do where a disk is full.
ADVICE = "make room on that disk and start again: what was stored is kept"
#: How the system says so, in messages of any program.
_NO_ROOM = tuple(os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT))


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What is left on a disk."""

    #: A folder on it that a server writes to.
    place: Path
    free_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether PostgreSQL cannot go on there."""
        return self.free_bytes < FULL_BYTES


def lacks_room(message: str) -> bool:
    """Returns whether an error's message says that a disk is full."""
    return any(words in message.lower() for words in _NO_ROOM)


def look(cluster: Path) -> Sequence[Room]:
    """Returns the room on each disk that a cluster of PostgreSQL's writes to.

    What is not there, or not for this user to look at, is left out.
    """
    found: dict[int, Room] = {}
    for place in (cluster, cluster / "pg_wal"):
        try:
            device = os.stat(place).st_dev
            usage = shutil.disk_usage(place)
        except OSError:
            # Closed to this user, or not created yet; a process that writes there reports it.
            continue
        found.setdefault(device, Room(place=place, free_bytes=usage.free))
    return list(found.values())


def complaint(cluster: Path) -> str:
    """Says in one line which disk is full; empty when none is."""
    for room in look(cluster):
        if room.is_full:
            return f"the disk of {room.place} is full; make room, and all goes on where it was"
    return ""
