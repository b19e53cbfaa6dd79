"""What errors.proto says of a reason's metadata is what its refusals have."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.values.reasons import Reason

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto/palimpsest/v1/errors.proto"
#: Refusals whose metadata are no literal, or which others complete before a client sees them:
#: module, reason.
ELSEWHERE = {
    # `which`: the chunk's index and its sequence.
    ("rpc/convert/chunks.py", "CHUNK_EMPTY"),
    ("rpc/convert/chunks.py", "DIGEST_MISMATCH"),
    ("usecases/answers/ask.py", "ANSWER_NOT_READY_IN_TIME"),
    ("domain/values/errors.py", "BUDGET_EXHAUSTED"),
    ("domain/values/errors.py", "SCHEMA_INVALID"),
    ("llm/gateway/allowed.py", "MODEL_NOT_ALLOWED"),
    # Of steps: what stalls a memory, whose metadata a read gives.
    ("domain/state/compressing.py", "MEMORY_STALLED"),
    ("usecases/prism/work.py", "MEMORY_STALLED"),
    ("usecases/tree/work.py", "MEMORY_STALLED"),
    # Its key is "session" or "memory".
    ("usecases/log/lookup.py", "BEING_DELETED"),
}


def documented() -> dict[str, tuple[list[set[str]], set[str]]]:
    """Returns, by reason, the sets of keys that its comment allows, and optional keys."""
    found: dict[str, tuple[list[set[str]], set[str]]] = {}
    comment: list[str] = []
    for line in PROTO.read_text().splitlines():
        line = line.strip()
        if line.startswith("//"):
            comment.append(line[2:].strip())
        elif named := re.match(r"ERROR_REASON_(\w+) = \d", line):
            _, has_metadata, text = " ".join(comment).partition("metadata: ")
            if has_metadata:
                whole = re.findall(r"\{[^}]*\}", text)
                keys = [set(re.findall(r'"(\w+)":', one)) for one in whole]
                besides = re.findall(r'and "(\w+)" while', text)
                found[named[1]] = (keys, set(besides))
            comment = []
        else:
            comment = []
    return found


def refusals() -> Iterator[tuple[str, str, int, set[str], bool]]:
    """Module, reason, line, keys of metadata, and whether others may be among them."""
    for path in sorted((ROOT / "service").rglob("*.py")):
        source = path.read_text()
        if "Reason." not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            for place, argument in enumerate(node.args):
                if not (
                    isinstance(argument, ast.Attribute)
                    and isinstance(argument.value, ast.Name)
                    and argument.value.id == "Reason"
                ):
                    continue
                given = [*node.args[place + 1 :], *(one.value for one in node.keywords)]
                literal = next(
                    (one for one in given if isinstance(one, ast.Dict)), ast.Dict([], [])
                )
                keys = {one.value for one in literal.keys if isinstance(one, ast.Constant)}
                names = {str(key) for key in keys}
                module = str(path.relative_to(ROOT / "service"))
                yield module, argument.attr, node.lineno, names, len(keys) < len(literal.keys)


DOCUMENTED = documented()
REFUSALS = list(refusals())


def test_each_reason_says_what_its_metadata_are() -> None:
    assert DOCUMENTED.keys() == {reason.name for reason in Reason}


@pytest.mark.parametrize(
    ("module", "reason", "line", "keys", "is_open"),
    [one for one in REFUSALS if one[:2] not in ELSEWHERE],
    ids=[f"{one[0]}:{one[2]}" for one in REFUSALS if one[:2] not in ELSEWHERE],
)
def test_a_refusal_has_the_metadata_that_its_reason_documents(
    module: str, reason: str, line: int, keys: set[str], is_open: bool
) -> None:
    whole, besides = DOCUMENTED[reason]
    if is_open:
        assert any(keys <= one | besides for one in whole), f"{module}:{line} has {keys}"
    else:
        assert keys - besides in whole, f"{module}:{line} has {keys}"


def test_what_is_left_out_is_there() -> None:
    assert {one[:2] for one in REFUSALS} >= ELSEWHERE
