"""Turns of work classes: shares of a worker's places, and what each work class leaves the
others.
"""

from collections import Counter
from uuid import UUID

import pytest

from service.dispatch.turns import PATIENT, WEIGHTS, Turns
from service.domain.values.work_items import WorkItem, WorkKind
from storage.memories.queue import NOBODY, QueueBatch, WorkClass

ITEM = WorkItem(kind=WorkKind.MEMORY, tenant_id=NOBODY, session_key=NOBODY, item_id=NOBODY)


def serve(turns: Turns, free: int, waiting: Counter[WorkClass]) -> list[WorkClass]:
    """Returns the classes of the work that a look finds, where so much waits in each."""
    found: list[WorkClass] = []
    ended: dict[WorkClass, UUID] = {}
    bound = turns.bound(())
    for look in turns.looks(free, ()):
        if len(found) == free:
            break
        ended[look.work_class] = NOBODY
        count = min(look.quota, waiting[look.work_class], free - len(found))
        if look.work_class in bound.work_classes:
            count = min(count, bound.items - sum(work_class in PATIENT for work_class in found))
        found += [look.work_class] * count
        waiting[look.work_class] -= count
    turns.count(
        QueueBatch(items=[(work_class, ITEM) for work_class in found], ended=ended, more=False)
    )
    return found


@pytest.mark.parametrize("free", [1, 3, 16])
def test_lanes_that_all_have_work_get_their_shares(free: int) -> None:
    turns, served = Turns(concurrency=100), Counter[WorkClass]()
    rounds = sum(WEIGHTS.values()) * 8
    waiting = dict.fromkeys(WEIGHTS, 1000)
    while served.total() < rounds:
        served.update(serve(turns, free, Counter(waiting)))
    for work_class, weight in WEIGHTS.items():
        assert abs(served[work_class] - weight * served.total() / sum(WEIGHTS.values())) <= free


@pytest.mark.parametrize(
    "work_class", [work_class for work_class in WEIGHTS if work_class not in PATIENT]
)
def test_a_work_class_that_is_alone_gets_all_places(work_class: WorkClass) -> None:
    turns = Turns(concurrency=16)
    assert serve(turns, 16, Counter({work_class: 100})) == [work_class] * 16


def test_work_without_a_waiting_client_leaves_slots_free() -> None:
    turns = Turns(concurrency=16)
    assert len(serve(turns, 16, Counter({WorkClass.BACKLOG: 100}))) == 14
    claimed = [WorkClass.BACKLOG] * 14
    assert turns.bound(claimed).items == 0
    assert len(serve(Turns(concurrency=1), 1, Counter({WorkClass.BACKLOG: 100}))) == 1


def test_who_had_nothing_to_do_saves_nothing_up() -> None:
    turns = Turns(concurrency=100)
    for _ in range(1000):
        serve(turns, 1, Counter({WorkClass.BACKLOG: 1}))
    everything = Counter(dict.fromkeys(WEIGHTS, 100))
    served = [serve(turns, 1, everything)[0] for _ in range(sum(WEIGHTS.values()))]
    assert WorkClass.BACKLOG in served[: 2 * len(WEIGHTS)]


def test_tenants_have_turns_where_the_last_look_ended() -> None:
    turns, last = Turns(concurrency=1), UUID(int=7)
    turns.count(QueueBatch(items=(), ended={WorkClass.BACKLOG: last}, more=False))
    after = {look.work_class: look.after for look in turns.looks(1, ())}
    assert (after[WorkClass.BACKLOG], after[WorkClass.WANTED]) == (last, NOBODY)
