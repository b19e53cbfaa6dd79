"""What of a request and of a reply is remembered, in the three forms."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest._conversations import conversation_of as chunks_of
from service.proxy.conversation import CHAT, MESSAGES, RESPONSES, Conversation, Form
from service.proxy.conversation import conversation_of as read
from service.proxy.open_calls import MAX_OPEN, CallsInProgress, OpenCalls
from service.proxy.replies import Reply, ReplyReader
from service.proxy.turns import MAX_RESULT_CHARACTERS, ToolOutput, ToolUse, step_messages

ASKED = {"role": "user", "content": "Is it warm in Rome and Oslo?"}
ROME = ToolUse(id="c1", name="weather", arguments='{"city": "Rome"}')
OSLO = ToolUse(id="c2", name="weather", arguments='{"city": "Oslo"}')
IMAGE = {"type": "base64", "media_type": "image/png", "data": "AA=="}


def _function(use: ToolUse) -> dict[str, Any]:
    called = {"name": use.name, "arguments": use.arguments}
    return {"id": use.id, "type": "function", "function": called}


def _block(use: ToolUse) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": use.id,
        "name": use.name,
        "input": json.loads(use.arguments),
    }


def _item(use: ToolUse) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{use.id}",
        "call_id": use.id,
        "name": use.name,
        "arguments": use.arguments,
    }


#: A question, two calls at once with what the model said before, and their results.
TURNS: dict[str, tuple[Form, list[dict[str, Any]]]] = {
    "chat": (
        CHAT,
        [
            {"role": "system", "content": "Be kind."},
            ASKED,
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [_function(ROME), _function(OSLO)],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "30 degrees"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
        ],
    ),
    "messages": (
        MESSAGES,
        [
            ASKED,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    _block(ROME),
                    _block(OSLO),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "30 degrees"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": [{"type": "text", "text": "2"}],
                    },
                ],
            },
        ],
    ),
    "responses": (
        RESPONSES,
        [
            ASKED,
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            _item(ROME),
            _item(OSLO),
            {"type": "function_call_output", "call_id": "c1", "output": "30 degrees"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "2"}],
            },
        ],
    ),
}


def talk_of(form: Form, messages: Sequence[Any], **fields: Any) -> Conversation:
    """Reads a request."""
    return read(form, {"model": "m", form.messages: messages, **fields})


def steps_of(talk: Conversation) -> list[tuple[str, str, str]]:
    """Returns the steps that the service gets."""
    made = step_messages(talk.thought, talk.uses, talk.outputs)
    steps = [one.agent_step for one in chunks_of(made, {}).chunks]
    return [(one.thought, one.action, one.observation) for one in steps]


@pytest.mark.parametrize("name", TURNS)
def test_calls_at_once_are_steps_with_their_results(name: str) -> None:
    talk = talk_of(*TURNS[name])
    assert steps_of(talk) == [
        ("I look.", 'weather({"city": "Rome"})', "30 degrees"),
        ("", 'weather({"city": "Oslo"})', "2"),
    ]
    assert not talk.said
    assert talk.text == ASKED["content"]


@pytest.mark.parametrize("name", TURNS)
def test_the_next_request_has_only_what_is_new(name: str) -> None:
    form, messages = TURNS[name]
    first = talk_of(form, [one for one in messages if one.get("role") == "system"] + [ASKED])
    later = [*messages, {"role": "assistant", "content": "In Rome."}]
    later.append({"role": "user", "content": "And Bonn?"})
    talk = talk_of(form, later)
    assert [text for text, _ in talk.said] == ["And Bonn?"]
    assert not talk.outputs
    assert not talk.uses
    assert talk.thread == first.thread == talk_of(form, messages).thread
    # A turn has one digest, whatever comes after it.
    assert first.said == [(ASKED["content"], talk_of(form, messages).digest)]


def test_results_and_words_in_one_message_are_both_there() -> None:
    form, messages = TURNS["messages"]
    result = {**messages[2], "content": [*messages[2]["content"]]}
    result["content"].append({"type": "text", "text": "Stop, only Rome."})
    talk = talk_of(form, [*messages[:2], result])
    assert len(steps_of(talk)) == 2
    assert [text for text, _ in talk.said] == ["Stop, only Rome."]


def test_marks_for_the_cache_and_instructions_do_not_change_what_a_turn_is() -> None:
    part = {"type": "text", "text": "Hi"}
    marked = {**part, "cache_control": {"type": "ephemeral"}}
    bare = talk_of(MESSAGES, [{"role": "user", "content": [part]}], system="It is 12:00.")
    other = talk_of(MESSAGES, [{"role": "user", "content": [marked]}], system="It is 12:01.")
    assert (bare.thread, bare.digest, bare.said) == (other.thread, other.digest, other.said)
    chat = [{"role": "developer", "content": "It is 12:00."}, {"role": "user", "content": "Hi"}]
    again = [{"role": "developer", "content": "It is 12:01."}, {"role": "user", "content": "Hi"}]
    assert talk_of(CHAT, chat).said == talk_of(CHAT, again).said


def test_what_a_program_puts_beside_the_words_is_not_remembered() -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}
    content = [reminder, {"type": "text", "text": "Mend the <b>test</b>."}]
    talk = talk_of(MESSAGES, [{"role": "user", "content": content}])
    assert talk.text == "Mend the <b>test</b>."
    # Where only the program speaks within a turn, the user's newest words stay those before.
    form, messages = TURNS["messages"]
    result = {"role": "user", "content": [*messages[2]["content"], reminder]}
    assert talk_of(form, [*messages[:2], result]).text == ASKED["content"]


def test_the_beginning_of_a_reply_is_no_turn() -> None:
    talk = talk_of(MESSAGES, [ASKED, {"role": "assistant", "content": "{"}])
    assert [text for text, _ in talk.said] == [ASKED["content"]]


def test_several_messages_of_the_user_are_each_remembered() -> None:
    talk = talk_of(CHAT, [ASKED, {"role": "user", "content": "Or Bonn?"}])
    assert [text for text, _ in talk.said] == [ASKED["content"], "Or Bonn?"]
    # The first was sent alone before, and failed.
    assert talk.said[0] == talk_of(CHAT, [ASKED]).said[0]


def test_images_failures_and_long_results_are_text() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "is_error": True,
        "content": [{"type": "text", "text": "no"}, {"type": "image", "source": IMAGE}],
    }
    talk = talk_of(MESSAGES, [{"role": "user", "content": [result]}])
    assert steps_of(talk) == [("", "", "Error: no\n[image]")]
    long = step_messages("", [], [ToolOutput(id="x", text="a" * (MAX_RESULT_CHARACTERS + 5))])
    assert long[0]["content"].endswith("(5 characters more)")


@pytest.mark.parametrize(
    "message",
    [
        *(7, None, {}, {"role": 7}, {"role": "tool"}, {"type": "function_call"}, {"type": []}),
        {"role": "assistant", "tool_calls": 7},
        {"role": "assistant", "tool_calls": [{"function": {"name": 7}}]},
        {"role": "user", "content": [{"type": "tool_result"}]},
    ],
)
@pytest.mark.parametrize("form", [CHAT, MESSAGES, RESPONSES])
def test_what_is_no_message_is_passed_over(form: Form, message: Any) -> None:
    talk = talk_of(form, [ASKED, message, message])
    step_messages(talk.thought, talk.uses, talk.outputs)
    assert talk.text == ASKED["content"]


def stream(form: Form, *events: dict[str, Any]) -> Reply:
    """Reads a streamed reply, whose bytes come three at a time."""
    reader = ReplyReader(form, streamed=True)
    data = b"".join(f"event: x\ndata: {json.dumps(one)}\n\n".encode() for one in events)
    for at in range(0, len(data), 3):
        reader.feed(data[at : at + 3])
    reader.close()
    return reader.reply


def test_calls_at_once_are_read_from_pieces_of_chat() -> None:
    def chunk(*calls: dict[str, Any], **delta: Any) -> dict[str, Any]:
        return {"choices": [{"delta": {**delta, "tool_calls": [*calls]}}]}

    def piece(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
        return {
            "index": index,
            "function": {"arguments": arguments, **fields.pop("function", {})},
        } | fields

    reply = stream(
        CHAT,
        {"choices": [{"delta": {"role": "assistant", "content": "I look."}}]},
        chunk(piece(0, "", id="c1", function={"name": "weather"})),
        chunk(piece(0, '{"city": '), piece(1, "", id="c2", function={"name": "weather"})),
        chunk(piece(1, '{"city": "Oslo"}'), piece(0, '"Rome"}')),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    )
    assert reply.uses == [ROME, OSLO]
    assert (reply.text, reply.is_complete) == ("I look.", True)


def test_calls_at_once_are_read_from_anthropics_events() -> None:
    def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0}
    reply = stream(
        MESSAGES,
        {"type": "message_start", "message": {"usage": {**usage, "output_tokens": 1}}},
        start(0, {"type": "thinking", "thinking": ""}),
        delta(0, type="thinking_delta", thinking="hm"),
        start(1, {"type": "text", "text": ""}),
        delta(1, type="text_delta", text="I look."),
        start(2, {**_block(ROME), "input": {}}),
        start(3, {**_block(OSLO), "input": {}}),
        delta(2, type="input_json_delta", partial_json='{"city": "Rome"}'),
        delta(3, type="input_json_delta", partial_json='{"city": "Oslo"}'),
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 30}},
        {"type": "message_stop"},
    )
    assert reply.uses == [ROME, OSLO]
    assert (reply.text, reply.input_tokens, reply.output_tokens) == ("I look.", 12, 30)
    assert reply.is_ended


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_calls_are_read_from_the_last_event_of_responses(kind: str) -> None:
    output = [TURNS["responses"][1][2], _item(ROME), _item(OSLO)]
    usage = {"input_tokens": 9, "output_tokens": 4}
    body = {"id": "r1", "status": kind.partition(".")[2], "output": output, "usage": usage}
    reply = stream(
        RESPONSES,
        {"type": "response.output_text.delta", "delta": "I lo"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"type": kind, "response": body},
    )
    assert reply.uses == [ROME, OSLO]
    assert (reply.id, reply.text, reply.is_ended) == ("r1", "I look.", True)


class TestOpenCalls:
    """Calls until their results come."""

    def made(self, number: int = 0, *uses: ToolUse, session: str = "s") -> OpenCalls:
        uses = uses or (ToolUse(id=f"c{number}", name="f", arguments=""),)
        return OpenCalls(
            session=session,
            thread="t",
            ids=[one.id for one in uses],
            thought="",
            uses=list(uses),
            since=float(number),
        )

    def test_results_get_the_calls_of_their_own_conversation(self, tmp_path: Path) -> None:
        calls, made = CallsInProgress(tmp_path), self.made(1, ROME, OSLO)
        calls.add(self.made(2, ROME, OSLO, session="other"))
        calls.add(made)
        assert calls.find("third", "t", ["c1"]) is None
        assert calls.find("s", "t", ["c2", "c1"]) is made
        calls.remove(made)
        assert calls.find("s", "t", ["c2", "c1"]) is None
        assert calls.find("other", "t", ["c1"]) is not None

    def test_calls_without_results_are_given_up_once(self, tmp_path: Path) -> None:
        calls = CallsInProgress(tmp_path)
        for number in range(3):
            calls.add(self.made(number))
        late = calls.expired(2.0)
        assert [one.since for one in late] == [0.0, 1.0]
        for one in late:
            calls.give_up(one)
        for known in (calls, CallsInProgress(tmp_path)):
            assert not known.expired(2.0)
            # Their results come alone, and not with the call a second time.
            found = known.find("s", "t", ["c1"])
            assert found is not None
            assert not found.uses

    def test_too_many_are_not_kept(self, tmp_path: Path) -> None:
        calls = CallsInProgress(tmp_path)
        for number in range(MAX_OPEN + 2):
            calls.add(self.made(number))
        assert [one.since for one in calls.expired(-1.0)] == [0.0, 1.0]
        for one in calls.expired(-1.0):
            calls.give_up(one)
        assert not calls.expired(-1.0)
        assert len(list(tmp_path.glob("*.json"))) == MAX_OPEN

    def test_another_process_knows_them(self, tmp_path: Path) -> None:
        first, made = CallsInProgress(tmp_path), self.made(1, ROME, OSLO)
        first.add(made)
        (tmp_path / "broken.json").write_text("{")
        second = CallsInProgress(tmp_path)
        assert second.find("s", "t", ["c2"]) == made
        # The first still runs, and remembers them with their results.
        first.remove(made)
        assert not second.expired(2.0)
