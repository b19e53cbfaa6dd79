"""What `session.remember` makes of tools that the provider of a model runs."""

from typing import Any

import pytest
from openai.types.responses import ResponseFunctionWebSearch

from tests.unit.client.messages import call, conversation, message, result, said, shown, text

OUT = {"stderr": "", "return_code": 0}
RAN = {"stdout": "out", "stderr": "err", "outcome": {"type": "exit", "exit_code": 0}}


def hosted(tool: str, content: Any, id: str = "") -> dict[str, Any]:
    """Returns a result of a tool that Anthropic runs."""
    return {**result(content, id), "type": f"{tool}_tool_result"}


def item(type: str, **more: Any) -> dict[str, Any]:
    """Returns an item of OpenAI's Responses API."""
    return {"type": type, "id": "i", "status": "completed", **more}


def document(words: str) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "data": words}}


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        # Programs that the provider ran, files that it edited, and what it read.
        (
            message(
                "assistant",
                hosted(
                    "bash_code_execution",
                    {"type": "bash_code_execution_result", **RAN, "content": [{"file_id": "f"}]},
                ),
                hosted("code_execution", {"type": "code_execution_result", "stdout": "", **OUT}),
                hosted("text_editor", {"type": "text_editor_code_execution_create_result"}),
                hosted(
                    "text_editor",
                    {
                        "type": "text_editor_code_execution_str_replace_result",
                        "lines": ["-a", "+b"],
                    },
                ),
                hosted("web_fetch", {"type": "web_fetch_result", "content": document("page")}),
                result([{"type": "search_result", "title": "T", "content": [text("hit")]}]),
                {"type": "document", "source": {"type": "content", "content": [text("a book")]}},
            ),
            [
                *[("", "", seen) for seen in ("out\nerr", "", "-a\n+b", "page", "hit") if seen],
                ("assistant", "a book"),
            ],
        ),
        # A tool of the provider that failed.
        (
            message(
                "assistant",
                {**call("web_search", {}, "1"), "type": "server_tool_use"},
                hosted(
                    "web_search",
                    {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
                    "1",
                ),
                text("I do not know."),
            ),
            [
                ("", "web_search({})", "Error: max_uses_exceeded"),
                ("assistant", "I do not know."),
            ],
        ),
        # The same of the Responses API.
        (
            [
                {**item("mcp_call", name="f", arguments="{}"), "output": "done", "error": None},
                {**item("mcp_call", name="g", arguments="{}"), "error": {"code": 500}},
                item(
                    "code_interpreter_call", code="1 + 1", outputs=[{"type": "logs", "logs": "2"}]
                ),
                item("code_interpreter_call", code="pass", outputs=None),
                item("shell_call", action={"commands": ["ls"]}, call_id="c"),
                item("shell_call_output", output=[RAN], call_id="c"),
            ],
            [
                ("", "f({})", "done"),
                ("", "g({})", 'Error: {"code": 500}'),
                ("", "code_interpreter(1 + 1)", "2"),
                ("", "code_interpreter(pass)", ""),
                ("", 'shell({"commands": ["ls"]})', "out\nerr"),
            ],
        ),
    ],
)
def test_what_hosted_tools_did_and_returned_are_steps(messages: Any, due: list[Any]) -> None:
    assert said(messages) == due


@pytest.mark.parametrize(
    "silent",
    [
        ResponseFunctionWebSearch.model_validate(
            item("web_search_call", action={"type": "search"})
        ),
        item("file_search_call", queries=["q"], results=None),
        item("computer_call", action={"type": "screenshot"}),
        item("mcp_list_tools", tools=[], server_label="s"),
        item("mcp_approval_request", name="f", arguments="{}"),
        item("compaction", encrypted_content="x"),
        {"role": "assistant", "content": [item("web_search_call")]},
    ],
)
def test_items_of_hosted_tools_without_words_are_skipped(silent: Any) -> None:
    found = conversation([silent, "x"])
    assert ([shown(one) for one in found.chunks], found.skipped) == (["x"], 1)


@pytest.mark.parametrize(
    ("bad", "due"),
    [
        (
            message("assistant", item("image_generation_call")),
            "part 1: an image (image_generation_call)",
        ),
        (
            item("code_interpreter_call", code="plot()", outputs=[{"type": "image"}]),
            "part 1: an image (image)",
        ),
        (
            item("computer_call_output", output={"type": "computer_screenshot"}),
            "part 1: an image (computer_screenshot)",
        ),
        (
            message("user", {"type": "document", "source": {"type": "base64", "data": "JVBE"}}),
            "part 1: a document (document)",
        ),
        (
            message(
                "assistant",
                hosted("web_fetch", {"type": "web_fetch_result", "content": {"type": "document"}}),
            ),
            "part 1, part 1, part 1: a document (document)",
        ),
        (
            message(
                "assistant",
                hosted("text_editor", {"type": "view_result", "file_type": "image"}),
            ),
            "part 1, part 1: an image (image)",
        ),
    ],
)
def test_media_of_hosted_tools_are_refused_by_name(bad: Any, due: str) -> None:
    with pytest.raises(ValueError, match="only text is") as caught:
        conversation([bad])
    assert str(caught.value).startswith(f"message 1: {due} is not remembered")
