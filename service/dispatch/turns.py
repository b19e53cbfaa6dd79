"""Turns of the work classes: which work class the next free slots of a worker are for.

Stride scheduling (Waldspurger, 1995): each work class has a pass, which rises with each item by the
inverse of its weight, and the work class with the least pass is next. So each work class gets its
share of the slots, however much waits in another, and what a work class leaves the others have.
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
#: Lanes for which nobody waits at this moment; they leave one slot in so many to the others.
PATIENT = frozenset({WorkClass.RECENT, WorkClass.BACKLOG, WorkClass.INDEX, WorkClass.REMOVALS})
RESERVED_PLACES = 8


class Turns:
    """Of one worker."""

    def __init__(self, concurrency: int) -> None:
        """`concurrency` is how many slots there are."""
        self._patient_places = concurrency - concurrency // RESERVED_PLACES
        self._pass = dict.fromkeys(WEIGHTS, 0.0)
        self._after = dict.fromkeys(WEIGHTS, NOBODY)

    def looks(self, free: int, claimed: Iterable[WorkClass]) -> Sequence[QueueScan]:
        """The work classes to look at for `free` slots, in their order; `claimed` has the work
        class of each item that is worked on. With `bound`."""
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
        # What these leave is for whoever has work, those first that somebody waits for.
        looks += [
            QueueScan(work_class=work_class, quota=free, after=self._after[work_class])
            for work_class in WEIGHTS
        ]
        return looks

    def bound(self, claimed: Iterable[WorkClass]) -> Bound:
        """How many items may be taken of the work classes for which nobody waits."""
        return Bound(work_classes=PATIENT, items=max(self._patient(claimed), 0))

    def _patient(self, claimed: Iterable[WorkClass]) -> int:
        return self._patient_places - sum(work_class in PATIENT for work_class in claimed)

    def count(self, taken: QueueBatch) -> None:
        """Takes down what a look brought."""
        self._after.update(taken.ended)
        came = {work_class for work_class, _ in taken.items}
        for work_class, _ in taken.items:
            self._pass[work_class] += 1 / WEIGHTS[work_class]
        if came:
            # Who had nothing to do saves nothing up.
            least = min(self._pass[work_class] for work_class in came)
            for work_class in taken.ended.keys() - came:
                self._pass[work_class] = max(
                    self._pass[work_class], least - 1 / WEIGHTS[work_class]
                )
