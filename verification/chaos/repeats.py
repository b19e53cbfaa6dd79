"""Which replies were paid and are not in the ledger, and which fault explains each of them.

An executor that dies between asking the model and the reply's row has paid for
nothing, and so has one that fails on purpose in between. Nothing else may lose a reply.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verification.chaos.history import ModelCalled
from verification.chaos.switches import Action, Firing

#: How long an executor may have a reply before its row is there, on a busy machine too, besides
#: the time that it stands still. A fault that comes later explains nothing. Nor may a request
#: lie longer at the model server before it is read, whose sender may be dead by then.
HELD_SECONDS = 15.0
#: Where one that raises loses the reply of the very call that it is at.
LOSES_ONE = "model:replied"
#: … and the replies of all that share its transaction.
LOSES_GROUP = ("calls.record:statement", "calls.record:commit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """Paid replies that are in no row, by the fault that explains each."""

    #: Replies that the model server wrote.
    paid: int
    #: Those that are lost, by what explains them: "kill at model.before", …
    causes: Counter[str]
    #: Lost ones that no fault explains, a sentence each.
    unexplained: tuple[str, ...]

    @property
    def count(self) -> int:
        """All that are lost."""
        return self.causes.total() + len(self.unexplained)


def find(
    called: Iterable[ModelCalled],
    stored: Iterable[int],
    firings: Sequence[Firing],
    sleep_seconds: float,
) -> Repeats:
    """Returns what became of the replies, with `stored` the serials that are in the ledger.

    A pause lasted for `sleep_seconds`.
    """
    paid = sorted((one for one in called if one.is_paid), key=lambda one: one.at)
    kept = set(stored)
    used: set[int] = set()
    causes: Counter[str] = Counter()
    unexplained = []
    for one in paid:
        if one.serial in kept:
            continue
        cause = _cause(one, firings, used, sleep_seconds)
        if cause is None:
            unexplained.append(
                f"call {one.serial} of process {one.asker} was paid, and its reply is lost"
            )
        else:
            causes[cause] += 1
    return Repeats(paid=len(paid), causes=causes, unexplained=tuple(unexplained))


def _cause(
    lost: ModelCalled, firings: Sequence[Firing], used: set[int], sleep_seconds: float
) -> str | None:
    """Returns the first fault of the process that asked which can have cost the reply."""
    until = lost.at + HELD_SECONDS
    for number, fired in enumerate(firings):
        if str(fired.pid) != lost.asker or fired.at < lost.at - HELD_SECONDS:
            continue
        if fired.at > until:
            return None
        if fired.at < lost.at and fired.action is not Action.KILL:
            continue
        if fired.action is Action.SLEEP:
            until += sleep_seconds
        elif fired.action is Action.KILL:
            return f"kill at {fired.point}"
        elif fired.point in LOSES_GROUP:
            return f"raise at {fired.point}"
        elif fired.point == LOSES_ONE and number not in used:
            used.add(number)
            return f"raise at {fired.point}"
    return None
