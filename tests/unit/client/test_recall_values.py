"""The query that messages are, and what the client makes of a recall."""

from typing import Any

import grpc
import pytest

import palimpsest
from palimpsest._recall import MAX_QUERY_CHARACTERS, query_of, recalled
from palimpsest.v1 import common_pb2, session_service_pb2
from tests.unit.client.agent_service import refuse
from tests.unit.client.server import add, serving

TURNS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "I am in Bergen."},
    {"role": "assistant", "content": "It rains there."},
    {"role": "user", "content": "I eat no nuts."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "What may I eat?"},
]


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        ("", ""),
        ("What may I eat?", "What may I eat?"),
        ([], ""),
        (iter(()), ""),
        (TURNS, "What may I eat?\nNoted.\nI eat no nuts."),
        (iter(TURNS), "What may I eat?\nNoted.\nI eat no nuts."),
        (TURNS[-1], "What may I eat?"),
        (
            [*TURNS, {"role": "assistant", "content": "Soup."}],
            "What may I eat?\nNoted.\nI eat no nuts.",
        ),
        (TURNS[2:3], "It rains there."),
        (TURNS[:1], ""),
        (["a", "b"], "b\na"),
        ([TURNS[-1], {"role": "tool", "content": "soup"}], "What may I eat?"),
        ("b" * 50_000 + "e" * 50_000, "b" * 7999 + "\n" + "e" * 7999),
        (["x" * 900, "y" * 900, "what?"], f"what?\n{'y' * 150}\n{'x' * 150}"),
    ],
)
def test_the_query_begins_with_the_last_message_of_the_user(messages: Any, due: str) -> None:
    assert query_of(messages) == due


@pytest.mark.parametrize("other", [None, {}, 7])
def test_a_query_that_is_no_text_and_no_message_is_refused(other: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="message 1: "):
        query_of(other)


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
SEEN = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_long_question_keeps_its_beginning_and_its_end(number: int) -> None:
    text = {"role": "user", "content": f"What may I eat? {'word ' * 3294}Thanks."}
    query = query_of([*TURNS[:-1], *[text] * number])
    assert len(query) <= MAX_QUERY_CHARACTERS
    question = query.splitlines()
    assert question[0].startswith("What may I eat? word")
    assert "word Thanks." in query
    assert len(question) == 4


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        (
            [{"role": "user", "content": [IMAGE]}, *TURNS[3:]],
            "What may I eat?\nNoted.\nI eat no nuts.",
        ),
        (
            [*TURNS[:4], {"role": "user", "content": [IMAGE]}, *TURNS[4:]],
            "What may I eat?\nNoted.\nI eat no nuts.",
        ),
        (
            [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What is it?"}]}],
            "What is it?",
        ),
        ([{"role": "user", "content": "What is it?", "images": ["data"]}], "What is it?"),
        ([TURNS[1], {"role": "assistant", "content": [IMAGE]}], "I am in Bergen."),
        ([TURNS[1], {"role": "user", "content": [SEEN]}], "I am in Bergen."),
        ([TURNS[1], {"role": "user", "content": [SEEN, IMAGE]}], "I am in Bergen."),
        ([TURNS[1], {"type": "web_search_call"}], "I am in Bergen."),
        ([7, *TURNS[3:]], "What may I eat?\nNoted.\nI eat no nuts."),
        ([{"role": "user", "content": "Who am I?", "name": "a/b", "thread": 7}], "Who am I?"),
    ],
)
def test_what_is_no_text_and_what_is_older_does_no_harm(messages: Any, due: str) -> None:
    assert query_of(messages) == due


@pytest.mark.parametrize(
    "last",
    [{"role": "user", "content": [IMAGE]}, {"type": "human", "content": [IMAGE]}],
)
def test_a_question_without_text_is_refused_by_its_number(last: Any) -> None:
    with pytest.raises(ValueError, match="message 2: part 1: an image"):
        query_of(["x", last, {"role": "assistant", "content": "I see."}])


def test_a_recall_is_its_text_and_its_parts() -> None:
    at = common_pb2.PositionRange(first=3, last=3)
    Part = session_service_pb2.RecallResponse.Part
    Memory = session_service_pb2.RecallResponse.Memory
    found = recalled(
        session_service_pb2.RecallResponse(
            text="the text",
            tokens=2,
            parts=[
                Part(
                    section=session_service_pb2.RECALL_SECTION_MEMORY,
                    text="a: b",
                    memory="m",
                    path="$.a",
                ),
                Part(
                    section=session_service_pb2.RECALL_SECTION_CHUNKS,
                    text="c",
                    positions=at,
                    score=0.5,
                ),
            ],
            memories=[Memory(memory="m", revision=2, applied_position=1)],
            read_point=common_pb2.ReadPoint(applied_position=4, read_token="t"),
        )
    )
    assert str(found) == f"{found}" == "the text"
    assert found
    assert (found.positions, found.tokens, found.mode, found.index) == ((3,), 2, None, None)
    assert [(one.section, one.positions, one.characters) for one in found.parts] == [
        ("memory", None, None),
        ("chunks", palimpsest.PositionRange(first=3, last=3), None),
    ]
    assert found.memories[0] == palimpsest.RecalledMemory(
        memory="m", revision=2, applied_position=1
    )


class Service:
    """Has no session, or another reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def Recall(self, request: Any, context: Any) -> Any:
        self.asked = request
        await refuse(context, grpc.StatusCode.NOT_FOUND, self.reason, "there is none")

    def register(self, server: Any) -> None:
        add(server, "SessionService", "unary", self.Recall, session_service_pb2.RecallRequest)


async def test_of_a_missing_session_nothing_is_known() -> None:
    service = Service("SESSION_NOT_FOUND")
    async with (
        serving(service.register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        session = client.session("alice")
        found = await session.recall(TURNS, tokens=9, mode="words", excluded_threads=["t"])
        assert (str(found), bool(found), found.positions) == ("", False, ())
        asked = service.asked
        assert (asked.max_tokens, asked.mode) == (9, session_service_pb2.SEARCH_MODE_WORDS)
        assert (asked.query[:15], list(asked.filter.excluded_threads)) == ("What may I eat?", ["t"])
        for others in ({"memories": ["m"]}, {"after": "token"}):
            with pytest.raises(palimpsest.NotFound):
                await session.recall("x", **others)
        service.reason = "MEMORY_NOT_FOUND"
        with pytest.raises(palimpsest.NotFound):
            await session.recall("x")
        with pytest.raises(ValueError, match="memories must be a collection of strings"):
            await session.recall("x", memories="m")
        with pytest.raises(ValueError, match="sections must be 'memory' or"):
            await session.recall("x", sections=["chunk"])  # type: ignore[list-item]


async def test_an_older_service_is_said_to_be_older() -> None:
    async with (
        serving(lambda server: None) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        with pytest.raises(palimpsest.PalimpsestError, match="it is older than this client"):
            await client.session("alice").recall("x")
