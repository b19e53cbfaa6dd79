"""Checks whether a history and the final state keep the promises.

It knows nothing of the service but what the guides promise, and what `model` makes of it.
Time and room are linear: a million chunks take seconds, since chunks are read from the
final log one by one and kept as numbers.
"""

from collections import Counter
from collections.abc import Iterable

from verification.chaos import workload
from verification.chaos.history import (
    Acked,
    Asked,
    ClientLeft,
    Edited,
    Event,
    Final,
    LedgerRow,
    ModelCalled,
    Opened,
    ReadLog,
    ReadMemory,
    Refused,
    Requested,
    RolledBack,
    Sent,
    Watched,
)
from verification.chaos.log_checking import LogChecker
from verification.chaos.memory_checking import MemoryChecker
from verification.chaos.promises import Findings, Report


def check(events: Iterable[Event], final: Final, *, drained: bool = True) -> Report:
    """Returns what is wrong with a history, and how much was checked.

    Each violation names its promise (`promises.PROMISES`); a clean report has none.
    `drained`: all work had time to finish before `final` was read, so that a memory that is
    behind, or has stalled, is a violation.
    """
    checker = _Checker(final)
    for event in events:
        checker.take(event)
    return checker.finish(final.ledger, drained=drained)


class _Checker:
    """All sessions, and the calls of the model."""

    def __init__(self, final: Final) -> None:
        self._findings = Findings()
        self._logs = {one.name: LogChecker(one, self._findings) for one in final.sessions}
        self._memories = {
            (session.name, memory.name): MemoryChecker(
                session.name, memory, self._logs[session.name].log, self._findings
            )
            for session in final.sessions
            for memory in session.memories
        }
        #: When each client wrote its last event down.
        self._last: dict[str, float] = {}
        self._called: set[int] = set()
        self._paid: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Looks at an event."""
        match event:
            case ModelCalled():
                self._model_called(event)
            case ClientLeft():
                # Says what a call cost whom, and nothing of what is there.
                pass
            case ReadMemory() | Watched() | Edited() | RolledBack() | Asked():
                self._take_of_memory(event)
            case Refused():
                self._refused(event)
            case _:
                self._take_of_log(event)

    def _take_of_log(self, event: Opened | Sent | Acked | Requested | ReadLog) -> None:
        log = self._log(event.session)
        if log is None:
            return
        match event:
            case Opened():
                since = self._last.get(event.client, 0.0)
                log.opened(event, since if event.invoked is None else event.invoked)
            case Sent():
                log.sent(event)
            case Acked():
                log.acked(event)
            case Requested():
                log.requested(event)
            case ReadLog():
                log.read_log(event)
        self._note_time(event.client, event.returned if isinstance(event, ReadLog) else event.at)

    def _log(self, session: str) -> LogChecker | None:
        log = self._logs.get(session)
        if log is None:
            self._findings.add("kept", f"session {session} is not there")
        return log

    def _take_of_memory(self, event: ReadMemory | Watched | Edited | RolledBack | Asked) -> None:
        memory, log = self._memory(event.session, event.memory), self._log(event.session)
        if memory is None or log is None:
            return
        match event:
            case ReadMemory():
                memory.read(event)
                log.heads.learn(event.client, event.returned, event.applied_position)
            case Watched():
                memory.watched(event)
                read = [position for _, position in event.told if position is not None]
                for position in read[-1:]:
                    log.heads.learn(event.client, event.at, position)
            case Edited():
                memory.edited(event)
            case RolledBack():
                memory.rolled_back(event)
            case Asked():
                self._asked(event, log)
        self._note_time(event.client, event.at if isinstance(event, Watched) else event.returned)

    def _note_time(self, client: str, at: float) -> None:
        self._last[client] = max(at, self._last.get(client, 0.0))

    def _memory(self, session: str, name: str) -> MemoryChecker | None:
        memory = self._memories.get((session, name))
        if memory is None:
            self._findings.add("kept", f"memory {session}/{name} is not there")
        return memory

    def _refused(self, event: Refused) -> None:
        if event.sequence:
            log = self._log(event.session)
            if log is not None:
                log.refused(event)
            return
        memory = self._memory(event.session, event.name)
        if memory is not None:
            memory.refused(event)

    def _asked(self, event: Asked, log: LogChecker) -> None:
        self._findings.count("answers")
        log.heads.learn(event.client, event.returned, event.head)
        for begin, end in event.citations:
            self._findings.count("citations")
            if not 1 <= begin <= end <= log.log.head:
                what = f"{event.answer_id} cites [{begin}, {end}] of {log.log.head}"
                self._findings.add("citation", what)
            else:
                log.heads.learn(event.client, event.returned, end)

    def _model_called(self, event: ModelCalled) -> None:
        self._findings.count("calls")
        if event.serial in self._called:
            self._findings.add("ledger-once", f"the model counted {event.serial} twice")
        self._called.add(event.serial)
        if event.is_paid:
            self._paid[event.prompt] += 1

    def finish(self, ledger: Iterable[LedgerRow], *, drained: bool) -> Report:
        """Looks at what takes all events."""
        serials = self._check_ledger(ledger)
        for log in self._logs.values():
            log.finish()
        for memory in self._memories.values():
            memory.finish(serials)
            if drained:
                memory.check_drained()
        self._findings.count("paid", self._paid.total())
        # What was spent on prompts that had been paid for, and how many prompts these are.
        repeated = [times - 1 for times in self._paid.values() if times > 1]
        self._findings.count("paid_twice", sum(repeated))
        self._findings.count("prompts_paid_twice", len(repeated))
        return self._findings.report()

    def _check_ledger(self, ledger: Iterable[LedgerRow]) -> set[int]:
        serials: set[int] = set()
        for row in ledger:
            self._findings.count("ledger_rows")
            found = workload.SERIAL.search(row.reply or "")
            if found is None:
                continue
            serial = int(found[1])
            if serial not in self._called:
                self._findings.add("ledger-called", f"a row of {row.session} has [s{serial}]")
            if serial in serials:
                self._findings.add("ledger-once", f"a row of {row.session} has [s{serial}] again")
            serials.add(serial)
        return serials
