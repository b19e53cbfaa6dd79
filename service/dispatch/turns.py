"""Decides how the slots of a worker are shared: between work classes, and between tenants.

Tenants take turns by the seconds of slots that they were charged: in the database, where all
workers see them (`claim_work`). In the turns of a tenant its work classes follow a cycle, in which
each has a number of places. So each work class gets its share, however much waits in another, and
the others get what it leaves.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from storage.memories.queue import NOBODY, Bound, QueueBatch, QueueScan, WorkClass

#: Places in the cycle: the shares of a tenant's turns while all work classes have work.
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


def cycle_of(weights: Mapping[WorkClass, int]) -> Sequence[WorkClass]:
    """Returns a cycle in which each work class has as many places as its weight, spread evenly.

    Stride scheduling (Waldspurger, 1995): each work class has a pass, which rises with each place
    by the inverse of its weight, and the work class with the least pass is next.
    """
    passes = {work_class: 0.5 / weight for work_class, weight in weights.items()}
    cycle: list[WorkClass] = []
    for _ in range(sum(weights.values())):
        work_class = min(passes, key=lambda one: passes[one])
        passes[work_class] += 1 / weights[work_class]
        cycle.append(work_class)
    return cycle


CYCLE = cycle_of(WEIGHTS)


class Turns:
    """Schedules the slots of one worker."""

    def __init__(self, concurrency: int) -> None:
        """`concurrency` is the number of slots."""
        self._patient_places = concurrency - concurrency // RESERVED_PLACES
        self._after = NOBODY
        self._found_nothing = False

    def scan(self, free: int, claimed: Iterable[WorkClass]) -> QueueScan:
        """Returns the scan for `free` slots.

        `claimed` has the work class of each item that is worked on.
        """
        return QueueScan(
            total=free,
            cycle=CYCLE,
            bound=self.bound(claimed),
            after=self._after,
            is_wide=self._found_nothing,
        )

    def bound(self, claimed: Iterable[WorkClass]) -> Bound:
        """Returns how many items of the patient work classes may be claimed."""
        patient = sum(work_class in PATIENT for work_class in claimed)
        return Bound(work_classes=PATIENT, items=max(self._patient_places - patient, 0))

    def count(self, taken: QueueBatch) -> None:
        """Accounts for what a query claimed: its last tenant is the last of its equals.

        After a query that claimed nothing more tenants are considered: many may be put off.
        """
        self._found_nothing = not taken.items
        self._after = taken.items[-1].item.tenant_id if taken.items else taken.ended


def gives_way(running: Iterable[UUID]) -> tuple[UUID, Collection[UUID]]:
    """Returns the tenant that gives way when others wait, and the tenants for which it does not.

    `running` has the tenant of each item that is worked on, one at least. A tenant gives way to one
    without a slot, and to one that has two slots less, so that the two do not give way in turns.
    """
    slots = Counter(running)
    ((tenant, most),) = slots.most_common(1)
    return tenant, [one for one, count in slots.items() if count > most - 2]
