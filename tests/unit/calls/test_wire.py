"""What goes over the wire to each family of providers, and what is read from their usage."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from service.cli.output import CommandError
from service.cli.run import read_config
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.library import litellm_library
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.renderers import cache_key_of, kept_ends, plan_marks
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from tests.support.fake_anthropic import FakeAnthropic
from tests.support.fake_model import FakeModel, fake_model, prompt_of, served

KEY = cache_key_of("t:m")
CLAUDE = "anthropic/claude-sonnet-4-5"
PLAN = CallPlan(marks=(0, 2), cache_key=KEY)


def step(batches: int) -> ModelRequest:
    segments = [
        Segment(kind=SegmentKind.TASK, text="task " * 30),
        Segment(kind=SegmentKind.BASE, text="base " * 20),
        *(Segment(kind=SegmentKind.AMENDMENTS, text=f"add {n}\n") for n in range(batches)),
        Segment(kind=SegmentKind.CHUNK, text=f"chunk {batches}", reusable=False),
    ]
    return ModelRequest(
        purpose=Purpose.REVISE,
        template="t/1",
        segments=tuple(segments),
        max_output_tokens=10,
    )


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    """OpenAI itself, as far as litellm knows."""
    with fake_model() as model:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_BASE", model.url)
        yield model


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAnthropic]:
    model = FakeAnthropic()
    with served(model) as url:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_API_BASE", url)
        yield model


def config(**settings: Any) -> Config:
    return Config(**settings)


def in_messages(ask: ModelRequest) -> list[dict[str, str]]:
    """Returns the instructions by themselves, and the rest."""
    first, *rest = (segment.text for segment in ask.segments)
    return [{"role": "system", "content": first}, {"role": "user", "content": "".join(rest)}]


async def test_openais_breakpoints_go_out_in_explicit_mode(openai: FakeModel) -> None:
    await LitellmTransport(config()).complete(step(2), "openai/gpt-5.6", PLAN)
    (request,) = openai.requests
    blocks = [block for message in request["messages"] for block in message["content"]]
    assert [n for n, block in enumerate(blocks) if "prompt_cache_breakpoint" in block] == [0, 2]
    assert blocks[0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert request["prompt_cache_options"] == {"mode": "explicit"}
    assert request["prompt_cache_key"] == KEY
    assert openai.prompts == [step(2).text]


async def test_older_models_of_openai_get_the_key_only(openai: FakeModel) -> None:
    transport = LitellmTransport(config())
    await transport.complete(step(2), "openai/gpt-4o", PLAN)
    await transport.complete(step(2), "openai/gpt-4o", CallPlan())
    first, second = openai.requests
    assert first["messages"] == in_messages(step(2))
    assert first["prompt_cache_key"] == KEY
    assert "prompt_cache_options" not in first
    assert "prompt_cache_key" not in second


async def test_a_server_of_ones_own_gets_the_text_and_nothing_else() -> None:
    with fake_model() as model:
        transport = LitellmTransport(config(model_base_url=model.url))
        await transport.complete(step(2), "openai/gpt-5.6", PLAN)
        (request,) = model.requests
    assert request["messages"] == in_messages(step(2))
    assert not [name for name in request if "cache" in name]


async def test_anthropic_reads_what_the_step_before_marked(anthropic: FakeAnthropic) -> None:
    transport = LitellmTransport(
        config(model_prices={"anthropic/*": {"min_tokens": 0}})  # Its minimum is the provider's.
    )
    prices = Prices(config(model_prices={"anthropic/*": {"min_tokens": 0}})).of(CLAUDE)
    kept: set[bytes] = set()
    done: list[Completion] = []
    for batches in (0, 1, 2, 32, 33):
        ask = step(batches)
        prefix = prefix_of(ask.segments, model=CLAUDE, tenant_id=UUID(int=1), owner_id=UUID(int=2))
        warm = max((at + 1 for at, one in enumerate(prefix.ids) if one in kept), default=0)
        marks = plan_marks(ask, prefix, prices, warm)
        done.append(await transport.complete(ask, CLAUDE, CallPlan(marks=marks)))
        kept |= {prefix.ids[at] for at in kept_ends(prefix, marks, prices)}
    assert anthropic.marks == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 3, 33], [0, 1, 33, 34]]
    assert [one.cached_tokens for one in done] == [0, 50, 52, 54, 114]
    assert [one.cache_write_tokens for one in done] == [50, 2, 2, 60, 2]
    assert [one.input_tokens for one in done] == [52, 54, 56, 116, 118]
    assert [prompt_of(one) for one in anthropic.requests] == [
        step(batches).text for batches in (0, 1, 2, 32, 33)
    ]
    # What the list says: 3 dollars a million, .1 to read, 1.25 to write, 15 for the reply.
    assert done[-1].cost_micro_usd == round(3 * (2 + 11.4 + 2.5) + 2 * 15)


async def test_bedrock_gets_cache_points_at_the_marks() -> None:
    litellm = litellm_library()
    blocks = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"},
    ]
    request = litellm.AmazonConverseConfig().transform_request(
        model="anthropic.claude-sonnet-4-5-20250929-v1:0",
        messages=[{"role": "user", "content": blocks}],
        optional_params={},
        litellm_params={},
        headers={},
    )
    said = request["messages"][0]["content"]
    assert [next(iter(one)) for one in said] == ["text", "cachePoint", "text"]


def usage(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, **details}


@pytest.mark.parametrize(
    ("said", "cached", "written"),
    [
        (usage(), None, None),
        # As vLLM does without --enable-prompt-tokens-details.
        (usage(prompt_tokens_details=None), None, None),
        (usage(prompt_tokens_details={"cached_tokens": None}), None, None),
        (usage(prompt_tokens_details={"cached_tokens": 0}), 0, None),
        (usage(prompt_tokens_details={"cached_tokens": 64, "cache_write_tokens": 20}), 64, 20),
        (usage(prompt_cache_hit_tokens=30, prompt_cache_miss_tokens=70), 30, None),
        # No more than the prompt can have been cached, or written besides.
        (usage(prompt_tokens_details={"cached_tokens": 640, "cache_write_tokens": 20}), 100, 0),
        (usage(prompt_tokens_details={"cached_tokens": -1}), None, None),
    ],
)
async def test_usage_says_what_was_cached_or_that_it_is_unknown(
    said: dict[str, Any], cached: int | None, written: int | None
) -> None:
    with fake_model() as model:
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": "a"}}
        body = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
        model.script = [(200, {}, json.dumps({**body, "usage": said}))]
        transport = LitellmTransport(config(model_base_url=model.url))
        done = await transport.complete(step(0), "openai/m", CallPlan())
    assert (done.input_tokens, done.cached_tokens, done.cache_write_tokens) == (
        100,
        cached,
        written,
    )


async def test_a_call_costs_what_is_configured() -> None:
    prices = {"openai/*": {"input_usd_per_million": 10, "read": 0.1, "write": 1.0, "output": 2}}
    with fake_model() as model:
        own = LitellmTransport(config(model_base_url=model.url, model_prices=prices))
        # The server says: 100 tokens, 64 of them cached, 10 of the reply.
        done = await own.complete(step(0), "openai/gpt-4o", CallPlan())
    assert done.cost_micro_usd == round(10 * (36 + 6.4 + 20))


async def test_a_configured_price_wins_over_the_list(openai: FakeModel) -> None:
    listed = await LitellmTransport(config()).complete(step(0), "openai/gpt-4o", CallPlan())
    own = LitellmTransport(config(model_prices={"openai/gpt-4o": {"input_usd_per_million": 25}}))
    dear = await own.complete(step(0), "openai/gpt-4o", CallPlan())
    # 2.5 dollars a million, half for what is cached, four times for the reply.
    assert listed.cost_micro_usd == round(2.5 * (36 + 32 + 40))
    assert dear.cost_micro_usd == (25 * (36 + 32 + 40))


async def test_settings_of_a_model_go_out_with_its_calls_and_into_their_keys() -> None:
    extra = {"openai/m": {"seed": 7, "temperature": 0.0, "extra_body": {"top_k": 1}}}
    with fake_model() as model:
        transport = LitellmTransport(config(model_base_url=model.url, model_settings=extra))
        await transport.complete(step(0), "openai/m", PLAN)
        await transport.complete(step(0), "openai/other", PLAN)
    first, second = model.requests
    assert (first["seed"], first["temperature"], first["top_k"]) == (7, 0.0, 1)
    assert not {"seed", "temperature", "top_k"} & set(second)
    assert transport.requests.output_settings("openai/other", Purpose.ANSWER) == b""
    same = config(model_settings={"openai/*": dict(reversed(extra["openai/m"].items()))})
    first_key = transport.requests.output_settings("openai/m", Purpose.ANSWER)
    assert LitellmTransport(same).requests.output_settings("openai/m", Purpose.ANSWER) == first_key
    other = config(model_settings={"openai/m": {"seed": 8}})
    assert LitellmTransport(other).requests.output_settings("openai/m", Purpose.ANSWER) not in (
        b"",
        transport.requests.output_settings("openai/m", Purpose.ANSWER),
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"m/x": {"seed": -1}}, "m/x: seed: Input should be greater than or equal to 0"),
        ({"m/x": {"temperature": 3}}, "m/x: temperature: Input should be less than or equal"),
        ({"m/x": {"extra_body": {"messages": []}}}, "m/x: extra_body: messages is not to be set"),
        ({"m/x": {"top_k": 1}}, "m/x: top_k: there is no such setting; there are seed, "),
        ({"m/x": {"extra": {"api_base": "x"}}}, "m/x: extra: api_base is not to be set"),
        ({"m/x": {"extra": {}, "extra_body": {}}}, "m/x: extra is the newer name of extra_body"),
        ({"m/x": {"reasoning_effort": "much"}}, "m/x: reasoning_effort: Input should be 'none'"),
        (
            {"m/x": {"purposes": {"embed": {"seed": 1}}}},
            "m/x: purposes.embed: embed is no call that is asked with a prompt",
        ),
        (
            {"m/x": {"purposes": {"answer": {"cache_ttl": "1h"}}}},
            "m/x: purposes.answer.cache_ttl: there is no such setting; there are seed, ",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, value: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_SETTINGS", json.dumps(value))
    with pytest.raises(CommandError) as caught:
        read_config()
    assert str(caught.value).startswith(f"PALIMPSEST_MODEL_SETTINGS: {said}")
