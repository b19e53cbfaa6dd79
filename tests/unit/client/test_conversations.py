"""What `session.remember` makes of messages, and what it refuses before anything is sent."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam

import palimpsest
from palimpsest import sync
from palimpsest._conversations import (
    TURN_CHARACTERS,
    append_requests,
    conversation_of,
)
from palimpsest._convert_chunks import chunk, chunk_filter, digest, size_bytes
from palimpsest._splitting import CHUNK_CHARACTERS
from tests.support.properties import examples
from tests.unit.client.messages import call, conversation, message, result, said, shown, text

CALLS = [
    {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}},
    {"id": "2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
]
WHEN = datetime(2026, 5, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        ("a text", ["a text"]),
        (["a", {"text": "b"}], ["a", "b"]),
        ([text("a", annotations=[]), {"text": "b", "thread": "t"}], ["a", "b"]),
        ((one for one in ["a", "b"]), ["a", "b"]),
        ({"role": "user", "content": "hi"}, [("user", "hi")]),
        (SimpleNamespace(role="user", content="hi"), [("user", "hi")]),
        (palimpsest.ChatMessage(role="user", content="hi"), [("user", "hi")]),
        (palimpsest.Chunk(kind="message", role="user", text="hi"), [("user", "hi")]),
        ({"thought": "t", "action": "a"}, [("t", "a", "")]),
        (message("user", text("a"), text("b", "input_text")), [("user", "a\nb")]),
        (
            message("assistant", text("On ", citations=[1]), text("Monday"), text("Yes.")),
            [("assistant", "On Monday\nYes.")],
        ),
        (message("assistant", text("a", "output_text")), [("assistant", "a")]),
        ({"role": "assistant", "content": None, "refusal": "No."}, [("assistant", "No.")]),
        (ChatCompletionMessage(role="assistant", content="hi"), [("assistant", "hi")]),
        (
            [{"type": "human", "content": "hi"}, {"type": "AIMessageChunk", "content": "ho"}],
            [("user", "hi"), ("assistant", "ho")],
        ),
    ],
)
def test_texts_and_messages_are_kept_as_they_are(messages: Any, due: list[Any]) -> None:
    assert said(messages) == due


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        # OpenAI's, with results in another order than their calls.
        (
            [
                {"role": "user", "content": "What is there?"},
                {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
                {"role": "tool", "tool_call_id": "2", "content": "two"},
                {"role": "tool", "tool_call_id": "1", "content": [text("o"), text("ne")]},
                {"role": "assistant", "content": "One and two."},
            ],
            [
                ("user", "What is there?"),
                ("I look.", 'find({"a": 1})', "o\nne"),
                ("", "run(ls)", "two"),
                ("assistant", "One and two."),
            ],
        ),
        # OpenAI's older form.
        (
            [
                {"role": "assistant", "content": None, "function_call": CALLS[0]["function"]},
                {"role": "function", "name": "find", "content": "one"},
            ],
            [("", 'find({"a": 1})', "one")],
        ),
        # Items of the Responses API.
        (
            [
                {"type": "reasoning", "summary": []},
                {
                    "type": "function_call",
                    "call_id": "c",
                    "id": "i",
                    "name": "f",
                    "arguments": "{}",
                },
                {"type": "function_call_output", "call_id": "c", "output": "done"},
                {"type": "message", "role": "assistant", "content": [text("Yes.", "output_text")]},
            ],
            [("", "f({})", "done"), ("assistant", "Yes.")],
        ),
        # Anthropic's.
        (
            [
                message(
                    "assistant",
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    text("I look."),
                    call("find", {"a": "é"}, "1"),
                    call("stop", {}, "2"),
                ),
                message(
                    "user",
                    result([text("no")], "2", is_error=True),
                    result("one", "1"),
                    text("And?"),
                ),
            ],
            [
                ("Hm.\nI look.", 'find({"a": "é"})', "one"),
                ("", "stop({})", "Error: no"),
                ("user", "And?"),
            ],
        ),
        # A tool of the provider, with what is said afterwards.
        (
            message(
                "assistant",
                {**call("web_search", {"query": "q"}, "1"), "type": "server_tool_use"},
                {
                    **result([{"type": "web_search_result", "title": "T", "url": "u"}], "1"),
                    "type": "web_search_tool_result",
                },
                text("It is open."),
            ),
            [("", 'web_search({"query": "q"})', "T (u)"), ("assistant", "It is open.")],
        ),
        # LangChain's for Anthropic: calls are there twice; those of a stream have no input in one.
        (
            {
                **message("assistant", text("I look."), call("f", {}, "1"), call("g", {}, "2")),
                "tool_calls": [
                    {"type": "tool_call", "id": "1", "name": "f", "args": {"a": 1}},
                    {"type": "tool_call", "id": "3", "name": "h", "args": {}},
                ],
            },
            [("I look.", 'f({"a": 1})', ""), ("", "g({})", ""), ("", "h({})", "")],
        ),
        # Without ids: by the name, else the oldest.
        (
            [
                {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}]},
                {"role": "assistant", "tool_calls": [{"name": "b", "args": {"x": 1}}]},
                {"role": "tool", "tool_name": "b", "content": "of b"},
                {"role": "tool", "content": "of a"},
            ],
            [("", "a({})", "of a"), ("", 'b({"x": 1})', "of b")],
        ),
        # An id that is used again.
        (
            2
            * [
                message("assistant", call("f", {}, "0")),
                message("user", result("r", "0")),
            ],
            2 * [("", "f({})", "r")],
        ),
        # … of the latest call, where another was aborted.
        (
            [
                message("assistant", call("f", 1, "0")),
                message("user", text("No, g.")),
                message("assistant", call("g", 2, "0")),
                message("user", result("r", "0")),
            ],
            [("", "f(1)", ""), ("user", "No, g."), ("", "g(2)", "r")],
        ),
        # … within one message in its order, as are calls without ids.
        *(
            (
                [
                    message("assistant", call("f", 0, id)),
                    message("assistant", call("f", 1, id), call("f", 2, id)),
                    message("user", result("r1", id), result("r2", id)),
                ],
                [("", "f(0)", ""), ("", "f(1)", "r1"), ("", "f(2)", "r2")],
            )
            for id in ("0", "")
        ),
        # A name is looked for among the calls of the latest message.
        (
            [
                message("assistant", call("f", 1)),
                message("assistant", call("g", 2), call("h", 3)),
                {"role": "tool", "name": "h", "content": "of h"},
                {"role": "tool", "name": "f", "content": "of none"},
            ],
            [("", "f(1)", ""), ("", "g(2)", ""), ("", "h(3)", "of h"), ("", "", "of none")],
        ),
        # A call without a result, and results without a call.
        (
            [
                message("assistant", call("f", {}, "1")),
                message("user", result("r", "9")),
                {"role": "tool", "tool_call_id": "8", "content": "s"},
            ],
            [("", "f({})", ""), ("", "", "r"), ("", "", "s")],
        ),
        # What the model thinks without a call is not kept.
        (
            {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
            [("assistant", "Yes.")],
        ),
        (
            {**message("assistant", call("f", "x")), "reasoning_content": "Hm."},
            [("Hm.", "f(x)", "")],
        ),
    ],
)
def test_calls_with_their_results_are_steps(messages: Any, due: list[Any]) -> None:
    assert said(messages) == due


def test_objects_of_a_client_are_read_within_mappings_too() -> None:
    asked = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "I look.", "tool_calls": CALLS[:1]}
    )
    due = [("I look.", 'find({"a": 1})', "")]
    assert said(asked) == said([asked]) == due
    held = {"role": "assistant", "content": asked.content, "tool_calls": asked.tool_calls}
    assert said(held) == due


def test_labels_of_a_message_come_before_those_of_all() -> None:
    messages = [
        {"role": "user", "content": "a", "name": "alice", "metadata": {"b": "own"}},
        {"role": "user", "content": "b", "name": "alice", "source": "user:1", "occurred_at": WHEN},
        {**message("assistant", call("f", {})), "thread": "own"},
        "text",
    ]
    labels: dict[str, Any] = {"thread": "all", "source": "app", "metadata": {"a": "all"}}
    found = [chunk(one) for one in conversation(messages, **labels).chunks]
    assert [one.thread for one in found] == ["all", "all", "own", "all"]
    assert [one.source for one in found] == ["alice", "user:1", "app", "app"]
    assert [one.occurred_at for one in found] == [None, WHEN, None, None]
    assert found[0].metadata == {"a": "all", "b": "own"}


@pytest.mark.parametrize(
    "returned",
    [
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        message("user", result("r", "1")),
    ],
)
def test_labels_of_a_result_are_those_of_its_step_unless_its_call_has_them(
    returned: dict[str, Any],
) -> None:
    asked = {**message("assistant", call("f", {}, "1")), "thread": "t", "metadata": {"a": "call"}}
    returned = {
        **returned,
        "thread": "other",
        "source": "shop",
        "occurred_at": WHEN,
        "metadata": {"a": "result", "b": "result"},
    }
    labels: dict[str, Any] = {"source": "all", "metadata": {"a": "all", "c": "all"}}
    (found,) = [chunk(one) for one in conversation([asked, returned], **labels).chunks]
    assert (found.action, found.observation) == ("f({})", "r")
    assert (found.thread, found.source, found.occurred_at) == ("t", "shop", WHEN)
    assert found.metadata == {"a": "call", "b": "result", "c": "all"}
    for wrong in ({"thread": "a/b"}, {"source": 7}, {"metadata": 7}):
        with pytest.raises((TypeError, ValueError), match="message 2: "):
            conversation([asked, {**returned, **wrong}])


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_are_left_out_unless_they_are_wanted(role: str) -> None:
    messages = [{"role": role, "content": "Be kind."}, {"role": "user", "content": "hi"}]
    found = conversation(messages)
    assert ([shown(one) for one in found.chunks], found.skipped) == ([("user", "hi")], 1)
    found = conversation_of(messages, {}, include_system=True)
    assert (shown(found.chunks[0]), found.skipped) == ((role, "Be kind."), 0)


@pytest.mark.parametrize(
    "empty",
    [
        "  ",
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": [], "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": ""},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]},
    ],
)
def test_empty_messages_are_left_out(empty: Any) -> None:
    found = conversation([empty, "x"])
    assert ([shown(one) for one in found.chunks], found.skipped) == (["x"], 1)


@pytest.mark.parametrize(
    ("messages", "kind", "due"),
    [
        (None, TypeError, "message 1: a value of type NoneType is not a text, a message with"),
        ([], ValueError, "nothing to remember"),
        ("", ValueError, "nothing to remember"),
        (iter(()), ValueError, "nothing to remember"),
        (b"bytes", TypeError, "message 1: a value of type bytes"),
        (["x", 7], TypeError, "message 2: a value of type int"),
        ([("user", "hi")], TypeError, "message 1: a value of type tuple"),
        (ChatCompletionMessage, TypeError, "message 1: a value of type ModelMetaclass"),
        ({}, ValueError, "message 1: a mapping of nothing is not"),
        (
            {"text": "a", "observation": "b"},
            ValueError,
            "message 1: a mapping of observation, text is not",
        ),
        ({"messages": []}, ValueError, "message 1: a mapping of messages is not"),
        ({"id": "x", "choices": []}, ValueError, "give its message, such as reply.choices[0]"),
        (["x", {"role": "user"}], ValueError, "message 2: it has no content, only role"),
        ({"role": "user", "parts": []}, ValueError, "message 1: it has no content, only parts"),
        ({"role": 7, "content": "x"}, TypeError, "message 1: its role must be a text, not int"),
        ({"role": "user", "content": 7}, TypeError, "its content must be a text or a list"),
        (message("user", {"type": "text"}), TypeError, "part 1 must be a text, not NoneType"),
        ({"role": "user", "content": [7]}, TypeError, "message 1: part 1 is of type int"),
        ({"role": "user", "content": "x", "name": "a/b"}, ValueError, "its name 'a/b' is no id"),
        ({"role": "user", "content": "x", "name": 7}, TypeError, "its name must be a text"),
        (["x", {"text": "y", "thread": "a/b"}], ValueError, "message 2: its thread 'a/b' is no"),
        ({"text": "y", "source": "s" * 257}, ValueError, "and have at most 256 bytes"),
        ({"role": "assistant", "tool_calls": [{}]}, ValueError, "tool call 1 has no name"),
        ({"role": "assistant", "tool_calls": 7}, TypeError, "tool_calls must be"),
        ({"role": "", "content": "x"}, ValueError, "message 1: "),
        ({"role": "r" * 65, "content": "x"}, palimpsest.InvalidArgument, "message 1: its role"),
        (["x", "a\0b"], palimpsest.InvalidArgument, "message 2: it holds a NUL character; text."),
        (["x", "a\ud83d"], ValueError, r"message 2: it holds '\ud83d', half of a surrogate pair"),
        ({"action": "a\ud83d"}, ValueError, r"message 1: it holds '\ud83d'"),
    ],
)
def test_what_is_no_message_is_named_by_its_number(
    messages: Any, kind: type[Exception], due: str
) -> None:
    with pytest.raises(kind) as caught:
        conversation(messages)
    assert due in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "due"),
    [
        (message("user", text("x"), {"type": "image_url"}), "part 2: an image (image_url)"),
        (message("user", {"type": "input_image"}), "part 1: an image (input_image)"),
        (message("user", {"type": "image"}), "part 1: an image (image)"),
        (message("user", {"type": "input_audio"}), "part 1: audio (input_audio)"),
        (message("user", {"type": "file"}), "part 1: a file (file)"),
        (message("user", {"type": "document"}), "part 1: a document (document)"),
        (message("user", result([{"type": "image"}])), "part 1, part 1: an image (image)"),
        ({"role": "tool", "content": [{"type": "image"}]}, "part 1: an image (image)"),
        ({"role": "assistant", "content": None, "audio": {"id": "a"}}, "audio (audio)"),
        ({"role": "user", "content": "x", "images": ["…"]}, "an image (images)"),
        ({"type": "image_generation_call", "id": "i"}, "an image (image_generation_call)"),
    ],
)
def test_what_is_no_text_is_refused_by_its_name(bad: Any, due: str) -> None:
    with pytest.raises(ValueError, match="only text is") as caught:
        conversation([{"role": "user", "content": "hi"}, bad])
    assert str(caught.value).startswith(f"message 2: {due} is not remembered")


def test_labels_that_nothing_has_are_refused() -> None:
    with pytest.raises(TypeError, match="there is no label 'thraed'"):
        conversation("x", thraed="t")
    with pytest.raises(ValueError, match="occurred_at must have a time zone"):
        conversation("x", occurred_at=datetime(2026, 5, 3))


@pytest.mark.parametrize("given", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_times_that_utc_does_not_have_are_refused(given: str) -> None:
    at = datetime.fromisoformat(given)
    with pytest.raises(ValueError, match=r"message 1: occurred_at .* is not within the years"):
        conversation("x", occurred_at=at)
    with pytest.raises(ValueError, match=r"occurred_since .* is not within the years"):
        chunk_filter(occurred_since=at)


@pytest.mark.parametrize("id", ["..", " a", "a\u2028b", "a\u200eb", "é" * 129, "a\tb"])
def test_what_is_no_id_is_refused_before_anything_is_sent(id: str) -> None:
    with pytest.raises(ValueError, match=r"message 1: its thread .* is no id"):
        conversation("x", thread=id)


@pytest.mark.parametrize("id", ["auth0|5f7c", "josé@example.org", "a\u200db", "a b", "é" * 128])
def test_ids_of_other_systems_are_taken(id: str) -> None:
    (one,) = conversation("x", thread=id, source=id).chunks
    assert one.thread == one.source == id


def words(characters: int) -> str:
    return ("a word " * (characters // 7 + 1))[:characters].strip()


def test_long_texts_become_several_chunks() -> None:
    long = words(3 * CHUNK_CHARACTERS)
    pieces = said(long)
    assert "".join(pieces) == long
    assert len(pieces) > 2
    assert max(map(len, pieces)) <= CHUNK_CHARACTERS
    assert said({"role": "user", "content": words(TURN_CHARACTERS)}) == [
        ("user", words(TURN_CHARACTERS))
    ]
    turns = said({"role": "user", "content": words(2 * TURN_CHARACTERS + 1)})
    assert {role for role, _ in turns} == {"user"}
    assert "".join(piece for _, piece in turns) == words(2 * TURN_CHARACTERS + 1)


def test_long_steps_continue_in_the_order_of_reading() -> None:
    action, seen = words(TURN_CHARACTERS + 9), words(2 * TURN_CHARACTERS)
    steps = said(
        [message("assistant", text("I look."), call("f", action)), message("user", result(seen))]
    )
    assert steps[0][0] == "I look."
    assert not any(thought for thought, _, _ in steps[1:])
    assert "".join(one for _, one, _ in steps) == f"f({action})"
    assert "".join(one for _, _, one in steps) == seen
    last_action = max(number for number, step in enumerate(steps) if step[1])
    first_seen = min(number for number, step in enumerate(steps) if step[2])
    assert first_seen >= last_action


@pytest.mark.parametrize(
    ("messages", "least"), [([f"turn {n}" for n in range(5000)], 20), ("word " * 2_000_000, 20)]
)
def test_many_chunks_become_several_appends_in_order(messages: Any, least: int) -> None:
    chunks = conversation(messages).chunks
    requests = append_requests("s", chunks, "turn-1")
    assert [one for request in requests for one in request.chunks] == list(chunks)
    assert len(requests) == least
    assert max(len(request.chunks) for request in requests) <= 256
    assert max(sum(map(size_bytes, request.chunks)) for request in requests) <= 1024 * 1024
    ids = [request.request_id for request in requests]
    assert ids[0] == "turn-1"
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= 128
    # The same again, as a program does that begins anew.
    assert append_requests("s", conversation(messages).chunks, "turn-1") == requests


def test_without_an_id_each_call_has_one_of_its_own() -> None:
    chunks = conversation("ok").chunks
    first, second = (append_requests("s", chunks, None)[0].request_id for _ in range(2))
    assert first
    assert first != second
    with pytest.raises(ValueError, match="request_id must not be empty"):
        append_requests("s", chunks, "")


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=3)
NAMES = """role content type text name tool_calls id function arguments input output refusal
tool_call_id thread source occurred_at metadata thinking citations"""
KINDS = """text image tool_use tool_result thinking function_call function_call_output user tool
assistant system mcp_call code_interpreter_call web_fetch_result document shell_call_output"""
ANYTHING = st.recursive(
    PLAIN | st.sampled_from(KINDS.split()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150))
@given(messages=ANYTHING)
def test_whatever_is_passed_is_chunks_or_one_clear_error(messages: Any) -> None:
    try:
        found = conversation(messages)
    except (TypeError, ValueError, palimpsest.InvalidArgument) as error:
        assert str(error).startswith(("message ", "there is nothing to remember"))
    else:
        assert all(one.digest == digest(one) for one in found.chunks)


def checked(
    session: sync.Session, asked: list[ChatCompletionMessageParam], reply: ChatCompletionMessage
) -> None:
    """Never runs: mypy reads it, as it reads the programs of users."""
    assert_type(session.remember(asked, thread="t"), palimpsest.Remembered)
    session.remember(reply)
    session.remember([*asked, reply, "a text"])
    session.remember(7)  # type: ignore[arg-type]
