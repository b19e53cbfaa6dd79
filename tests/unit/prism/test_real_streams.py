"""Streams of revisions from real dialogues and real trials, where they are at hand.

They are no part of the repository; without them these tests are skipped.
"""

import json
from pathlib import Path as File
from typing import Any

import pytest

from service.domain.prism.amendments import Op, Proposal, Revision
from service.domain.prism.memory import PrismMemory
from service.domain.prism.revisions import parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, fit
from service.domain.values.json_values import canonical
from service.domain.values.paths import Path
from tests.unit.prism.judging import judged

#: The shape of a stream's states, below the field "state".
SOURCES = {
    "sgd_dialogue_state": "class M:\n    state: dict[str, dict[str, str]]\n",
    "reflexion_hotpotqa": (
        "class M:\n"
        "    class Question:\n"
        "        question: str\n"
        "        last_answer: str\n"
        "        status: Literal['correct', 'incorrect', 'halted']\n"
        "        reflections: list[str]\n"
        "    state: dict[str, Question]\n"
    ),
}
FOLD_EVERY = 10


def find_streams() -> dict[str, File]:
    for parent in File(__file__).resolve().parents:
        found = sorted((parent / "shared" / "data" / "revisions").glob("*/dev.jsonl"))
        if found:
            return {file.parent.name: file for file in found}
    return {}


STREAMS = find_streams()
Step = list[dict[str, Any]]


def workloads(name: str) -> dict[str, list[Step]]:
    """Returns the ops of each workload's steps, in order."""
    found: dict[str, list[tuple[int, Step]]] = {}
    for line in STREAMS[name].read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["workload"], []).append((row["step"], row["ops"]))
    return {key: [ops for _, ops in sorted(steps, key=first)] for key, steps in found.items()}


def first(pair: tuple[int, Step]) -> int:
    return pair[0]


def replay(state: Any, op: dict[str, Any]) -> None:
    """Does what an op does to plain dicts and lists."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in op["path"][1:].split("/"))
    for key, following in zip(way, [*way[1:], last], strict=True):
        state = state.setdefault(key, [] if following.isdigit() else {})
    if isinstance(state, dict):
        state[last] = op["value"]
    elif int(last) == len(state):
        state.append(op["value"])
    else:
        state[int(last)] = op["value"]


def by_hand(step: Step, schema: Schema, memory: PrismMemory) -> Revision:
    edits = [Proposal("/state" + op["path"], Op(op["op"]), op["value"]) for op in step]
    return judged(edits, schema, memory.value)


def as_a_reply(step: Step, schema: Schema, memory: PrismMemory) -> Revision:
    # The paper's way of writing: sections, a line each, names in single quotes.
    text = ""
    for op in ("update", "add"):
        text += f"[OBJECTS FOR {op.upper()}]\n"
        for one in step:
            if one["op"] == op:
                path, _ = schema.type_at(Path.parse("/state" + one["path"]))
                steps = (
                    f"[{token}]" if isinstance(token, int) else f".'{token}'"
                    for token in path.tokens
                )
                text += json.dumps({"$" + "".join(steps): {op: one["value"]}}) + "\n"
    return parse_reply(text, schema, memory.value)


@pytest.mark.skipif(not STREAMS, reason="the streams are not at hand")
@pytest.mark.parametrize("read", [by_hand, as_a_reply])
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_real_stream_applies_as_it_is(name: str, read: Any) -> None:
    schema = parse_source(SOURCES[name])
    for steps in workloads(name).values():
        memory = PrismMemory.create(schema)
        state: dict[str, Any] = {}
        log: list[Any] = []
        for number, step in enumerate(steps, start=1):
            revision = read(step, schema, memory)
            assert revision.rejections == ()
            assert len(revision.amendments) == len(step)
            assert not any(one.op_corrected for one in revision.amendments)
            for op in step:
                replay(state, op)
            memory = memory.apply(number, revision.amendments)
            log.append((number, revision.amendments))
            # The sections of a reply may put a step's keys into another order.
            assert memory.value == {"state": state}
            if number % FOLD_EVERY == 0:
                memory, log = memory.fold(), []
        loaded = PrismMemory.load(schema, base_json=memory.base_json, amendments=log)
        assert loaded == memory
        assert canonical(fit(schema.root, loaded.value)) == loaded.value_json
        assert loaded.value == {"state": state}
