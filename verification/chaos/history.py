"""A history: the events that clients and the model server saw, and the final state.

Clients write an event down before they send and after a reply, one JSON line each,
so that a client that is killed leaves what it knew. The checker reads events in any order
of files; within one client they are in the order in which they happened. A client is one
thread of work: it has one stream of a producer open at a time, so a process that does
several things at once is several clients. Times are `time.monotonic()` in seconds, the same
clock for all processes of the machine.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A producer was opened, and the service returned its last sequence and the head."""

    client: str
    session: str
    producer: str
    epoch: int
    #: Highest sequence that was durable then.
    last_sequence: int
    head: int
    #: When it was asked for; None: after the client's last event.
    invoked: float | None = None
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Chunks are about to be sent; what they say is `workload.chunk_text` of their place."""

    client: str
    session: str
    producer: str
    epoch: int
    first_sequence: int
    last_sequence: int
    #: The head that the log was to have, for a single append; None: whichever it has.
    expected_head: int | None = None
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Acked:
    """Everything of the producer up to `sequence` is durable, and `sequence` at `position`."""

    client: str
    session: str
    producer: str
    sequence: int
    position: int
    token: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested:
    """A request without a producer is stored, by this try or one before, all of it together."""

    client: str
    session: str
    #: The producer whose sequences these are (`workload.owner`).
    producer: str
    first_sequence: int
    last_sequence: int
    first_position: int
    position: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """An append, or an edit, that the service said no to; `sequence` is 0 for an edit."""

    client: str
    session: str
    #: The producer, or the memory.
    name: str
    sequence: int
    #: ErrorReason of the error, or the gRPC code where it has none.
    reason: str
    #: The mark of an edit; empty for whatever else was refused.
    mark: str = ""
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadLog:
    """A page of the log, while others write."""

    client: str
    session: str
    #: Where the page was to begin; 0 and 1 are the beginning.
    from_position: int = 0
    #: (position, producer, sequence), as they came.
    chunks: list[tuple[int, str, int]]
    head: int
    invoked: float
    returned: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMemory:
    """A memory was read."""

    client: str
    session: str
    memory: str
    #: The position of the token that the read was given; 0 without one.
    wanted_position: int
    revision: int
    applied_position: int
    #: SHA-256 of its value as canonical JSON; empty for memories without one.
    digest: str
    invoked: float
    returned: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A watch ended, was cut, or has streamed this much so far."""

    client: str
    session: str
    memory: str
    #: The watch began after this revision.
    after_revision: int
    #: (revision, applied_position), as they came; None for the position of one that read nothing.
    told: list[tuple[int, int | None]]
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """An edit by hand: `{"$.edits.<mark>": "<mark>"}` was added to a PRISM memory.

    Written before it is sent, with `returned` 0, and again after what came back: by this
    event, or by Refused with the mark. So an edit of a client that was killed is known.
    """

    client: str
    session: str
    memory: str
    #: The revision that it was made for; 0: whichever there is.
    expected_revision: int
    mark: str
    #: What it made; 0: unknown (see Refused for those that made none).
    revision: int
    invoked: float
    returned: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RolledBack:
    """A memory was set back to an earlier revision, by hand; written twice as Edited."""

    client: str
    session: str
    memory: str
    #: The revision that it was made for; 0: whichever there is.
    expected_revision: int
    #: Whose state came back.
    restored_revision: int
    #: What it made; 0: unknown.
    revision: int
    invoked: float
    returned: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A question, and what became of it."""

    client: str
    session: str
    memory: str
    answer_id: str
    #: "done", "failed" with a reason, or "unknown".
    status: str
    #: First and last position of each place that the answer cites.
    citations: list[tuple[int, int]]
    head: int
    invoked: float
    returned: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCalled:
    """A request that the model server got; written by it, before it answers."""

    #: Counts all requests; every reply that is whole has it in its text as `[s<serial>]`,
    #: before whatever it repeats of other replies.
    serial: int
    #: SHA-256 of the messages.
    prompt: str
    #: "replied", or the fault: "429", "500", "dropped", "truncated", "malformed", …
    outcome: str
    #: Whether a provider would have taken money: a reply was written, however broken.
    is_paid: bool
    #: The process that asked, where its key says so: by its name in a campaign, by its id in a
    #: sweep.
    asker: str = ""
    #: Whether the reply is one that can be used, however strange it is.
    is_whole: bool = True
    #: How long the reply took.
    seconds: float = 0.0
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLeft:
    """The caller of the model had gone when its reply was to be sent."""

    serial: int
    at: float


Event = (
    Opened
    | Sent
    | Acked
    | Requested
    | Refused
    | ReadLog
    | ReadMemory
    | Watched
    | Edited
    | RolledBack
    | Asked
    | ModelCalled
    | ClientLeft
)
_EVENTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Opened, Sent, Acked, Requested, Refused, ReadLog),
        *(ReadMemory, Watched, Edited, RolledBack, Asked, ModelCalled, ClientLeft),
    )
}


class Writer:
    """Writes events to a file, each before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, event: Event) -> None:
        """Adds an event; it outlives a kill of this process, not of the machine."""
        line = json.dumps([type(event).__name__, asdict(event)], separators=(",", ":"))
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read(paths: Iterable[Path]) -> Iterator[Event]:
    """Yields the events of several files, one file after the other.

    The last line of a writer that was killed may be half a line: it is left out.
    """
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    kind, values = json.loads(line)
                    yield _EVENTS[kind](**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalChunk:
    """A chunk as it is in the end."""

    position: int
    #: Whose it is, and its place in that one's count (`workload.owner`).
    producer: str
    sequence: int
    #: The service's count for one that was appended without a producer; else 0.
    server_sequence: int = 0
    #: Whether it says what `workload.chunk_text` says of its place.
    is_intact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalRevision:
    """A revision of a memory as it is in the end."""

    revision: int
    #: None for the first one, and where only the API was asked, which does not say it.
    parent: int | None
    from_position: int
    to_position: int
    #: As in the proto: step, build, seal, episode, fold, consolidation, edit, skip, …
    kind: str
    #: The epoch of the worker that made it; 0 where only the API was asked.
    epoch: int
    #: For a rollback: whose state came back.
    restored_revision: int | None = None
    #: What the service keeps as SHA-256 of the value, in hex; empty where it was not asked.
    digest: str = ""
    #: (path, op, value as JSON or None), in their order. PRISM only.
    amendments: tuple[tuple[str, str, str | None], ...] = ()
    #: The value that the service says the memory had then, as canonical JSON; None where it
    #: was not asked. PRISM only.
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalNode:
    """A node of a summary tree as it is in the end."""

    level: int
    #: From 0 on, within its level.
    index: int
    #: First and last position whose text is in it, in whole or in part: it begins so many
    #: characters into the first, and ends before so many of the last, 0 for its end.
    first_position: int
    first_offset: int = 0
    last_position: int
    last_offset: int = 0
    #: Indexes of its children, on the level below.
    children: tuple[int, ...] = ()
    #: All that its summary has, in their order.
    serials: tuple[int, ...] = ()
    revision: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalVector:
    """A state vector as it is in the end."""

    revision: int
    #: 1: of chunks; 2 and up: of vectors of the level below.
    level: int
    #: It covers the positions (after, to]; what is new in it is at (from, to].
    after_position: int
    from_position: int
    to_position: int
    #: Revisions of the vectors that an episode was made from.
    children: tuple[int, ...] = ()
    #: All that its text has, in their order.
    serials: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalMemory:
    """A memory as it is in the end."""

    name: str
    #: prism, tree or state.
    kind: str
    status: str
    revision: int
    applied_position: int
    #: From 0 on; gone through twice, so that they can be read from a file.
    revisions: Iterable[FinalRevision]
    nodes: tuple[FinalNode, ...] = ()
    vectors: tuple[FinalVector, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalSession:
    """A session as it is in the end."""

    name: str
    head: int
    #: In order of position; read when they are wanted, since there may be a million.
    chunks: Iterable[FinalChunk]
    memories: tuple[FinalMemory, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """A call as the ledger has it."""

    session: str
    #: The reply, or None for a call that failed. Its serial is the first one in it.
    reply: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Final:
    """Everything that is there in the end, when no process writes any more."""

    sessions: tuple[FinalSession, ...]
    ledger: Iterable[LedgerRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A broken promise."""

    #: Which one, a short name as in docs/guides/proof.md.
    promise: str
    #: What was found, with the names that it takes to look for it.
    what: str
