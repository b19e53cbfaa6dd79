"""Delivers the queue to the service, in a process that no agent waits for."""

import os
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from palimpsest_hook.queue import Entry, Queue

if TYPE_CHECKING:
    from palimpsest.sync import Session

#: How long a process tries before it leaves the rest to the next event.
DELIVERY_SECONDS = 60.0


def start_delivery() -> None:
    """Starts `palimpsest-hook flush` in the background, apart from the agent's processes."""
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    # -P: a file of the folder that the agent works in must not be imported.
    command = [sys.executable, "-P", "-m", "palimpsest_hook", "flush", "--quiet"]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=null, setsid=True)


class Undelivered(Exception):
    """The service takes nothing now; what waits stays."""


def deliver(queue: Queue, seconds: float = DELIVERY_SECONDS, *, wait: bool = False) -> int:
    """Delivers what waits, oldest first, and returns how many turns the service acked.

    A turn is removed when it is durable; sent twice, it is stored once. One that the service
    will never take is kept apart. Nothing is done while another process delivers, unless it is
    to `wait` for that. Raises Undelivered when the service does not take a turn within the time.
    """
    done = 0
    # Again, since a turn may have come after the last look and before the lock was released.
    while queue.waiting():
        with queue.locked(wait=wait) as mine:
            if not mine:
                return done
            done += _deliver_all(queue, time.monotonic() + seconds)
    return done


def _deliver_all(queue: Queue, until: float) -> int:
    # The client loads gRPC, which takes longer than an agent should wait for a hook.
    from palimpsest import AlreadyExists, InvalidArgument, PalimpsestError, Unavailable
    from palimpsest.sync import connect

    done = 0
    failed: dict[str, PalimpsestError] = {}
    with connect() as client:
        while paths := _deliverable(queue, failed):
            for path, entry in paths:
                left = until - time.monotonic()
                if left <= 0:
                    raise Undelivered(f"the service did not take all within {DELIVERY_SECONDS} s")
                if entry.session in failed:
                    continue
                try:
                    _remember(client.session(entry.session), entry, left)
                except AlreadyExists:
                    # Another hook of the same turn stored it, at a slightly different time.
                    queue.done(path)
                except (InvalidArgument, ValueError, TypeError) as error:
                    queue.refuse(path, f"{type(error).__name__}: {error}")
                except Unavailable as error:
                    raise Undelivered(str(error)) from error
                except PalimpsestError as error:
                    # What one session does not take must not stop the others.
                    failed[entry.session] = error
                else:
                    queue.done(path)
                    done += 1
    if failed:
        session, first = next(iter(failed.items()))
        raise Undelivered(f"session {session!r}: {first}") from first
    return done


def _deliverable(queue: Queue, failed: Container[str]) -> list[tuple[Path, Entry]]:
    """Returns the turns that wait, of sessions that refused none; keeps unreadable ones apart."""
    found: list[tuple[Path, Entry]] = []
    for path in queue.waiting():
        try:
            entry = queue.read(path)
        except ValueError as error:
            queue.refuse(path, f"unreadable: {error}")
        else:
            found += [(path, entry)] if entry.session not in failed else []
    return found


def _remember(session: "Session", entry: Entry, seconds: float) -> None:
    from datetime import UTC, datetime

    session.remember(
        entry.messages or {"role": entry.role, "content": entry.text},
        request_id=entry.request_id,
        thread=entry.thread,
        source=entry.source,
        occurred_at=datetime.fromtimestamp(entry.said_at, UTC),
        timeout=seconds,
    )


def described(queue: Queue) -> str:
    """Returns how many turns wait, since when, and which were refused and why."""
    waiting, refused = queue.waiting(), queue.refused()
    lines = [f"{len(waiting)} turn(s) wait"]
    if waiting:
        lines[0] += f", the oldest since {_since(waiting[0])}"
    lines += [f"refused: {path}: {queue.reason(path)}" for path in refused]
    if refused:
        lines.append("after mending the cause: palimpsest-hook flush --refused")
    return "\n".join(lines)


def _since(path: Path) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(int(path.name.split("-")[0]) / 1e9, UTC)
    return moment.isoformat(timespec="seconds")
