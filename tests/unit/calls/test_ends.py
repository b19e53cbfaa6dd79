"""How replies ended, as litellm reports it."""

import json
from typing import Any

import pytest

from service.domain.prompting.ends import End, end_of
from service.domain.prompting.flows import (
    MAX_SAID_CHARACTERS,
    ModelRequest,
    Purpose,
    Segment,
    SegmentKind,
)
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from tests.support.fake_model import fake_model

ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=100,
)
TOOL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def asked(choice: dict[str, Any], usage: dict[str, Any] | None = None) -> Completion:
    """Returns the completion of a model whose only choice is this one."""
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    body |= {"choices": [{"index": 0, "finish_reason": "stop", **choice}]}
    body |= {} if usage is None else {"usage": usage}
    with fake_model() as model:
        model.script = [(200, {}, json.dumps(body))]
        transport = LitellmTransport(Config(model_base_url=model.url))
        return await transport.complete(ASK, "openai/some-model")


@pytest.mark.parametrize(
    ("choice", "end", "said"),
    [
        ({"message": {"content": "A ship."}}, End.COMPLETE, ""),
        ({"message": {"content": "<think>hm</think>\nA ship."}}, End.COMPLETE, ""),
        ({"finish_reason": "length", "message": {"content": "A sh"}}, End.LENGTH, ""),
        ({"finish_reason": "length", "message": {"content": ""}}, End.THINKING, ""),
        ({"finish_reason": "length", "message": {"content": "<think>hm"}}, End.THINKING, ""),
        ({"message": {"content": "", "reasoning_content": "hm"}}, End.THINKING, ""),
        ({"message": {"content": "<think>hm</think>\n"}}, End.THINKING, ""),
        ({"message": {"content": None}}, End.EMPTY, ""),
        ({"message": {"content": " \n"}}, End.EMPTY, ""),
        ({"message": {"content": None, "refusal": "I cannot"}}, End.REFUSAL, "I cannot"),
        ({"message": {"content": None, "refusal": "no" * 500}}, End.REFUSAL, "no" * 150),
        ({"finish_reason": "content_filter", "message": {"content": None}}, End.FILTER, ""),
        (
            {"finish_reason": "content_filter", "message": {"content": "A sh"}},
            End.FILTER,
            "A sh",
        ),
        (
            {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [TOOL]}},
            End.TOOL_CALL,
            "",
        ),
        (
            {"finish_reason": "insufficient_system_resource", "message": {"content": "A sh"}},
            End.UNKNOWN,
            "insufficient_system_resource",
        ),
        ({"finish_reason": "model_length", "message": {"content": "A sh"}}, End.LENGTH, ""),
    ],
)
async def test_each_end_is_distinguished_from_the_others(
    choice: dict[str, Any], end: End, said: str
) -> None:
    done = await asked(choice)
    assert (done.end, done.said) == (end, said)
    assert len(done.said) <= MAX_SAID_CHARACTERS


async def test_thinking_is_seen_by_its_tokens_alone() -> None:
    usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 7}}
    done = await asked({"message": {"content": ""}}, usage)
    assert (done.end, done.reasoning_tokens, done.output_tokens) == (End.THINKING, 7, 7)


@pytest.mark.parametrize("text", ["", "<think>hm"])
async def test_a_stream_has_an_end_too(text: str) -> None:
    with fake_model() as model:
        model.reply = lambda _: text
        said: list[str] = []
        transport = LitellmTransport(Config(model_base_url=model.url))
        done = await transport.complete(ASK, "openai/some-model", CallPlan(on_text=said.append))
    assert done.end is (End.THINKING if text else End.EMPTY)


def test_an_end_of_another_release_is_unknown() -> None:
    assert [end_of(one.value) for one in End] == list(End)
    assert end_of("something new") is End.UNKNOWN
