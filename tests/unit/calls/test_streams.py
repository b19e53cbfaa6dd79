"""Streams through litellm for real: the same reply as without, and what breaks them."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.llm.providers.failures import ModelFailure
from service.llm.providers.library import litellm_library
from service.llm.providers.plans import PLAIN, CallPlan
from service.llm.providers.streams import BrokenStream, whole_response
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.support.fake_model import FakeModel, fake_model

ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=100,
)
REPLY = "[ANSWER]\nThe harbour museum – a ship 🚢.\n\n[PATHS]\n$.a  "
NAME = "openai/some-model"


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        model.reply = lambda _: REPLY
        yield model


def transport(model: FakeModel, **settings: object) -> LitellmTransport:
    return LitellmTransport(Config.model_validate({"model_base_url": model.url, **settings}))


def heard(plan: CallPlan = PLAIN) -> tuple[list[str], CallPlan]:
    texts: list[str] = []
    return texts, replace(plan, on_text=texts.append)


@pytest.mark.parametrize("has_usage", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_gives_the_same_as_a_reply_in_one_piece(
    model: FakeModel, size: int, has_usage: bool
) -> None:
    model.streaming.part_characters = size
    model.streaming.has_usage = has_usage
    calls = transport(model)
    texts, plan = heard()
    done = await calls.complete(ASK, NAME, plan)
    assert "".join(texts) == done.text == REPLY
    assert len(texts) == -(-len(REPLY) // size)
    whole = await calls.complete(ASK, NAME)
    if has_usage:
        assert done == whole
    else:
        assert done.input_tokens == estimate_tokens(ASK.text)
        assert done.output_tokens == estimate_tokens(REPLY)
        assert (done.cached_tokens, done.cache_write_tokens) == (None, None)
    streamed, plain = model.requests
    assert streamed.pop("stream") is True
    assert streamed.pop("stream_options") == {"include_usage": True}
    plain.pop("stream", None)
    assert streamed == plain


async def test_a_deployments_stream_gives_the_same(model: FakeModel) -> None:
    one = Deployment(name="a", model="m/x", litellm_model=NAME, api_base=model.url)
    calls = LitellmTransport(Config(deployments=(one,)))
    texts, plan = heard(CallPlan(deployment="a"))
    done = await calls.complete(ASK, "m/x", plan)
    assert "".join(texts) == REPLY
    assert done == await calls.complete(ASK, "m/x", CallPlan(deployment="a"))


async def test_a_part_is_heard_before_the_next_is_written(model: FakeModel) -> None:
    goes_on = threading.Event()
    model.streaming.before = lambda number: number == 1 or goes_on.wait(100)
    first = asyncio.Event()
    plan = CallPlan(on_text=lambda _: first.set())
    call = asyncio.create_task(transport(model).complete(ASK, NAME, plan))
    try:
        await asyncio.wait_for(first.wait(), 60)
        assert not call.done()
    finally:
        goes_on.set()
    assert (await call).text == REPLY


@pytest.mark.parametrize("deployment", ["", "a"])
@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("how", ["breaks_behind", "ends_behind"])
async def test_a_stream_that_ends_before_its_reply_is_a_failed_call(
    model: FakeModel, how: str, behind: int, deployment: str
) -> None:
    setattr(model.streaming, how, behind)
    one = Deployment(name="a", model=NAME, api_base=model.url)
    calls = transport(model, deployments=(one,) if deployment else ())
    texts, plan = heard(CallPlan(deployment=deployment))
    with pytest.raises(ModelFailure) as caught:
        await calls.complete(ASK, NAME, plan)
    assert caught.value.retryable
    assert "museum" not in str(caught.value)
    assert len(texts) == behind
    assert len(model.prompts) == 1, "litellm's own retries are off"


async def test_a_stream_that_takes_too_long_is_a_failed_call(model: FakeModel) -> None:
    goes_on = threading.Event()
    model.streaming.before = lambda number: number == 1 or goes_on.wait(100)
    calls = transport(model, model_timeout_seconds=3)
    _, plan = heard()
    try:
        with pytest.raises(ModelFailure) as caught:
            await calls.complete(ASK, NAME, plan)
    finally:
        goes_on.set()
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("status", "headers", "body", "retryable", "after"),
    [
        (429, {"retry-after": "7"}, "{}", True, 7.0),
        (500, {}, '{"error": "api_key=secret"}', True, None),
        (401, {}, '{"error": {"message": "sk-secret-key is wrong"}}', False, None),
    ],
)
async def test_a_refused_stream_says_the_same_as_a_refused_call(
    model: FakeModel,
    status: int,
    headers: dict[str, str],
    body: str,
    retryable: bool,
    after: float | None,
) -> None:
    model.script = [(status, headers, body)]
    texts, plan = heard()
    with pytest.raises(ModelFailure) as caught:
        await transport(model).complete(ASK, NAME, plan)
    assert (caught.value.retryable, caught.value.retry_after_seconds) == (retryable, after)
    assert "secret" not in str(caught.value)
    assert not texts
    assert len(model.prompts) == 1


async def test_a_stream_that_was_cut_off_says_so(model: FakeModel) -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"content": "$.'a'"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"model": "m", "choices": [choice], "usage": usage}
    model.script = [(200, {}, json.dumps(body))]
    _, plan = heard()
    done = await transport(model).complete(replace(ASK, purpose=Purpose.REVISE), NAME, plan)
    assert (done.text, done.end) == ("$.'a'", End.LENGTH)


async def test_a_stream_costs_what_a_reply_in_one_piece_does(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", model.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    calls = LitellmTransport(Config())
    _, plan = heard()
    done = await calls.complete(ASK, "openai/gpt-4o-mini", plan)
    assert done.cost_micro_usd is not None
    assert done.cost_micro_usd > 0
    assert done == await calls.complete(ASK, "openai/gpt-4o-mini")


async def test_a_model_that_repeats_itself_is_heard_out(model: FakeModel) -> None:
    model.reply = lambda _: "abc" * 300
    _, plan = heard()
    assert (await transport(model).complete(ASK, NAME, plan)).text == "abc" * 300


async def test_the_offline_model_needs_no_stream() -> None:
    calls = LitellmTransport(Config())
    texts, plan = heard()
    done = await calls.complete(
        replace(ASK, template="tree.summarize/2"), "offline/extractive", plan
    )
    assert done.end is End.COMPLETE
    assert not texts


class _Parts:
    """A stream with what no provider would send."""

    model = NAME

    def __init__(self, *deltas: object) -> None:
        self.chunks = [
            SimpleNamespace(choices=[SimpleNamespace(delta=one, finish_reason="stop")], usage=None)
            for one in deltas
        ]

    async def __aiter__(self) -> AsyncIterator[object]:
        for part in self.chunks:
            yield part

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_part_that_is_no_text_breaks_the_stream_and_one_without_says_nothing() -> None:
    litellm = litellm_library()
    texts: list[str] = []
    with pytest.raises(BrokenStream, match="no text"):
        await whole_response(litellm, _Parts(SimpleNamespace(content=2**64)), texts.append)
    parts = _Parts("\ud800", None, SimpleNamespace(content="x"), SimpleNamespace())
    done = await whole_response(litellm, parts, texts.append)
    assert (texts, done.choices[0].message.content) == (["x"], "x")
