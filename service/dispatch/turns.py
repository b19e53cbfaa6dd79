"""Chooses the work classes for the next free slots of a worker.

Stride scheduling (Waldspurger, 1995): each work class has a pass, which rises with each item by the
inverse of its weight, and the work class with the least pass is next. So each work class gets its
share of the slots, however much waits in another, and the others get what it leaves.
"""

from collections.abc import Iterable, Mapping, Sequence

from storage.memories.queue import NOBODY, Bound, QueueBatch, QueueScan, WorkClass

#: Shares of the slots while all work classes have work.
WEIGHTS: Mapping[WorkClass, int] = {
    WorkClass.WANTED: 8,
    WorkClass.ANSWERS: 6,
    WorkClass.RECENT: 4,
    WorkClass.BACKLOG: 4,
    WorkClass.INDEX: 2,
    WorkClass.SCHEMAS: 1,
    WorkClass.REMOVALS: 1,
}
#: Work classes for which no client waits; they leave one slot in RESERVED_PLACES to the others.
PATIENT = frozenset({WorkClass.RECENT, WorkClass.BACKLOG, WorkClass.INDEX, WorkClass.REMOVALS})
RESERVED_PLACES = 8


class Turns:
    """Schedules the slots of one worker."""

    def __init__(self, concurrency: int) -> None:
        """`concurrency` is the number of slots."""
        self._patient_places = concurrency - concurrency // RESERVED_PLACES
        self._pass = dict.fromkeys(WEIGHTS, 0.0)
        self._after = dict.fromkeys(WEIGHTS, NOBODY)

    def looks(self, free: int, claimed: Iterable[WorkClass]) -> Sequence[QueueScan]:
        """Returns the work classes to query for `free` slots, in their order, within `bound`.

        `claimed` has the work class of each item that is worked on.
        """
        patient = self._patient(claimed)
        passes = dict(self._pass)
        shares = dict.fromkeys(WEIGHTS, 0)
        order: list[WorkClass] = []
        for _ in range(free):
            work_classes = [
                work_class for work_class in WEIGHTS if patient > 0 or work_class not in PATIENT
            ]
            work_class = min(work_classes, key=lambda one: passes[one])
            passes[work_class] += 1 / WEIGHTS[work_class]
            patient -= work_class in PATIENT
            shares[work_class] += 1
            if work_class not in order:
                order.append(work_class)
        looks = [
            QueueScan(
                work_class=work_class, quota=shares[work_class], after=self._after[work_class]
            )
            for work_class in order
        ]
        # What these leave is for any work class, those first for which a client waits.
        looks += [
            QueueScan(work_class=work_class, quota=free, after=self._after[work_class])
            for work_class in WEIGHTS
        ]
        return looks

    def bound(self, claimed: Iterable[WorkClass]) -> Bound:
        """Returns how many items of the patient work classes may be claimed."""
        return Bound(work_classes=PATIENT, items=max(self._patient(claimed), 0))

    def _patient(self, claimed: Iterable[WorkClass]) -> int:
        return self._patient_places - sum(work_class in PATIENT for work_class in claimed)

    def count(self, taken: QueueBatch) -> None:
        """Accounts for what a query claimed."""
        self._after.update(taken.ended)
        came = {work_class for work_class, _ in taken.items}
        for work_class, _ in taken.items:
            self._pass[work_class] += 1 / WEIGHTS[work_class]
        if came:
            # A work class without work saves nothing up.
            least = min(self._pass[work_class] for work_class in came)
            for work_class in taken.ended.keys() - came:
                self._pass[work_class] = max(
                    self._pass[work_class], least - 1 / WEIGHTS[work_class]
                )
