"""Calls of tools that a model made, until the program sends what they returned."""

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from service.proxy.turns import ToolUse

_log = structlog.get_logger("palimpsest.proxy")

#: Replies with calls that are kept; the oldest is remembered without its results.
MAX_OPEN = 1000


@dataclass(frozen=True, kw_only=True)
class OpenCalls:
    """The calls of one reply."""

    session: str
    thread: str
    #: The ids of the calls.
    ids: Collection[str]
    #: What the model said before them.
    thought: str
    #: Empty: they are remembered, and their results come alone.
    uses: Sequence[ToolUse]
    #: When they were made, in seconds since 1970.
    since: float

    @property
    def name(self) -> str:
        """The name of its file; providers' ids may be the same in two conversations."""
        named = json.dumps([self.session, self.thread, sorted(self.ids)])
        return hashlib.sha256(named.encode()).hexdigest()


class CallsInProgress:
    """The calls of replies in the order in which they were made, each in a file of its own.

    Threads may share it.
    """

    def __init__(self, folder: Path) -> None:
        """Reads what an earlier process left. The folder is made by the first call."""
        self._folder = folder
        self._lock = threading.Lock()
        found = [one for one in map(_read, folder.glob("*.json")) if one is not None]
        found.sort(key=lambda one: one.since)
        self._open = OrderedDict((one.name, one) for one in found)
        #: Another proxy may still run, and remember some of these.
        self._loaded = set(self._open)

    def add(self, made: OpenCalls) -> None:
        """Adds the calls of a reply, which survive this process afterwards. Raises OSError."""
        with self._lock:
            # Without a disk they are known to this process.
            self._open[made.name] = made
            self._open.move_to_end(made.name)
            self._write(made)

    def find(self, session: str, thread: str, ids: Collection[str]) -> OpenCalls | None:
        """Returns the calls that results belong to; None: no reply here has made them."""
        with self._lock:
            for made in reversed(self._open.values()):
                if (made.session, made.thread) == (session, thread) and set(ids) & set(made.ids):
                    return made
        return None

    def remove(self, made: OpenCalls) -> None:
        """Removes calls that are remembered with their results. Raises OSError."""
        with self._lock:
            self._open.pop(made.name, None)
            self._path(made.name).unlink(missing_ok=True)

    def expired(self, before: float) -> list[OpenCalls]:
        """Returns calls without results that were made before a time, or are too many."""
        with self._lock:
            for name in self._loaded & self._open.keys():
                if not self._path(name).exists():
                    del self._open[name]
            surplus = len(self._open) - MAX_OPEN
            return [
                one
                for number, one in enumerate(self._open.values())
                if number < surplus or (one.uses and one.since < before)
            ]

    def give_up(self, made: OpenCalls) -> None:
        """Marks calls that are remembered without results. Raises OSError.

        They stay known while there is room, so that results that come later are not remembered
        with them again.
        """
        if len(self._open) > MAX_OPEN:
            self.remove(made)
            return
        with self._lock:
            if made.name in self._open:
                self._open[made.name] = replace(made, thought="", uses=())
                self._write(self._open[made.name])

    def _write(self, made: OpenCalls) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(made.name)
        new = path.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(made), file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _read(path: Path) -> OpenCalls | None:
    try:
        given = json.loads(path.read_bytes())
        uses = [ToolUse(**one) for one in given.pop("uses")]
        return OpenCalls(**given, uses=uses)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("a file of open calls is left out", file=path.name, kind=type(error).__name__)
        return None
