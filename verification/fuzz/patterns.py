"""Patterns: every regular expression of the service, on the texts that are worst for it.

What repeats in a pattern is repeated many times in a text, after what may precede it
and in front of what does not fit. A pattern that goes back and forth over that takes time that
grows with the square of the text, or faster; one that reads on takes as many steps as there
are characters.
"""

import ast
import importlib
import inspect
import pkgutil
import random
import re
import re._constants as ops  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import service
import storage
from verification.fuzz.runs import Target

#: Characters of a text. With so many, a pattern that takes their square takes seconds.
CHARACTERS = 30_000
#: Not imported: what only runs by itself, and what needs packages that are not always there.
_LEFT_OUT = ("service.cli.__main__", "service.llm.embeddings.local_embedder")
_ENDS = ("", "x", "\0", "\n", "!", " x", "\nx", "]", ":", "=")
_PREFIXES = ("", "\n", " ", ". ", "x", "[", "<<<data ", '"')


#: What a pattern is asked.
_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split")


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A pattern that a module holds."""

    name: str
    pattern: re.Pattern[str]
    #: What the module asks it; where that is not to be seen, all matches.
    methods: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """A pattern and a text."""

    held: Held
    method: str
    text: str

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:
        shown = f"{self.text[:60]!r}…{self.text[-9:]!r}"
        return f"{self.held.name}.{self.method}: {self.held.pattern.pattern[:200]!r} on {shown}"


@cache
def patterns() -> Sequence[Held]:
    """Returns every pattern that a module of the service or of the storage holds."""
    found: dict[tuple[str, str], Held] = {}
    for package in (service, storage):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name in _LEFT_OUT:
                continue
            module = importlib.import_module(info.name)
            # Python's own, where other tests' libraries leave what holds itself, are not ours.
            for name, value in list(vars(module).items()):
                for one in () if name == "__builtins__" else within(value):
                    methods = tuple(_asked(module).get(name, ("finditer",)))
                    held = Held(name=f"{info.name}.{name}", pattern=one, methods=methods)
                    found.setdefault((held.name, one.pattern), held)
    return tuple(found.values())


@cache
def _asked(module: ModuleType) -> dict[str, dict[str, None]]:
    """Returns, by the name of a pattern, the methods that the source calls on it."""
    asked: dict[str, dict[str, None]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in _METHODS:
                asked.setdefault(name, {})[attr] = None
    return asked


def within(value: object, around: tuple[object, ...] = ()) -> Iterator[re.Pattern[str]]:
    """Yields the patterns in a value, also where it holds one of those `around` it again."""
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, tuple | list | dict) and not any(value is one for one in around):
        for one in value.values() if isinstance(value, dict) else value:
            yield from within(one, (*around, value))


@cache
def _parts(pattern: re.Pattern[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts that a pattern repeats, and texts that it begins with."""
    pumps: dict[str, None] = {}
    heads: dict[str, None] = {}
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    rng = random.Random(repr(pattern.pattern))

    def visit(items: Any, head: str) -> None:
        before = head
        for op, argument in items:
            if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
                heads[before] = None
                for _ in range(6):
                    pumps[_sample(argument[2], rng)] = None
                visit(argument[2], before)
            elif op is ops.SUBPATTERN:
                visit(argument[3], before)
            elif op is ops.BRANCH:
                for branch in argument[1]:
                    visit(branch, before)
            elif op in (ops.ASSERT, ops.ASSERT_NOT):
                visit(argument[1], before)
            before += _sample([(op, argument)], rng)
        heads[before] = None

    visit(tree, "")
    pumps.pop("", None)
    return tuple(pumps) or ("a",), tuple(one[:200] for one in heads)


def _sample(items: Any, rng: random.Random) -> str:
    """Returns a text that a part of a pattern fits."""
    return "".join(_one(op, argument, rng) for op, argument in items)


def _one(op: Any, argument: Any, rng: random.Random) -> str:
    if op is ops.LITERAL:
        return chr(argument)
    if op is ops.NOT_LITERAL:
        return rng.choice([one for one in "a .\n" if ord(one) != argument])
    if op is ops.ANY:
        return rng.choice("a .")
    if op is ops.IN:
        return _of_set(argument, rng)
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
        least, most, inner = argument
        times = min(max(least, rng.choice((0, 1, 2))), most)
        return "".join(_sample(inner, rng) for _ in range(times))
    if op is ops.SUBPATTERN:
        return _sample(argument[3], rng)
    if op is ops.ATOMIC_GROUP:
        return _sample(argument, rng)
    if op is ops.BRANCH:
        return _sample(rng.choice(argument[1]), rng)
    return ""


_OF_CATEGORY = {
    ops.CATEGORY_SPACE: " \n\t",
    ops.CATEGORY_DIGIT: "17",
    ops.CATEGORY_WORD: "aZ_3",
    ops.CATEGORY_NOT_SPACE: "a.",
    ops.CATEGORY_NOT_DIGIT: "a ",
    ops.CATEGORY_NOT_WORD: " .",
}


def _of_set(items: Any, rng: random.Random) -> str:
    if items[0][0] is ops.NEGATE:
        taken = {chr(one) for op, one in items[1:] if op is ops.LITERAL}
        categories = "".join(_OF_CATEGORY[one] for op, one in items[1:] if op is ops.CATEGORY)
        return rng.choice(
            [c for c in "a Z1.-\n_" if c not in taken and c not in categories] or ["\x01"]
        )
    op, argument = rng.choice(items)
    if op is ops.RANGE:
        return chr(rng.randint(*argument))
    if op is ops.CATEGORY:
        return rng.choice(_OF_CATEGORY[argument])
    return chr(argument)


def _made(rng: random.Random) -> Worst:
    held = rng.choice(patterns())
    pumps, heads = _parts(held.pattern)
    pump = "".join(rng.choice(pumps) for _ in range(rng.choice((1, 1, 1, 2, 2, 3))))
    head = rng.choice((*heads, *_PREFIXES))
    if rng.random() < 0.2:
        # The whole beginning again and again, each time before what does not fit.
        pump, head = head + pump * rng.choice((1, 20)) + rng.choice(_ENDS), ""
    text = head + (pump or "a") * (CHARACTERS // max(len(pump), 1)) + rng.choice(_ENDS)
    return Worst(held=held, method=rng.choice(held.methods), text=text)


def _check(made: Worst) -> bool:
    pattern, text = made.held.pattern, made.text
    match made.method:
        case "search" | "match" | "fullmatch":
            return getattr(pattern, made.method)(text) is not None
        case "sub":
            return pattern.sub("", text) != text
        case "split":
            return len(pattern.split(text)) > 1
    return sum(1 for _ in pattern.finditer(text)) > 0


TARGETS: Sequence[Target] = (Target(name="patterns", make=_made, check=_check),)
