"""`python -m tests.fuzz revisions --inputs N [--seed S]`: replies that nobody would write.

Realistic replies are cut, spliced, repeated and sprinkled with noise, or made of random
bytes, and read as a model's reply to a memory that holds something. Whatever the input:
nothing is raised, every amendment fits the schema and can be stored, a replay gives the
same bytes as applying step by step, and the work done is bounded by the input's length.
The same seed makes the same inputs.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.domain.json_values import Json, canonical, parse
from service.domain.paths import Path
from service.domain.prism.amending import amend, put, remove, replay
from service.domain.prism.amendments import Op, Revision
from service.domain.prism.revisions import parse_consolidation, parse_reply
from service.domain.prism.rules import Rules
from service.domain.schemas.source import parse_source
from service.domain.schemas.tree import fit
from tests.replies import CORPUS, NOISE, SOURCE, STATE

SCHEMA = parse_source(SOURCE)
#: Calls that reading an input may make: a base, and so many for each of its characters.
CALLS = 200_000
CALLS_A_CHARACTER = 200
#: The calls of every so many inputs are counted; counting takes longer than reading.
COUNTED = 20
#: Characters of an input, at most.
MAX_CHARACTERS = 200_000
RULES = (
    Rules(),
    Rules(may_remove=True),
    Rules(add_only=True),
    Rules(coerce=True, may_remove=True),
    Rules(max_memory_bytes=700, max_value_bytes=60, max_depth=3, max_breadth=4, may_remove=True),
)


class Broken(AssertionError):
    """An input that breaks a promise; the message names the promise."""


@dataclass(slots=True)
class Result:
    """What a run came to."""

    inputs: int = 0
    amendments: int = 0
    rejections: int = 0
    #: Characters of the input that took most calls for its length, and those calls.
    slowest_characters: int = 0
    slowest_calls: int = 0


def make_input(rng: random.Random) -> str:
    """An input, by chance near to a reply or far from it."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randrange(400)).decode(errors="replace")
    text = rng.choice(CORPUS)
    if kind < 0.1:
        text = rng.choice((text, *NOISE)) * rng.choice((2, 10, 200, 2000))
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        text = rng.choice(_MUTATIONS)(rng, text)
    return text[:MAX_CHARACTERS]


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _drop(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 1, 2, 20)) :]


def _insert(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(NOISE) * rng.choice((1, 1, 1, 3, 100)) + text[at:]


def _character(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    char = chr(rng.choice((rng.randrange(128), rng.randrange(0x110000))))
    return text[:at] + char + text[at + 1 :]


def _splice(rng: random.Random, text: str) -> str:
    other = rng.choice(CORPUS)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


def _repeat(rng: random.Random, text: str) -> str:
    begin = rng.randrange(len(text) + 1)
    end = min(begin + rng.choice((1, 5, 40, 200)), len(text))
    return text[:end] + text[begin:end] * rng.choice((1, 2, 50)) + text[end:]


def _swap_quotes(_: random.Random, text: str) -> str:
    return text.translate({ord("'"): '"', ord('"'): "'"})


def _flatten(_: random.Random, text: str) -> str:
    return " ".join(text.split())


def _bytes(rng: random.Random, text: str) -> str:
    raw = bytearray(text.encode(errors="replace"))
    for _ in range(rng.randrange(1, 6)):
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return raw.decode(errors="replace")


_MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (
    *(_cut, _drop, _drop, _insert, _insert, _character, _splice, _splice, _repeat),
    *(_swap_quotes, _flatten, _bytes),
)


def check(text: str, value: Json, rules: Rules, *, tidies: bool) -> Revision:
    """Reads an input and raises Broken where a promise is not kept."""
    parse_one = parse_consolidation if tidies else parse_reply
    before = canonical(value)
    revision = parse_one(text, SCHEMA, value, rules)
    if canonical(value) != before:
        raise Broken("reading changes nothing")
    step: Json = value
    for one in revision.amendments:
        if Path.parse(str(one.path)) != one.path or SCHEMA.type_at(one.path)[0] != one.path:
            raise Broken("a path is read again as it was")
        if one.op is Op.REMOVE:
            step = remove(SCHEMA, step, one.path)
        else:
            stored = parse(canonical(one.value))
            stored_text = canonical(fit(SCHEMA.type_at(one.path)[1], stored))
            if stored_text.encode() != canonical(one.value).encode():
                raise Broken("a value fits its type and survives storage")
            step = put(SCHEMA, step, one.path, one.value)
    after = canonical(step)
    if after != canonical(fit(SCHEMA.root, step)) or "\0" in after:
        raise Broken("the memory fits its schema and can be stored")
    if after != canonical(parse(after, max_nodes=len(after))):
        raise Broken("the memory can be loaded")
    if after != canonical(amend(SCHEMA, value, revision.amendments)):
        raise Broken("amending at once is amending one by one")
    if after != canonical(replay(SCHEMA, parse(before), revision.amendments)):
        raise Broken("a replay gives the same bytes")
    if len(after.encode()) > max(rules.max_memory_bytes, len(before.encode())):
        raise Broken("the memory keeps to its limit")
    for refused in revision.rejections:
        if not refused.reason or b"\0" in (refused.proposal + refused.reason).encode():
            raise Broken("a rejection has a reason and can be stored")
    return revision


def count_calls(work: Callable[[], object]) -> int:
    """How many calls `work` makes, of Python's functions and of C's."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def fuzz_revisions(inputs: int, seed: int) -> Result:
    """Makes and checks that many inputs. Raises Broken, with the input in a note."""
    result = Result()
    value: Json = parse(STATE)
    for number in range(inputs):
        rng = random.Random(f"{seed}:{number}")
        text = make_input(rng)
        rules, tidies = rng.choice(RULES), rng.random() < 0.2
        try:
            revision = check(text, value, rules, tidies=tidies)
            if number % COUNTED == 0 or len(text) > MAX_CHARACTERS // 4:
                _count(text, value, rules, result)
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}: {text[:2000]!r}")
            raise
        result.inputs += 1
        result.amendments += len(revision.amendments)
        result.rejections += len(revision.rejections)
        # The next reply meets what this one left, until there is little left.
        value = amend(SCHEMA, value, revision.amendments)
        if number % 7 == 0 or len(canonical(value)) > 20_000:
            value = parse(STATE)
    return result


def _count(text: str, value: Json, rules: Rules, result: Result) -> None:
    calls = count_calls(lambda: parse_reply(text, SCHEMA, value, rules))
    if calls > CALLS + CALLS_A_CHARACTER * len(text):
        raise Broken(f"reading {len(text)} characters takes {calls} calls")
    if calls > result.slowest_calls:
        result.slowest_calls, result.slowest_characters = calls, len(text)


def main() -> None:
    """Fuzzes and prints what came of it as the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", choices=["revisions"], help="what to fuzz")
    parser.add_argument("--inputs", type=int, default=10_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0, help="which inputs")
    arguments = parser.parse_args()
    result = fuzz_revisions(arguments.inputs, arguments.seed)
    line: dict[str, Any] = {
        "name": "fuzz-revisions",
        "value": result.inputs,
        "seed": arguments.seed,
        "amendments": result.amendments,
        "rejections": result.rejections,
        "slowest_characters": result.slowest_characters,
        "slowest_calls": result.slowest_calls,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
