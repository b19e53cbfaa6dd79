"""Calls that were paid for in vain: each must have had a fault that explains it.

A reply is paid for once it is written by the model, and useful once it is in the ledger.
In between it is with one executor, for milliseconds as a rule. If it is lost there the same
call is made and paid for again, and no executor that is alive and has its database may lose
one. The model server records the caller (each executor has a key of its own), the
campaign what was done to whom.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from verification.chaos import workload
from verification.chaos.history import ClientLeft, Event, LedgerRow, ModelCalled, Violation
from verification.chaos.repeats import LOSES_GROUP, LOSES_ONE

#: How long an executor may take to store a reply when nothing keeps it, on a busy machine.
STORE_SECONDS = 3.0
#: A request may lie so long at the model server before it is read, and its executor be dead by
#: then. The next executor of that name is not there so soon.
UNREAD_SECONDS = 0.25
#: A connection that was ended is there again after so long.
AGAIN_SECONDS = 0.3
#: Points between a model's reply and its row: an executor that raises there loses it, and what
#: shared its transaction.
LOSING_POINTS = (LOSES_ONE, *LOSES_GROUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Harm:
    """A time in which executors could not work, or not get at the database."""

    #: What was done, or the fail point.
    what: str
    #: The process that it was done to; empty: all, or unknown.
    process: str = ""
    #: Times of `time.monotonic()`.
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """The outcomes of model calls."""

    #: Replies that were paid for, however broken.
    paid: int
    #: How many replies were whole and are not in the ledger.
    lost: int
    #: What explains them, and how many.
    explained: dict[str, int]
    #: Those that nothing explains.
    violations: tuple[Violation, ...]

    def told(self) -> dict[str, Any]:
        """Returns the outcomes as a result has them."""
        return {
            "calls_paid": self.paid,
            "calls_paid_in_vain": self.lost,
            "calls_paid_in_vain_percent": round(100 * self.lost / max(self.paid, 1), 2),
            "calls_explained": self.explained,
        }


class Judge:
    """Knows what was done to executors; `ends` are the ends of each process, in their order."""

    def __init__(
        self, harms: Sequence[Harm], ends: Mapping[str, Sequence[float]], lease_seconds: float
    ) -> None:
        self._harms = sorted(harms, key=lambda one: one.begin)
        self._ends = ends
        self._lease_seconds = lease_seconds
        #: Calls whose reply found no client.
        self._left: set[int] = set()

    def spending(self, events: Iterable[Event], ledger: Iterable[LedgerRow]) -> Spending:
        """Looks at all calls of a run."""
        kept = {int(found[1]) for row in ledger if (found := _serial(row))}
        calls: dict[str, list[ModelCalled]] = defaultdict(list)
        paid = lost = 0
        for event in events:
            if isinstance(event, ClientLeft):
                self._left.add(event.serial)
            elif isinstance(event, ModelCalled) and event.is_paid:
                calls[event.prompt].append(event)
                paid += 1
        explained: Counter[str] = Counter()
        violations = []
        for same in calls.values():
            for place, call in enumerate(same):
                if call.serial in kept or not call.is_whole:
                    continue
                lost += 1
                again = same[place + 1].at if place + 1 < len(same) else inf
                why = self.explanation(call, again)
                if why:
                    explained[why] += 1
                else:
                    violations.append(_violation(call, again))
        return Spending(
            paid=paid, lost=lost, explained=dict(explained), violations=tuple(violations)
        )

    def explanation(self, call: ModelCalled, again: float) -> str:
        """Returns what lost a reply whose call was made again at `again`; or nothing."""
        replied = call.at + call.seconds
        until = min(again, replied + STORE_SECONDS + self._harmed(call, call.at, again))
        sent = call.at - UNREAD_SECONDS
        if any(sent <= end <= until for end in self._ends.get(call.asker, ())):
            return "its executor ended"
        if call.serial in self._left:
            # An executor that lives, and called it off.
            return "nobody waited"
        for one in self._harms:
            if one.what in LOSING_POINTS and one.begin <= until and one.end >= call.at:
                return "failed on purpose"
        if self._harmed(call, call.at - self._lease_seconds, again) >= self._lease_seconds:
            return "lost its lease"
        return ""

    def _harmed(self, call: ModelCalled, begin: float, end: float) -> float:
        """Seconds of this time in which its executor was kept, from harm to harm."""
        end = min(end, call.at + call.seconds + STORE_SECONDS)
        total, at = 0.0, begin
        for one in self._harms:
            if one.begin > end:
                break
            if one.process in ("", call.asker) and one.end > at:
                # What keeps it longer gives it longer.
                end = max(end, one.end + STORE_SECONDS)
                total += one.end - max(one.begin, at)
                at = one.end
        return total


def _serial(row: LedgerRow) -> re.Match[str] | None:
    return workload.SERIAL.search(row.reply or "")


def _violation(call: ModelCalled, again: float) -> Violation:
    then = "" if again == inf else f", and again {again - call.at:.1f} s later"
    what = f"call {call.serial} of {call.asker} was paid at {call.at:.3f}{then}; nothing hit it"
    return Violation(promise="paid-once", what=what)
