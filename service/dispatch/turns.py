"""Turns of the lanes: which lane the next free places of a worker are for.

Stride scheduling (Waldspurger, 1995): each lane has a pass, which rises with each item by the
inverse of its weight, and the lane with the least pass is next. So each lane gets its share of
the places, however much waits in another, and what a lane leaves the others have.
"""

from collections.abc import Iterable, Mapping, Sequence

from storage.queue import NOBODY, Bound, Lane, Look, Taken

#: Shares of the places while all lanes have work.
WEIGHTS: Mapping[Lane, int] = {
    Lane.WANTED: 8,
    Lane.ANSWERS: 6,
    Lane.RECENT: 4,
    Lane.BACKLOG: 4,
    Lane.INDEX: 2,
    Lane.SCHEMAS: 1,
}
#: Lanes for which nobody waits at this moment; they leave one place in so many to the others.
PATIENT = frozenset({Lane.RECENT, Lane.BACKLOG, Lane.INDEX})
RESERVED_PLACES = 8


class Turns:
    """Of one worker."""

    def __init__(self, concurrency: int) -> None:
        """`concurrency` is how many places there are."""
        self._patient_places = concurrency - concurrency // RESERVED_PLACES
        self._pass = dict.fromkeys(WEIGHTS, 0.0)
        self._after = dict.fromkeys(WEIGHTS, NOBODY)

    def looks(self, free: int, in_hand: Iterable[Lane]) -> Sequence[Look]:
        """The lanes to look at for `free` places, in their order; `in_hand` has the lane of
        each item that is worked on. With `bound`."""
        patient = self._patient(in_hand)
        passes = dict(self._pass)
        shares = dict.fromkeys(WEIGHTS, 0)
        order: list[Lane] = []
        for _ in range(free):
            lanes = [lane for lane in WEIGHTS if patient > 0 or lane not in PATIENT]
            lane = min(lanes, key=lambda one: passes[one])
            passes[lane] += 1 / WEIGHTS[lane]
            patient -= lane in PATIENT
            shares[lane] += 1
            if lane not in order:
                order.append(lane)
        looks = [Look(lane=lane, quota=shares[lane], after=self._after[lane]) for lane in order]
        # What these leave is for whoever has work, those first that somebody waits for.
        looks += [Look(lane=lane, quota=free, after=self._after[lane]) for lane in WEIGHTS]
        return looks

    def bound(self, in_hand: Iterable[Lane]) -> Bound:
        """How many items may be taken of the lanes for which nobody waits."""
        return Bound(lanes=PATIENT, items=max(self._patient(in_hand), 0))

    def _patient(self, in_hand: Iterable[Lane]) -> int:
        return self._patient_places - sum(lane in PATIENT for lane in in_hand)

    def count(self, taken: Taken) -> None:
        """Takes down what a look brought."""
        self._after.update(taken.ended)
        came = {lane for lane, _ in taken.items}
        for lane, _ in taken.items:
            self._pass[lane] += 1 / WEIGHTS[lane]
        if came:
            # Who had nothing to do saves nothing up.
            least = min(self._pass[lane] for lane in came)
            for lane in taken.ended.keys() - came:
                self._pass[lane] = max(self._pass[lane], least - 1 / WEIGHTS[lane])
