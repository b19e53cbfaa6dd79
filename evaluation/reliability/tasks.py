"""Tasks: games of boxes whose end is known, because they are made step by step.

The thing that the last question asks for was in a box at the beginning and is never named
again: it moves from box to box. A player that has lost the beginning, or a step that moved
it, cannot know where it is.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.reliability.world import BOXES, ITEMS, Kind, Said

#: The longest task, and the most tasks of a length.
MAX_LENGTH = 10_000
MAX_RUNS = 1_000
#: The share of steps in which nothing is done to a box, …
_IDLE_SHARE = 0.25
#: … and of the others the share that touches what is asked for in the end.
_TOUCHING_SHARE = 0.4
#: How often each change happens, to each other.
_CHANGES = {Kind.SWAP: 4, Kind.MOVE: 2, Kind.COPY: 2, Kind.PUT: 2}
_PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn")
#: What happens besides; nothing of it says what a box holds.
_TALK = (
    "A tram rings its bell outside.",
    "It begins to rain.",
    "Somebody opens a window.",
    "The kettle boils over.",
    "A dog barks in the yard.",
    "The lamp flickers for a moment.",
    "Everybody laughs about an old story.",
    "The postman leaves a parcel at the door.",
)
_WATCHING = (
    "looks at the {} box for a while and does nothing.",
    "wonders aloud who painted the {} box.",
    "wipes some dust from the {} box without opening it.",
)

_RULES = (
    "This is a game with closed boxes. At each step you are told what somebody does. The boxes"
    " stay closed: you see what goes into them only where you are told.\n"
    "Goal: know at the end what each box holds. You will be asked about one of them.\n"
    "This is how it begins. "
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A game."""

    #: Steps of the game; 1 to MAX_LENGTH.
    length: int
    #: Which of the tasks of this length; from 1.
    number: int
    #: The rules, the goal and what the boxes hold at first.
    prompt: str
    #: What is seen at each step.
    observations: tuple[str, ...]
    question: str
    #: The right answer, one word.
    gold: str


def make(length: int, number: int, *, seed: int) -> Task:
    """Returns the task of a length, a number and a seed; always the same."""
    chance = random.Random(f"{seed}/{length}/{number}")
    things = chance.sample(ITEMS, len(BOXES))
    held = dict(zip(BOXES, things, strict=True))
    begin = [Said(kind=Kind.HOLDS, box=box, item=item) for box, item in held.items()]
    asked = chance.choice(BOXES)
    gold = held[asked]
    observations = []
    for step in range(1, length + 1):
        done = None if chance.random() < _IDLE_SHARE else _change(asked, chance)
        if done is not None:
            asked = _followed(asked, done)
        observations.append(_observation(step, done, chance))
    return Task(
        length=length,
        number=number,
        prompt=_RULES + " ".join(one.sentence() for one in begin),
        observations=tuple(observations),
        question=f"The game is over. What does the {asked} box hold now?",
        gold=gold,
    )


def _change(asked: str, chance: random.Random) -> Said:
    """Something that is done, and not to the cost of what is asked for."""
    kinds = list(_CHANGES)
    kind = chance.choices(kinds, weights=[_CHANGES[one] for one in kinds])[0]
    others = [box for box in BOXES if box != asked]
    if kind is Kind.PUT:
        return Said(kind=kind, box=chance.choice(others), item=chance.choice(ITEMS))
    if chance.random() < _TOUCHING_SHARE:
        return Said(kind=kind, box=asked, other=chance.choice(others))
    box, other = chance.sample(others, 2)
    return Said(kind=kind, box=box, other=other)


def _followed(asked: str, done: Said) -> str:
    """Returns where the thing is that was in the asked box."""
    # Both boxes of a copy have it then; the one that had it stays the asked one.
    return done.other if done.kind in (Kind.SWAP, Kind.MOVE) and done.box == asked else asked


def _observation(step: int, done: Said | None, chance: random.Random) -> str:
    who = chance.choice(_PEOPLE)
    what = _idle(chance) if done is None else done.sentence()
    return f"Step {step}. {who} {what} {chance.choice(_TALK)}"


def _idle(chance: random.Random) -> str:
    return chance.choice(_WATCHING).format(chance.choice(BOXES))


def make_all(lengths: Sequence[int], runs: int, *, seed: int) -> list[Task]:
    """`runs` tasks of each length."""
    return [make(length, number, seed=seed) for length in lengths for number in range(1, runs + 1)]
