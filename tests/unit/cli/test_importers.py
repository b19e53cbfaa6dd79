"""Files of other services, in small: what is read of them, and what is refused."""

import json
from typing import Any

import pytest

from palimpsest import Chunk
from service.cli.importers import FORMATS, ForeignFormat
from service.cli.importers.records import (
    ImportedRecord,
    UnreadableRecord,
    batches,
    metadata_of,
    plain_id,
)
from service.cli.output import CommandError
from service.cli.transfer import read_all, session_id
from service.settings.config import Limits


def read(name: str, value: Any) -> tuple[list[ImportedRecord], list[UnreadableRecord]]:
    text = value if isinstance(value, str) else json.dumps(value)
    found = list(read_all(FORMATS[ForeignFormat(name)], text))
    records = [one for one in found if isinstance(one, ImportedRecord)]
    return records, [one for one in found if isinstance(one, UnreadableRecord)]


MEM0 = {
    "results": [
        {
            "id": "6c1e",
            "memory": "Prefers trains to planes",
            "hash": "9f",
            "metadata": {"category": "travel", "score": 3},
            "created_at": "2026-03-01T08:30:00.123456789-08:00",
            "updated_at": None,
            "user_id": "dev",
            "run_id": "trip/7",
            "novel": {"field": 1},
        },
        {"id": "6c1f", "user_id": "dev", "created_at": "2026-03-01T08:30:00Z"},
        "no object",
        {"id": "6c20", "memory": "Is 30", "user_id": "ann", "created_at": "yesterday"},
    ],
    "relations": [],
}


def test_memories_of_mem0_are_texts_with_times_threads_and_sources() -> None:
    (record, timeless), unreadable = read("mem0", MEM0)
    assert [one.place for one in unreadable] == ["results[1]", "results[2]"]
    assert (timeless.place, timeless.text, timeless.occurred_at) == ("results[3]", "Is 30", None)
    assert timeless.problem == "its time 'yesterday' is none; it is imported without a time"
    assert not record.problem
    assert record.occurred_at is not None
    assert record.occurred_at.isoformat() == "2026-03-01T16:30:00.123456+00:00"
    assert record.names["user"] == "dev"
    (chunk,) = record.chunks()
    assert (chunk.text, chunk.thread, chunk.source) == (
        "Prefers trains to planes",
        plain_id("trip/7"),
        "mem0",
    )
    assert chunk.metadata["category"] == "travel"
    assert chunk.metadata["novel"] == '{"field": 1}'
    # The older form is a list.
    assert read("mem0", MEM0["results"][:1])[0][0].text == record.text


AGENT = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Anna",
            "system": "You are …",
            "block_ids": ["block-0", "block-9"],
            "messages": [
                {"id": "message-0", "role": "system", "content": [{"type": "text", "text": "…"}]},
                {
                    "id": "message-1",
                    "role": "user",
                    "content": json.dumps({"type": "user_message", "message": "Where is it?"}),
                    "created_at": "2026-05-01T10:00:00+00:00",
                },
                {"id": "m2", "role": "user", "content": json.dumps({"type": "heartbeat"})},
                {
                    "id": "message-3",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "I look it up."}],
                    "tool_calls": [
                        {"id": "c", "function": {"name": "find", "arguments": '{"q": "key"}'}},
                        {
                            "id": "d",
                            "function": {
                                "name": "send_message",
                                "arguments": '{"message": "In the hall."}',
                            },
                        },
                    ],
                },
                {"id": "message-4", "role": "tool", "content": [{"type": "text", "text": "hall"}]},
                {"id": "message-5", "content": "?"},
            ],
        }
    ],
    "blocks": [{"id": "block-0", "label": "human", "value": "Likes tea", "limit": 5000}],
}


def test_agents_of_letta_are_blocks_messages_and_steps() -> None:
    records, unreadable = read("letta", AGENT)
    assert [one.place for one in unreadable] == ["agents[0].blocks[1]", "agents[0].messages[5]"]
    chunks = [chunk for one in records for chunk in one.chunks()]
    assert [(one.kind, one.role, one.text or one.action or one.observation) for one in chunks] == [
        ("text", "", "human: Likes tea"),
        ("message", "user", "Where is it?"),
        ("agent_step", "", 'find({"q": "key"})'),
        ("message", "assistant", "In the hall."),
        ("agent_step", "", "hall"),
    ]
    assert chunks[2].thought == "I look it up."
    assert {one.names["user"] for one in records} == {"Anna"}


def test_agent_files_of_the_first_form_are_read() -> None:
    old = {
        "agent_type": "memgpt_agent",
        "name": "Bob",
        "core_memory": [{"label": "persona", "value": "Kind", "created_at": "2025-04-01T00:00:00"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }
    records, unreadable = read("letta", old)
    assert [one.text for one in records] == ["persona: Kind", "Hi"]
    assert unreadable == []


def test_items_of_langgraph_are_texts_by_namespace() -> None:
    items = [
        {
            "namespace": ["memories", "ann"],
            "key": "k1",
            "value": {"kind": "Memory", "content": {"content": "Has a dog", "since": 2020}},
            "created_at": "2026-01-01T00:00:00+00:00",
            "updated_at": "2026-01-02T00:00:00+00:00",
        },
        {"prefix": "memories.bob", "key": "k2", "value": {"age": 30}},
        {"key": "k3", "value": {"text": "?"}},
    ]
    records, unreadable = read("langgraph", {"items": items})
    assert [one.text for one in records] == ["Has a dog", '{"age": 30}']
    assert [one.names["namespace"] for one in records] == ["memories:ann", "memories:bob"]
    assert records[0].metadata["kind"] == "Memory"
    assert [one.place for one in unreadable] == ["items[2]"]
    lines = "\n".join(json.dumps(one) for one in items)
    again, unreadable = read("langgraph", lines)
    assert [one.text for one in again] == ["Has a dog", '{"age": 30}']
    assert [one.place for one in unreadable] == ["line 3, items[0]"]


def chatgpt_node(name: str, parent: str | None, role: str, text: str) -> dict[str, Any]:
    message = {
        "id": name,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": 1760000000.5,
        "content": {"content_type": "text", "parts": [text]},
        "metadata": {"model_slug": "gpt-5"} if role == "assistant" else {},
        "recipient": "all",
    }
    return {"id": name, "message": message, "parent": parent, "children": []}


def test_conversations_of_chatgpt_are_the_branch_that_was_shown() -> None:
    mapping = {
        "root": {"id": "root", "message": None, "parent": None, "children": ["a"]},
        "a": chatgpt_node("a", "root", "user", "Tea or coffee?"),
        "b": chatgpt_node("b", "a", "assistant", "Coffee."),
        "c": chatgpt_node("c", "a", "assistant", "Tea."),
        "s": chatgpt_node("s", "c", "system", ""),
        "d": {"id": "d", "message": {"id": "d"}, "parent": "s", "children": []},
    }
    chat = {"title": "Drinks", "conversation_id": "c1", "mapping": mapping, "current_node": "d"}
    records, unreadable = read("chat", [chat])
    assert [(one.role, one.text) for one in records] == [
        ("user", "Tea or coffee?"),
        ("assistant", "Tea."),
    ]
    assert {one.thread for one in records} == {"c1"}
    assert records[1].metadata["model"] == "gpt-5"
    assert records[0].occurred_at is not None
    assert [one.place for one in unreadable] == ["conversations[0].mapping['d']"]


def test_a_loop_of_parents_ends() -> None:
    mapping = {"a": chatgpt_node("a", "b", "user", "A"), "b": chatgpt_node("b", "a", "user", "B")}
    records, _ = read("chat", [{"mapping": mapping, "current_node": "a"}])
    assert [one.text for one in records] == ["B", "A"]


def test_conversations_of_claude_and_openai_are_messages() -> None:
    claude = {
        "uuid": "u1",
        "name": "Trip",
        "chat_messages": [
            {
                "uuid": "m1",
                "sender": "human",
                "text": "Where to?",
                "content": [{"type": "text", "text": "Where to?"}],
                "created_at": "2026-02-01T09:00:00.000000Z",
                "attachments": [],
            },
            {"uuid": "m2", "sender": "assistant", "text": "Oslo.", "content": []},
        ],
    }
    records, _ = read("chat", [claude])
    assert [(one.role, one.text, one.thread) for one in records] == [
        ("user", "Where to?", "u1"),
        ("assistant", "Oslo.", "u1"),
    ]
    openai = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "42"},
    ]
    for form in (openai, {"messages": openai}, [{"messages": openai}]):
        records, unreadable = read("chat", form)
        assert [one.text or one.action or one.observation for one in records] == [
            "Hi",
            "f({})",
            "42",
        ]
        assert unreadable == []


@pytest.mark.parametrize("name", list(ForeignFormat))
@pytest.mark.parametrize("value", [1, None, "text", [], {}, [1], [[]], {"results": 1}, [{"a": {}}]])
def test_other_content_is_refused_and_never_fails(name: str, value: Any) -> None:
    records, unreadable = read(name, json.dumps(value))
    assert records == []
    assert unreadable or value == []


def test_sessions_are_named_by_a_template() -> None:
    assert session_id("user:{user}", {"user": "ann"}) == "user:ann"
    assert session_id("user:{user}", {"user": "a/b"}).startswith("user:a_b-")
    assert session_id("{user}", {}) == "imported"
    with pytest.raises(CommandError, match="no record has"):
        session_id("{user.__class__}", {"user": "a"})


def test_labels_fit_what_the_api_takes() -> None:
    assert len(plain_id("é" * 400).encode()) <= 256
    assert plain_id(" a\n/b ").startswith("a__b-")
    assert plain_id(" \u2028 ").startswith("_-")
    assert plain_id("  ") == ""
    pairs = metadata_of({f"k{n}" * 40: "v" * 2000 for n in range(30)})
    assert len(pairs) == 16
    assert max(map(len, pairs)) <= 64
    assert max(map(len, pairs.values())) <= 1024


def test_different_texts_are_different_ids() -> None:
    texts = ["a/b", "a_b", "a\nb", "a_b ", ".", "..", "_", "\ud800", "\udfff", "x" * 257, "x" * 258]
    assert len({plain_id(one) for one in texts}) == len(texts)
    spaces = [["a:b", "c"], ["a", "b:c"], ["a", "b", "c"], ["a%3Ab", "c"]]
    items = [{"namespace": one, "key": "k", "value": {"text": "t"}} for one in spaces]
    records, _ = read("langgraph", items)
    assert len({session_id("{user}", one.names) for one in records}) == len(spaces)


def size(chunk: Chunk) -> int:
    parts = (chunk.role, chunk.text, chunk.thought, chunk.action, chunk.observation)
    return sum(len(one.encode()) for one in parts)


@pytest.mark.parametrize("letter", ["x", "字", "🙂"])
def test_chunks_and_batches_fit_the_limits_in_each_language(letter: str) -> None:
    limits, text = Limits(), letter * 1_000_000
    message = ImportedRecord(place="", id="", role="r" * 100, text=text)
    step = ImportedRecord(
        place="", id="", thought=letter * 60_000, action=letter * 60_001, observation=text
    )
    for record in (message, step):
        chunks = list(record.chunks())
        assert max(map(size, chunks)) <= limits.max_chunk_bytes
        assert max(len(one.role) for one in chunks) <= 64
        sent = list(batches(chunks))
        assert [one for batch in sent for one in batch] == chunks
        assert max(sum(map(size, batch)) for batch in sent) <= limits.max_batch_bytes
        assert len(sent) < len(chunks)
    assert "".join(one.text for one in message.chunks()) == text
    for part in ("thought", "action", "observation"):
        assert "".join(getattr(one, part) for one in step.chunks()) == getattr(step, part)


def test_a_step_that_fits_is_one_chunk() -> None:
    step = ImportedRecord(place="", id="", thought=" a ", action="b", observation="字" * 70_000)
    (chunk,) = step.chunks()
    assert (chunk.thought, chunk.action, chunk.observation) == (" a ", "b", "字" * 70_000)


def test_the_same_record_has_the_same_id_in_each_file() -> None:
    (one, _), _ = read("mem0", MEM0)
    (other,), _ = read("mem0", [MEM0["results"][0]])
    assert one.request_id("s") == other.request_id("s") != one.request_id("t")
