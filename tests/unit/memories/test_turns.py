"""Turns: the cycle of work classes, slots that stay free, and which tenant gives way."""

from collections import Counter
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dispatch.turns import CYCLE, PATIENT, WEIGHTS, Turns, cycle_of, gives_way
from service.domain.values.work_items import WorkItem, WorkKind
from storage.memories.queue import NOBODY, ClaimedItem, QueueBatch, WorkClass

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def test_each_work_class_has_its_share_of_the_cycle() -> None:
    assert Counter(CYCLE) == WEIGHTS


@given(st.dictionaries(st.sampled_from(WorkClass), st.integers(1, 9), min_size=1))
def test_the_places_of_a_work_class_are_spread_over_the_cycle(
    weights: dict[WorkClass, int],
) -> None:
    cycle, total = cycle_of(weights), sum(weights.values())
    for work_class, weight in weights.items():
        for end in range(1, total + 1):
            due = end * weight / total
            assert abs(cycle[:end].count(work_class) - due) < len(weights)


@pytest.mark.parametrize("work_class", WorkClass)
def test_a_work_class_of_a_full_queue_waits_for_a_part_of_the_cycle(work_class: WorkClass) -> None:
    twice = [*CYCLE, *CYCLE]
    places = [place for place, one in enumerate(twice) if one is work_class]
    gaps = [after - before for before, after in pairwise(places)]
    assert max(gaps) <= 2 * len(CYCLE) // WEIGHTS[work_class]


def test_work_without_a_waiting_client_leaves_slots_free() -> None:
    turns = Turns(concurrency=16)
    assert turns.bound(()).items == 14
    assert turns.bound([WorkClass.BACKLOG] * 13 + [WorkClass.WANTED] * 3).items == 1
    assert turns.bound([WorkClass.INDEX] * 14).items == 0
    assert turns.bound(()).work_classes == PATIENT
    assert Turns(concurrency=1).bound(()).items == 1


def test_the_tenant_that_had_its_turn_is_the_last_of_its_equals() -> None:
    turns = Turns(concurrency=1)
    assert turns.scan(1, ()).after == NOBODY
    turns.count(QueueBatch(items=(), ended=B, more=True))
    assert turns.scan(1, ()).after == B
    item = WorkItem(kind=WorkKind.MEMORY, tenant_id=A, session_key=NOBODY, item_id=NOBODY)
    found = ClaimedItem(work_class=WorkClass.BACKLOG, item=item, charged=1.0)
    turns.count(QueueBatch(items=[found], ended=C, more=False))
    assert turns.scan(1, ()).after == A


@pytest.mark.parametrize(
    ("running", "tenant", "others"),
    [
        # A tenant without a slot goes first.
        ([A], A, {A}),
        ([A, A, A], A, {A}),
        # Two with as many slots, or one slot more, keep them.
        ([A, B], A, {A, B}),
        ([A, B, A], A, {A, B}),
        # One with two slots less gets one.
        ([B, A, A, A], A, {A}),
        ([A, B, B, C, B, B, C, C], B, {B, C}),
    ],
)
def test_the_tenant_with_the_most_slots_gives_way(
    running: list[UUID], tenant: UUID, others: set[UUID]
) -> None:
    assert gives_way(running) == (tenant, list(dict.fromkeys(o for o in running if o in others)))


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=16))
def test_giving_way_ends_and_leaves_slots_even(running: list[UUID]) -> None:
    """All three have work without end: each slot that is given up goes to one that may have it."""
    for _ in range(64):
        tenant, others = gives_way(running)
        waiting = {A, B, C} - set(others)
        if not waiting:
            break
        running.remove(tenant)
        running.append(min(waiting, key=running.count))
    slots = Counter(dict.fromkeys((A, B, C), 0))
    slots.update(running)
    assert max(slots.values()) - min(slots.values()) <= 1


def test_more_tenants_are_considered_while_none_of_some_has_work_to_claim() -> None:
    turns = Turns(concurrency=1)
    assert not turns.scan(1, ()).is_wide
    turns.count(QueueBatch(items=(), ended=B, more=True))
    assert turns.scan(1, ()).is_wide
    item = WorkItem(kind=WorkKind.MEMORY, tenant_id=A, session_key=A, item_id=A)
    claimed = ClaimedItem(work_class=WorkClass.BACKLOG, item=item, charged=0)
    turns.count(QueueBatch(items=[claimed], ended=B, more=True))
    assert not turns.scan(1, ()).is_wide
