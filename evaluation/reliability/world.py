"""The boxes of a game: what can be said of them, in sentences that are written and read."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

BOXES = ("red", "blue", "green", "yellow", "black", "white", "brown", "silver")
ITEMS = (
    *("coin", "ring", "key", "pearl", "shell", "bell", "stone", "feather", "candle", "spoon"),
    *("button", "marble", "whistle", "ribbon", "thimble", "acorn", "medal", "magnet", "brush"),
    *("pebble", "needle", "compass", "lantern", "locket"),
)
#: What is in a box in which nothing is.
NOTHING = "nothing"


class Kind(StrEnum):
    """What a sentence says of boxes."""

    #: A box holds a thing, or nothing.
    HOLDS = "holds"
    #: Two boxes change what they hold.
    SWAP = "swap"
    #: All of one box goes into another, in place of what was there.
    MOVE = "move"
    #: Another box gets the same as one has.
    COPY = "copy"
    #: A box gets a new thing.
    PUT = "put"


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What one sentence says."""

    kind: Kind
    #: The box that it is about; for MOVE and COPY the one that things come from.
    box: str
    #: The second box; empty for HOLDS and PUT.
    other: str = ""
    #: HOLDS and PUT: the thing, or NOTHING; else empty.
    item: str = ""

    def sentence(self) -> str:
        """Returns the event as a sentence; for an action, without its subject."""
        box, other = self.box, self.other
        match self.kind:
            case Kind.HOLDS if self.item == NOTHING:
                return f"The {box} box is empty."
            case Kind.HOLDS:
                return f"The {box} box holds the {self.item}."
            case Kind.SWAP:
                return f"swaps what the {box} box and the {other} box hold."
            case Kind.MOVE:
                return f"empties the {box} box into the {other} box, whose own is thrown away."
            case Kind.COPY:
                return f"clears the {other} box and puts a copy of what is in the {box} box there."
            case Kind.PUT:
                return f"clears the {box} box and puts a new {self.item} there."

    def change(self, held: dict[str, str]) -> None:
        """Makes it so. A box that is not in `held` is one that nothing is known of."""
        match self.kind:
            case Kind.HOLDS | Kind.PUT:
                held[self.box] = self.item
            case Kind.SWAP:
                one, two = held.get(self.box), held.get(self.other)
                _set(held, self.box, two)
                _set(held, self.other, one)
            case Kind.COPY:
                _set(held, self.other, held.get(self.box))
            case Kind.MOVE:
                _set(held, self.other, held.get(self.box))
                held[self.box] = NOTHING


def _set(held: dict[str, str], box: str, item: str | None) -> None:
    if item is None:
        held.pop(box, None)
    else:
        held[box] = item


_SENTENCE = re.compile(
    r"\b[Tt]he (?P<holds>\w+) box (?:holds the (?P<thing>\w+)|is empty)\b"
    r"|swaps what the (?P<swap>\w+) box and the (?P<swapped>\w+) box hold"
    r"|empties the (?P<move>\w+) box into the (?P<moved>\w+) box"
    r"|clears the (?P<copied>\w+) box and puts a copy of what is in the (?P<copy>\w+) box there"
    r"|clears the (?P<put>\w+) box and puts a new (?P<item>\w+) there"
)


def read(text: str) -> Iterator[Said]:
    """Yields what a text says of boxes, in its order; all else is passed over."""
    for found in _SENTENCE.finditer(text):
        part = found.groupdict()
        if part["holds"]:
            yield Said(kind=Kind.HOLDS, box=part["holds"], item=part["thing"] or NOTHING)
        elif part["swap"]:
            yield Said(kind=Kind.SWAP, box=part["swap"], other=part["swapped"])
        elif part["move"]:
            yield Said(kind=Kind.MOVE, box=part["move"], other=part["moved"])
        elif part["copy"]:
            yield Said(kind=Kind.COPY, box=part["copy"], other=part["copied"])
        else:
            yield Said(kind=Kind.PUT, box=part["put"], item=part["item"])


def known(said: Iterable[Said]) -> dict[str, str]:
    """Returns what boxes hold after all of it; those that nothing is known of are not there."""
    held: dict[str, str] = {}
    for one in said:
        one.change(held)
    return held
