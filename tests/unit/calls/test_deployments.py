"""Calls to one of several deployments of a model."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from tests.support.fake_model import FakeModel, fake_model

ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is it?"),),
    max_output_tokens=100,
)
MODEL = "openai/shared"
BUSY: tuple[int, dict[str, str], str] = (429, {"retry-after": "7"}, "{}")
BROKEN: tuple[int, dict[str, str], str] = (500, {}, '{"error": "token: secret"}')


@pytest.fixture
def models() -> Iterator[list[FakeModel]]:
    with ExitStack() as stack:
        yield [stack.enter_context(fake_model()) for _ in range(3)]


def transport(models: list[FakeModel]) -> LitellmTransport:
    deployments = [
        {
            "name": f"place-{number}",
            "model": MODEL,
            "litellm_model": f"openai/local-{number}",
            "api_base": model.url,
            "api_key": f"key-{number}",
        }
        for number, model in enumerate(models)
    ]
    # One's own endpoint has another address: a deployment's own wins.
    return LitellmTransport(
        Config(deployments=deployments, model_base_url="http://127.0.0.1:1/v1")  # type: ignore[arg-type]
    )


async def test_the_chosen_deployment_is_asked_and_no_other(models: list[FakeModel]) -> None:
    calls = transport(models)
    for number in (2, 0, 1, 1, 2):
        done = await calls.complete(ASK, MODEL, CallPlan(deployment=f"place-{number}"))
        assert done.model == MODEL, "the same model, wherever it is served"
        assert done.cached_tokens == 64
    assert [len(model.prompts) for model in models] == [1, 2, 2]
    assert [model.requests[0]["model"] for model in models] == ["local-0", "local-1", "local-2"]
    assert models[0].prompts == [ASK.text]


@pytest.mark.parametrize(("response", "after"), [(BUSY, 7.0), (BROKEN, None)])
async def test_a_failure_is_reported_and_no_other_deployment_is_asked(
    models: list[FakeModel], response: tuple[int, dict[str, str], str], after: float | None
) -> None:
    calls = transport(models)
    for _ in range(4):
        models[1].script = [response]
        with pytest.raises(ModelFailure) as caught:
            await calls.complete(ASK, MODEL, CallPlan(deployment="place-1"))
        assert caught.value.retryable
        assert caught.value.retry_after_seconds == after
        assert "secret" not in str(caught.value)
    assert [len(model.prompts) for model in models] == [0, 4, 0]
    # litellm would leave it alone now; whether to is not its to say.
    await calls.complete(ASK, MODEL, CallPlan(deployment="place-1"))
    assert len(models[1].prompts) == 5


async def test_one_that_cannot_be_reached_may_be_tried_again() -> None:
    # A port that was free a moment ago may be taken by now; no process listens at this one.
    calls = transport([FakeModel(url="http://127.0.0.1:1/v1")])
    with pytest.raises(ModelFailure) as caught:
        await calls.complete(ASK, MODEL, CallPlan(deployment="place-0"))
    assert caught.value.retryable


async def test_a_model_without_deployments_is_asked_as_ever(models: list[FakeModel]) -> None:
    calls = LitellmTransport(
        Config(
            deployments=[{"name": "one", "model": MODEL, "api_base": models[0].url}],  # type: ignore[arg-type]
            model_base_url=models[1].url,
        )
    )
    await calls.complete(ASK, "openai/other")
    await calls.complete(ASK, MODEL, CallPlan(deployment="one"))
    assert [len(model.prompts) for model in models] == [1, 1, 0]
