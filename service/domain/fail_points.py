"""Fail points: the places where a process may be made to fail on purpose.

One registry of all of them, so that a test can go through every boundary of the service
and nobody has to guess which there are. Code says `reach(FailPoint.X)` where it passes X;
that does nothing unless `service.fail_points` has been told to act (etcd's gofail does the
same in its robustness tests).
"""

from collections.abc import Callable
from enum import Enum


class FailPoint(Enum):
    """Every place, by the name that a schedule of faults knows it by.

    "Before" and "behind" are meant of the moment that the comment names.
    """

    #: A group commit locks its sessions.
    APPEND_BEFORE_LOCK = "append.before_lock"
    APPEND_LOCKED = "append.locked"


#: What is done at a point; None, as in production, is nothing at all.
_act: Callable[[FailPoint], None] | None = None


def reach(point: FailPoint) -> None:
    """Says that the process is at `point`, and fails there if it is to."""
    if _act is not None:
        _act(point)


def act(what: Callable[[FailPoint], None] | None) -> None:
    """Does `what` at every point from now on; None: nothing any more."""
    global _act
    _act = what
