"""litellm for real with a server that misbehaves; and the offline model."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.marking import marked
from service.llm.providers.failures import ModelFailure
from service.llm.providers.transport import LitellmTransport, listed_cost
from service.settings.config import Config
from tests.support.fake_model import FakeModel, fake_model

ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="tree.summarize/2",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=100,
)

MUSEUM = "[LENGTH]\nAt most 99 tokens.\n[TEXT]\n" + marked("It is a ship.", b"key")
OFFLINE = replace(
    ASK, segments=(*ASK.segments, Segment(kind=SegmentKind.CHUNK, text=f"\n{MUSEUM}"))
)


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def transport(model: FakeModel | None = None) -> LitellmTransport:
    return LitellmTransport(
        Config(
            model_base_url=model.url if model else None,
            model_api_key=SecretStr("my-own-key") if model else None,
        )
    )


async def test_the_offline_model_is_asked_like_any_other() -> None:
    done = await transport().complete(OFFLINE, "offline/extractive")
    assert done.text == "It is a ship."
    assert (done.model, done.cost_micro_usd, done.cached_tokens) == ("offline/extractive", 0, None)
    assert done.input_tokens == (len(OFFLINE.text) + 3) // 4


@pytest.mark.parametrize("name", ["bogus", "nosuch/model"])
async def test_a_model_that_no_provider_has_is_named(name: str) -> None:
    with pytest.raises(ModelFailure, match=f"{name} is not known") as caught:
        await transport().complete(ASK, name)
    assert caught.value.fault is Fault.MODEL_UNKNOWN
    assert not caught.value.retryable


async def test_usage_is_taken_as_the_provider_reports_it(model: FakeModel) -> None:
    done = await transport(model).complete(ASK, "openai/some-model")
    assert (done.input_tokens, done.output_tokens, done.cached_tokens) == (100, 10, 64)
    assert done.cost_micro_usd is None, "a model without a price has none, not a price of 0"
    assert model.prompts == [ASK.text]


@pytest.mark.parametrize(
    ("said", "looked_for"),
    [("gpt-4o-2024-08-06", "gpt-4o-2024-08-06"), ("gpt-4o" + "9" * 150_000, "openai/gpt-4o")],
)
def test_a_price_is_not_looked_for_by_a_name_of_any_length(said: str, looked_for: str) -> None:
    names: list[str] = []

    def cost(*, completion_response: Any, model: str) -> float:
        names.append(completion_response.model)
        return 0.000007

    litellm = SimpleNamespace(completion_cost=cost)
    assert listed_cost(litellm, SimpleNamespace(model=said), "openai/gpt-4o") == 7
    assert names == [looked_for]


@pytest.mark.parametrize(
    ("status", "headers", "body", "retryable", "after"),
    [
        (429, {"retry-after": "7"}, "{}", True, 7.0),
        (429, {"retry-after": "tomorrow"}, "{}", True, None),
        (500, {}, json.dumps({"error": f"cannot read {ASK.text}"}), True, None),
        (502, {}, f"{ASK.text}, repeated by a proxy", True, None),
        (503, {"Retry-After": "2"}, "no json", True, 2.0),
        (200, {}, "{not json", True, None),
        (200, {}, '{"id": "x", "object": "chat.completion", "choices": []}', True, None),
        (401, {}, '{"error": {"message": "sk-secret-key is wrong"}}', False, None),
        (400, {}, '{"error": {"message": "bad"}}', False, None),
        (402, {}, "{}", False, None),
        (403, {}, '{"error": {"message": "closed to sk-secret-key, and my-own-key"}}', False, None),
        (404, {}, "{}", False, None),
        (422, {}, '{"error": {"message": "max_tokens: api_key=secret"}}', False, None),
    ],
)
async def test_failures_say_whether_to_retry_and_contain_no_secrets(
    model: FakeModel,
    status: int,
    headers: dict[str, str],
    body: str,
    retryable: bool,
    after: float | None,
) -> None:
    model.script = [(status, headers, body)]
    with pytest.raises(ModelFailure) as caught:
        await transport(model).complete(ASK, "openai/some-model")
    assert (caught.value.retryable, caught.value.retry_after_seconds) == (retryable, after)
    assert "secret" not in str(caught.value)
    assert "my-own-key" not in str(caught.value)
    assert "museum" not in str(caught.value)
    assert len(model.prompts) == 1, "litellm's own retries are off"


SCHEMA = {"type": "object", "properties": {"add": {"type": "array"}}, "required": ["add"]}


@pytest.mark.parametrize(
    ("name", "is_set", "given"),
    [
        ("openai/some-model", False, False),
        ("openai/some-model", True, True),
        ("openai/gpt-4o", False, True),
    ],
)
async def test_a_replys_schema_goes_to_models_that_keep_to_it(
    model: FakeModel, name: str, is_set: bool, given: bool
) -> None:
    config = Config(model_base_url=model.url, model_structured_output=is_set)
    strict = LitellmTransport(config)
    await strict.complete(replace(ASK, reply_schema=SCHEMA), name)
    await strict.complete(ASK, name)
    formats = [request.get("response_format") for request in model.requests]
    shape = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}}
    assert formats == [shape if given else None, None]


@pytest.mark.parametrize(
    ("purpose", "finish", "end"),
    [
        (Purpose.REVISE, "length", End.LENGTH),
        (Purpose.REVISE, "stop", End.COMPLETE),
        (Purpose.ANSWER, "length", End.LENGTH),
    ],
)
async def test_a_reply_that_was_cut_off_says_so(
    model: FakeModel, purpose: Purpose, finish: str, end: End
) -> None:
    choice = {"index": 0, "finish_reason": finish, "message": {"content": "$.'a'"}}
    body = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
    model.script = [(200, {}, json.dumps(body))]
    done = await transport(model).complete(replace(ASK, purpose=purpose), "openai/some-model")
    assert (done.text, done.end) == ("$.'a'", end)


async def test_the_offline_model_takes_no_schema() -> None:
    asked = replace(OFFLINE, reply_schema=SCHEMA)
    assert "a ship" in (await LitellmTransport(Config()).complete(asked, "offline/extractive")).text


async def test_a_server_that_counts_no_tokens_is_estimated(model: FakeModel) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "a ship, 12 by"}}
    body = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
    model.script = [(200, {}, json.dumps(body))]
    done = await transport(model).complete(ASK, "openai/some-model")
    assert (done.input_tokens, done.output_tokens) == ((len(ASK.text) + 3) // 4, 4)
    assert (done.cached_tokens, done.cache_write_tokens) == (None, None)


async def test_a_reply_is_made_fit_to_be_stored(model: FakeModel) -> None:
    model.reply = lambda _: "a\0b\ud800c"
    done = await transport(model).complete(ASK, "openai/some-model")
    assert done.text == "ab?c"


async def test_a_server_that_is_not_there_may_be_there_later() -> None:
    nowhere = LitellmTransport(Config(model_base_url="http://127.0.0.1:1/v1"))
    with pytest.raises(ModelFailure) as caught:
        await nowhere.complete(ASK, "openai/some-model")
    assert caught.value.retryable
