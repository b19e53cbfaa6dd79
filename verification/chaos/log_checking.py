"""Checks the final log of a session against what its clients saw of it."""

from array import array
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf

from verification.chaos.history import (
    Acked,
    FinalSession,
    Opened,
    ReadLog,
    Refused,
    Requested,
    Sent,
)
from verification.chaos.model import Log
from verification.chaos.promises import Findings
from verification.chaos.registers import Register


@dataclass(slots=True)
class _Producer:
    """What was seen of a producer."""

    #: When each sequence was first sent, from 1 on; infinite where it never was.
    sent: "array[float]" = field(default_factory=lambda: array("d"))
    #: The highest epoch that each was sent under.
    epochs: "array[int]" = field(default_factory=lambda: array("q"))
    #: What each opening said: the last sequence that was durable then, and the epoch.
    begun: list[tuple[int, int]] = field(default_factory=list)
    #: Sequences that were sent for whichever head.
    is_free: bytearray = field(default_factory=bytearray)
    #: (first, last, expected head) of those that were sent for one.
    expecting: list[tuple[int, int, int]] = field(default_factory=list)
    last: Register = field(default_factory=Register)
    #: By epoch: when it was opened first, and when something was last sent that was acked.
    opened: dict[int, float] = field(default_factory=dict)
    acked: dict[int, tuple[float, int]] = field(default_factory=dict)
    #: By client: what it sent since its last ack: (first, last, epoch, time).
    under_way: dict[str, deque[tuple[int, int, int, float]]] = field(
        default_factory=lambda: defaultdict(deque)
    )


class LogChecker:
    """Checks one session's log. `log` is what is there in the end."""

    def __init__(self, session: FinalSession, findings: Findings) -> None:
        self.name = session.name
        self.log = Log()
        #: Values of the head, by the client that saw them.
        self.heads = Register()
        self._findings = findings
        self._producers: dict[str, _Producer] = defaultdict(_Producer)
        self._load(session)

    def _load(self, session: FinalSession) -> None:
        counted = 0
        for one in session.chunks:
            if one.server_sequence:
                counted += 1
                if one.server_sequence != counted:
                    what = f"position {one.position} is counted {one.server_sequence}"
                    self._found("server-order", f"{what}, {counted} was due")
            if one.position != self.log.head + 1:
                self._found("dense", f"position {one.position} comes behind {self.log.head}")
            if not self.log.add(one.producer, one.sequence):
                last = self.log.producers[one.producer].last
                what = f"{one.producer} {one.sequence} at {one.position} comes behind {last}"
                self._found("producer-order", what)
            if not one.is_intact:
                self._found("intact", f"{one.producer} {one.sequence} at {one.position}")
        if session.head != self.log.head:
            self._found("dense", f"the head is {session.head}, the last one {self.log.head}")
        self._findings.count("chunks", self.log.head)

    def _found(self, promise: str, what: str) -> None:
        self._findings.add(promise, f"session {self.name}: {what}")

    def opened(self, event: Opened, invoked: float) -> None:
        """Records that a producer was opened; it asked for that at `invoked` or later."""
        seen = self._producers[event.producer]
        seen.last.read(event.client, invoked, event.last_sequence)
        seen.last.learn(event.client, event.at, event.last_sequence)
        self.heads.read(event.client, invoked, event.head)
        self.heads.learn(event.client, event.at, event.head)
        seen.begun.append((event.last_sequence, event.epoch))
        seen.opened[event.epoch] = min(event.at, seen.opened.get(event.epoch, inf))
        # A stream ends the one before it: no ack is of that any more.
        seen.under_way.pop(event.client, None)

    def sent(self, event: Sent) -> None:
        """Chunks are under way."""
        seen = self._producers[event.producer]
        first, last = event.first_sequence, event.last_sequence
        missing = last - len(seen.sent)
        if missing > 0:
            seen.sent.extend(array("d", (inf,)) * missing)
            seen.is_free.extend(bytes(missing))
            seen.epochs.extend(array("q", (-1,)) * missing)
        for place in range(first - 1, last):
            if event.at < seen.sent[place]:
                seen.sent[place] = event.at
            if event.epoch > seen.epochs[place]:
                seen.epochs[place] = event.epoch
        if event.expected_head is None:
            seen.is_free[first - 1 : last] = b"\1" * (last - first + 1)
        else:
            seen.expecting.append((first, last, event.expected_head))
        under_way = seen.under_way[event.client]
        if under_way and under_way[-1][2] != event.epoch:
            under_way.clear()
        under_way.append((first, last, event.epoch, event.at))
        self._findings.count("batches")

    def acked(self, event: Acked) -> None:
        """Something is durable."""
        seen = self._producers[event.producer]
        self._findings.count("acks")
        where = self.log.position(event.producer, event.sequence)
        told = f"{event.client} was told that {event.producer} {event.sequence} is at"
        if where is None:
            promise = "acked-through" if self._is_there(event) else "acked-kept"
            self._found(promise, f"{told} {event.position}; it is not there")
        elif where != event.position:
            self._found("acked-kept", f"{told} {event.position}; it is at {where}")
        seen.last.learn(event.client, event.at, event.sequence)
        self.heads.learn(event.client, event.at, event.position)
        self._note_epoch(seen, event)

    def requested(self, event: Requested) -> None:
        """Records that a request is stored."""
        seen = self._producers[event.producer]
        self._findings.count("requests")
        due = event.first_position
        for sequence in range(event.first_sequence, event.last_sequence + 1):
            where = self.log.position(event.producer, sequence)
            if where != due:
                what = f"{event.producer} {sequence} is at {where}, {event.client} was told {due}"
                self._found("request", what)
            due += 1
        if event.position != due - 1:
            told = f"{event.client} was told positions {event.first_position} to {event.position}"
            self._found("request", f"{told} of {event.producer} {event.first_sequence}")
        seen.last.learn(event.client, event.at, event.last_sequence)
        self.heads.learn(event.client, event.at, event.position)
        seen.under_way.pop(event.client, None)

    def _is_there(self, event: Acked) -> bool:
        """Returns whether the chunk itself is there, though some of those before it are not."""
        return self.log.place(event.position) == (event.producer, event.sequence)

    def _note_epoch(self, seen: _Producer, event: Acked) -> None:
        under_way = seen.under_way[event.client]
        sent: tuple[int, float] | None = None
        while under_way and under_way[0][0] <= event.sequence:
            first, last, epoch, at = under_way[0]
            if first <= event.sequence <= last and sent is None:
                sent = epoch, at
            if last > event.sequence:
                break
            under_way.popleft()
        if sent is not None:
            epoch, at = sent
            seen.acked[epoch] = max(seen.acked.get(epoch, (-inf, 0)), (at, event.sequence))

    def refused(self, event: Refused) -> None:
        """Records that the service refused an append."""
        self._findings.count("refused")
        if event.reason in ("SEQUENCE_CONTENT_CHANGED", "REQUEST_CONTENT_CHANGED"):
            self._found("unchanged", f"{event.name} {event.sequence}, sent by {event.client}")
        # What was refused is not under way any more, and neither is what was sent after it.
        self._producers[event.name].under_way.pop(event.client, None)

    def read_log(self, event: ReadLog) -> None:
        """Records that a page was read."""
        self._findings.count("pages")
        self.heads.read(event.client, event.invoked, event.head)
        self.heads.learn(event.client, event.returned, event.head)
        expected = max(event.from_position, 1) if event.from_position else None
        for position, producer, sequence in event.chunks:
            if expected is not None and position != expected:
                self._found("page", f"{event.client} read {position} where {expected} was due")
            expected = position + 1
            if self.log.place(position) != (producer, sequence):
                what = f"{event.client} read {producer} {sequence} at {position}; there is"
                self._found("page", f"{what} {self.log.place(position)}")
        if expected is not None and expected - 1 > max(event.head, event.from_position - 1):
            self._found("page", f"{event.client} read beyond the head, {event.head}")
        if not event.chunks and 0 < event.from_position <= event.head:
            what = f"{event.client} found nothing from {event.from_position} to {event.head}"
            self._found("page", what)

    def finish(self) -> None:
        """Checks what takes all events."""
        for reader, told, known in self.heads.stale():
            self._found("head", f"{reader} was told {told} when {known} was known")
        possible = self._possible()
        for at, head in self.heads.early(possible):
            self._found("no-foresight", f"position {head} was known at {at:.3f}")
        for name, seen in self._producers.items():
            self._finish_producer(name, seen)

    def _possible(self) -> "array[float]":
        """Returns for each position the time when everything up to there had been sent."""
        possible, latest = array("d"), -inf
        for position in range(1, self.log.head + 1):
            producer, sequence = self.log.place(position) or ("", 0)
            seen = self._producers.get(producer)
            at = seen.sent[sequence - 1] if seen and 0 < sequence <= len(seen.sent) else inf
            if at == inf:
                self._found("sent-only", f"{producer} {sequence} at {position}")
            else:
                latest = max(latest, at)
            possible.append(latest)
        return possible

    def _finish_producer(self, name: str, seen: _Producer) -> None:
        for reader, told, known in seen.last.stale():
            self._found("opened", f"{reader} was told {name} {told} when {known} was acked")
        for at, sequence in seen.last.early(seen.sent):
            self._found("no-foresight", f"{name} {sequence} was known at {at:.3f}")
        for epoch, (at, sequence) in seen.acked.items():
            if any(e > epoch and opened < at for e, opened in seen.opened.items()):
                what = f"{name} {sequence} of epoch {epoch}, sent at {at:.3f}, was acked"
                self._found("fenced", what)
        self._check_epochs(name, seen)
        self._check_expected(name, seen)

    def _check_epochs(self, name: str, seen: _Producer) -> None:
        """Checks that what an opening did not find was written under its epoch, or a higher one."""
        begun, at, due = sorted(seen.begun), 0, -1
        known = self.log.producers.get(name)
        for sequence in range(1, (known.last if known else 0) + 1):
            while at < len(begun) and begun[at][0] < sequence:
                due = max(due, begun[at][1])
                at += 1
            sent = seen.epochs[sequence - 1] if sequence <= len(seen.epochs) else due
            if sent < due:
                what = f"{name} {sequence} was sent under {sent} at most; {due} had begun before"
                self._found("fenced", what)

    def _check_expected(self, name: str, seen: _Producer) -> None:
        wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for first, last, head in seen.expecting:
            for sequence in range(first, last + 1):
                if not seen.is_free[sequence - 1]:
                    # Those before it may have been sent already: then it is the first.
                    wanted[sequence].append((head + 1, head + 1 + sequence - first))
        for sequence, places in wanted.items():
            where = self.log.position(name, sequence)
            if where is not None and not any(low <= where <= high for low, high in places):
                heads = sorted({low - 1 for low, _ in places})
                self._found("expected-head", f"{name} {sequence} is at {where}, not behind {heads}")
