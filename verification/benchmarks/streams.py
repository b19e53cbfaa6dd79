"""Streams of amendments for the benchmark `policy`: files of recorded ones, and made-up ones.

A file has one JSON object a line: `workload`, `step`, `ops` (each `op`, `path` as a JSON
Pointer, `value`). Rows with the same workload are one stream, in the order of their steps.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from service.domain.prism.amending import MISSING, amend, value_at
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.tree import DictType, Schema
from service.domain.values.json_values import Json
from service.domain.values.paths import Path

#: What lets every path be: the values say whether a number is a key or an index.
ANY = Schema(root=DictType(value=None))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Stream:
    """What the steps of one memory amended, one after the other."""

    name: str
    steps: Sequence[Sequence[Amendment]]


def recorded(path: File) -> Iterator[Stream]:
    """Yields the streams of a file, or of all files below a folder."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                rows[str(row.get("workload", file.stem))].append(row)
        for name, of_name in rows.items():
            of_name.sort(key=lambda row: row["step"])
            yield Stream(name, _amendments(of_name))


def _amendments(rows: Sequence[dict[str, Any]]) -> Sequence[Sequence[Amendment]]:
    value: Json = {}
    steps: list[Sequence[Amendment]] = []
    for row in rows:
        step: list[Amendment] = []
        for op in row["ops"]:
            path = _settled(value, Path.parse(op["path"]))
            one = Amendment(path=path, op=Op(op["op"]), value=op.get("value"))
            value = amend(ANY, value, [one])
            step.append(one)
        steps.append(step)
    return steps


def _settled(value: Json, path: Path) -> Path:
    """Returns the path with indexes where it goes through lists, or begins one."""
    settled = Path()
    for token in path.tokens:
        here = value_at(value, settled)
        items = len(here) if isinstance(here, list) else 0
        if (isinstance(here, list) or here is MISSING) and token == "-":
            token = items
        elif isinstance(here, list) or (here is MISSING and token == "0"):
            token = int(token)
        settled /= token
    return settled


@dataclass(frozen=True, kw_only=True, slots=True)
class _Habit:
    """How a made-up stream behaves for a while."""

    #: Shares of amendments that make a new key; the others update.
    adds: float
    #: How uneven updates are: 0 for all keys alike, 1.2 for a few that take most.
    skew: float
    #: Amendments a step has on average.
    busy: float
    #: The share of steps in which nothing changes.
    idle: float
    #: Words of a value, and by how many they grow with each update.
    words: float
    growth: float


_HABITS = {
    "zipf": _Habit(adds=0.15, skew=1.2, busy=1.5, idle=0.2, words=12, growth=0),
    "inserts": _Habit(adds=1.0, skew=0.0, busy=1.5, idle=0.1, words=12, growth=0),
    "churn": _Habit(adds=0.02, skew=0.0, busy=3.0, idle=0.0, words=12, growth=0),
    "rare": _Habit(adds=0.3, skew=0.5, busy=0.5, idle=0.6, words=15, growth=0),
    "large": _Habit(adds=0.2, skew=0.8, busy=1.0, idle=0.2, words=150, growth=0),
    "growing": _Habit(adds=0.05, skew=0.8, busy=1.2, idle=0.1, words=8, growth=4),
    "few": _Habit(adds=0.0, skew=0.3, busy=1.3, idle=0.2, words=20, growth=0),
    "mixed": _Habit(adds=0.5, skew=1.0, busy=2.0, idle=0.3, words=20, growth=0.5),
}
#: Made of the others, one after the other.
KINDS = (*_HABITS, "bursts", "phases", "tiny", "huge")
_TEXT = (
    "ash birch cedar dune elder fern gorse heath iris juniper kelp larch maple nettle oak"
    " poplar quince reed sedge thistle umber vetch willow yarrow zinnia north south winter"
    " summer harbour ledger morning signal paper quarter before against without between"
)
_WORDS = _TEXT.split()


def synthetic(count: int, seed: int = 1) -> Iterator[Stream]:
    """`count` made-up streams: a mix of all kinds and lengths, the same each time."""
    for number in range(count):
        chosen = random.Random(f"{seed}:{number}")
        kind = KINDS[number % len(KINDS)]
        yield Stream(f"{kind}-{number}", _Maker(chosen, kind).steps())


class _Maker:
    def __init__(self, chosen: random.Random, kind: str) -> None:
        self._random = chosen
        self._kind = kind
        self._length = round(10 ** chosen.uniform(0.7, 3.0))
        self._keys: list[Path] = []
        self._ranks: list[int] = []
        self._words: dict[Path, float] = {}
        self._groups = chosen.choice((1, 1, 5, 20))
        self._scale = 10 ** chosen.uniform(-0.4, 0.4)

    def steps(self) -> Sequence[Sequence[Amendment]]:
        """Returns all steps of the stream."""
        initial = {"few": 4, "churn": 60, "huge": 600, "tiny": 2}.get(self._kind, 8)
        first = [self._add(_HABITS["zipf"]) for _ in range(self._random.randint(1, initial))]
        steps: list[Sequence[Amendment]] = [first]
        habit = self._habit()
        until = self._phase()
        while len(steps) < self._length:
            if len(steps) >= until:
                habit, until = self._habit(), len(steps) + self._phase()
            steps.append(self._step(habit))
        return steps

    def _habit(self) -> _Habit:
        if self._kind in _HABITS:
            return _HABITS[self._kind]
        if self._kind == "bursts":
            return _HABITS[self._random.choice(("churn", "rare", "rare"))]
        if self._kind == "tiny":
            return _HABITS["few"]
        if self._kind == "huge":
            return _HABITS[self._random.choice(("zipf", "rare", "mixed"))]
        return _HABITS[self._random.choice(list(_HABITS))]

    def _phase(self) -> int:
        if self._kind not in ("bursts", "phases"):
            return self._length
        return max(round(self._random.expovariate(5 / self._length)), 3)

    def _step(self, habit: _Habit) -> Sequence[Amendment]:
        if self._random.random() < habit.idle:
            return ()
        changes: dict[Path, Amendment] = {}
        for _ in range(1 + round(self._random.expovariate(1 / max(habit.busy - 0.5, 0.01)))):
            adds = not self._keys or self._random.random() < habit.adds
            one = self._add(habit) if adds else self._update(habit)
            changes.setdefault(one.path, one)
        return list(changes.values())

    def _add(self, habit: _Habit) -> Amendment:
        number = len(self._keys)
        path = Path((f"{self._random.choice(_WORDS)} {number}",))
        if self._groups > 1:
            path = Path((f"group {self._random.randrange(self._groups)}", *path.tokens))
        self._ranks.insert(self._random.randint(0, number), number)
        self._keys.append(path)
        self._words[path] = habit.words * self._scale * self._random.uniform(0.3, 1.7)
        return Amendment(path=path, op=Op.ADD, value=self._text(path))

    def _update(self, habit: _Habit) -> Amendment:
        # The n-th hottest key is updated about as often as n ** -skew says.
        at = self._random.random() ** (1 + 2 * habit.skew)
        path = self._keys[self._ranks[int(at * len(self._ranks))]]
        self._words[path] += habit.growth
        return Amendment(path=path, op=Op.UPDATE, value=self._text(path))

    def _text(self, path: Path) -> str:
        return " ".join(self._random.choices(_WORDS, k=max(round(self._words[path]), 1)))
