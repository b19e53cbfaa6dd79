"""Turns of lanes: shares of a worker's places, and what each lane leaves the others."""

from collections import Counter
from uuid import UUID

import pytest

from service.dispatch.turns import PATIENT, WEIGHTS, Turns
from service.domain.work import WorkItem, WorkKind
from storage.queue import NOBODY, Lane, Taken

ITEM = WorkItem(kind=WorkKind.MEMORY, tenant_id=NOBODY, session_key=NOBODY, item_id=NOBODY)


def serve(turns: Turns, free: int, waiting: Counter[Lane]) -> list[Lane]:
    """What a look brings where so much waits in each lane."""
    found: list[Lane] = []
    ended: dict[Lane, UUID] = {}
    bound = turns.bound(())
    for look in turns.looks(free, ()):
        if len(found) == free:
            break
        ended[look.lane] = NOBODY
        count = min(look.quota, waiting[look.lane], free - len(found))
        if look.lane in bound.lanes:
            count = min(count, bound.items - sum(lane in PATIENT for lane in found))
        found += [look.lane] * count
        waiting[look.lane] -= count
    turns.count(Taken(items=[(lane, ITEM) for lane in found], ended=ended, more=False))
    return found


@pytest.mark.parametrize("free", [1, 3, 16])
def test_lanes_that_all_have_work_get_their_shares(free: int) -> None:
    turns, served = Turns(concurrency=100), Counter[Lane]()
    rounds = sum(WEIGHTS.values()) * 8
    waiting = dict.fromkeys(WEIGHTS, 1000)
    while served.total() < rounds:
        served.update(serve(turns, free, Counter(waiting)))
    for lane, weight in WEIGHTS.items():
        assert abs(served[lane] - weight * served.total() / sum(WEIGHTS.values())) <= free


@pytest.mark.parametrize("lane", [lane for lane in WEIGHTS if lane not in PATIENT])
def test_a_lane_that_is_alone_gets_all_places(lane: Lane) -> None:
    turns = Turns(concurrency=16)
    assert serve(turns, 16, Counter({lane: 100})) == [lane] * 16


def test_what_nobody_waits_for_leaves_places_free() -> None:
    turns = Turns(concurrency=16)
    assert len(serve(turns, 16, Counter({Lane.BACKLOG: 100}))) == 14
    in_hand = [Lane.BACKLOG] * 14
    assert turns.bound(in_hand).items == 0
    assert len(serve(Turns(concurrency=1), 1, Counter({Lane.BACKLOG: 100}))) == 1


def test_who_had_nothing_to_do_saves_nothing_up() -> None:
    turns = Turns(concurrency=100)
    for _ in range(1000):
        serve(turns, 1, Counter({Lane.BACKLOG: 1}))
    everything = Counter(dict.fromkeys(WEIGHTS, 100))
    served = [serve(turns, 1, everything)[0] for _ in range(sum(WEIGHTS.values()))]
    assert Lane.BACKLOG in served[: 2 * len(WEIGHTS)]


def test_tenants_have_turns_where_the_last_look_ended() -> None:
    turns, last = Turns(concurrency=1), UUID(int=7)
    turns.count(Taken(items=(), ended={Lane.BACKLOG: last}, more=False))
    after = {look.lane: look.after for look in turns.looks(1, ())}
    assert (after[Lane.BACKLOG], after[Lane.WANTED]) == (last, NOBODY)
