"""What `session.append` takes, and what it refuses before anything is sent."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

import palimpsest
from palimpsest import ChatMessage, Chunk
from palimpsest._convert_chunks import chunks_of
from palimpsest.v1 import chunks_pb2

LOGGED = Chunk(
    position=3,
    kind="agent_step",
    action="jump",
    metadata={"a": "own"},
    producer_id="p",
    producer_sequence=1,
    created_at=datetime.now(UTC),
)


FIRST = replace(LOGGED, observation="a wall", action="turn", observed_first=True, metadata={})
SEEN_FIRST = chunks_pb2.Chunk.AgentStep(observation="a wall", action="turn", observed_first=True)


@dataclass
class SdkMessage:
    role: str
    content: str
    refusal: str | None = None


def message(role: str, text: str) -> chunks_pb2.Chunk:
    return chunks_pb2.Chunk(message=chunks_pb2.Chunk.Message(role=role, text=text))


@pytest.mark.parametrize(
    ("items", "due"),
    [
        ("a text", [chunks_pb2.Chunk(text="a text")]),
        ({"role": "user", "content": "hi"}, [message("user", "hi")]),
        ({"role": "user", "content": "hi", "refusal": None}, [message("user", "hi")]),
        (SdkMessage("user", "hi"), [message("user", "hi")]),
        ([ChatMessage(role="user", content="hi"), "x"], [message("user", "hi"), "x"]),
        (
            {"action": "jump"},
            [chunks_pb2.Chunk(agent_step=chunks_pb2.Chunk.AgentStep(action="jump"))],
        ),
        (
            [{"observation": "a wall", "action": "turn", "observed_first": True}, FIRST],
            2 * [chunks_pb2.Chunk(agent_step=SEEN_FIRST)],
        ),
        (("a", "b"), ["a", "b"]),
        ((text for text in "ab"), ["a", "b"]),
    ],
)
def test_texts_messages_and_steps_become_chunks(items: Any, due: list[Any]) -> None:
    wanted = [chunks_pb2.Chunk(text=one) if isinstance(one, str) else one for one in due]
    assert list(chunks_of(items)) == wanted


def test_metadata_of_all_stands_beside_that_of_one() -> None:
    items: list[Any] = ["x", LOGGED, {"role": "user", "content": "hi", "metadata": {"b": "own"}}]
    given = [dict(chunk.metadata) for chunk in chunks_of(items, metadata={"a": "all", "b": "all"})]
    assert given == [{"a": "all", "b": "all"}, {"a": "own", "b": "all"}, {"a": "all", "b": "own"}]


@pytest.mark.parametrize(
    ("items", "kind", "said"),
    [
        ([], ValueError, "nothing to append"),
        ({}, ValueError, "item 1: a mapping of nothing is not"),
        (["x", b"bytes"], TypeError, "item 2: "),
        (["x", 7], TypeError, "item 2: a int is not"),
        ({"role": "user", "content": ["parts"]}, TypeError, "item 1: text is of another type"),
        ({"role": "user", "content": "x", "tool_calls": [1]}, ValueError, "content, role, tool"),
        (["x", ""], palimpsest.InvalidArgument, "item 2: its text is empty"),
        ({"role": "", "content": "x"}, palimpsest.InvalidArgument, "item 1: its role must have"),
        (["a\0b"], palimpsest.InvalidArgument, "item 1: it holds a NUL"),
    ],
)
def test_what_cannot_be_appended_is_named_by_its_number(
    items: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        chunks_of(items)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [{str(n): "v" for n in range(17)}, {"": "v"}, {"k" * 65: "v"}, {"k": "v" * 1025}],
)
def test_metadata_beyond_what_any_service_takes_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(palimpsest.InvalidArgument, match="metadata"):
        chunks_of("x", metadata=metadata)
