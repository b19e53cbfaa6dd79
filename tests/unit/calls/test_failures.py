"""Errors of providers, in their own shapes, are read as the right faults."""

import json
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from service.domain.prompting.faults import ADVICE, PHRASES, Fault
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.failures import MAX_WORDS_CHARACTERS, ModelFailure, without_echo
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from tests.support.fake_model import FakeModel, fake_model

TEXT = "Mrs. Dashwood's diary says: insufficient_quota, and that the safe's number is 4711."
ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text=TEXT),),
    max_output_tokens=100,
)


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def body(message: str, **more: object) -> str:
    return json.dumps({"error": {"message": message, "param": None, **more}})


async def failed(model: FakeModel, status: int, said: str) -> ModelFailure:
    model.script = [(status, {}, said)]
    transport = LitellmTransport(
        Config(model_base_url=model.url, model_api_key=SecretStr("my-own-key-1"))
    )
    with pytest.raises(ModelFailure) as caught:
        await transport.complete(ASK, "openai/some-model")
    return caught.value


@pytest.mark.parametrize(
    ("status", "said", "fault"),
    [
        (401, body("Incorrect API key provided", code="invalid_api_key"), Fault.KEY_REFUSED),
        (403, body("Project has no access"), Fault.KEY_REFUSED),
        (400, body("API key not valid. Please pass a valid API key."), Fault.KEY_REFUSED),
        (404, body("The model `x` does not exist", code="model_not_found"), Fault.MODEL_UNKNOWN),
        (404, "<html>not here</html>", Fault.MODEL_UNKNOWN),
        (429, body("Rate limit reached for requests", type="requests"), Fault.RATE_LIMITED),
        (
            429,
            body("You exceeded your current quota", code="insufficient_quota"),
            Fault.QUOTA_EXHAUSTED,
        ),
        (429, body("Request too large for gpt-4o: Limit 30000, Requested 4"), Fault.TOO_LONG),
        (429, body("Too many tokens, please wait before trying again."), Fault.RATE_LIMITED),
        (
            429,
            body("You exceeded your current quota: GenerateRequestsPerMinute, retry in 26s"),
            Fault.RATE_LIMITED,
        ),
        (403, body("model requires moderation and your input was flagged"), Fault.CONTENT_REFUSED),
        (422, body(f"cannot take: {TEXT}"), Fault.REQUEST_REFUSED),
        (500, body("the prompt exceeds the context window"), Fault.TOO_LONG),
        (413, body("Payload Too Large"), Fault.TOO_LONG),
        (400, body("Your credit balance is too low to access the API"), Fault.QUOTA_EXHAUSTED),
        (402, body("Insufficient Balance"), Fault.QUOTA_EXHAUSTED),
        (400, body("This model's maximum context length is 8 tokens"), Fault.TOO_LONG),
        (400, body("Your input exceeds the context window of this model"), Fault.TOO_LONG),
        (400, body("Invalid prompt: flagged", code="invalid_prompt"), Fault.CONTENT_REFUSED),
        (400, body("Unsupported parameter: 'max_tokens'"), Fault.REQUEST_REFUSED),
        (422, body("temperature: Extra inputs are not permitted"), Fault.REQUEST_REFUSED),
        (408, body("timeout"), Fault.UNREACHABLE),
        (500, body("The server had an error"), Fault.FAILING),
        (503, body("The model is overloaded"), Fault.FAILING),
        (529, body("Overloaded", type="overloaded_error"), Fault.FAILING),
    ],
)
async def test_errors_are_distinguished_by_their_words(
    model: FakeModel, status: int, said: str, fault: Fault
) -> None:
    failure = await failed(model, status, said)
    assert failure.fault is fault
    assert failure.retryable is fault.passes
    assert str(failure).startswith(f"openai/some-model {PHRASES[fault]}")
    assert str(failure).endswith(ADVICE[fault])


async def test_the_providers_own_words_are_reported(model: FakeModel) -> None:
    failure = await failed(model, 400, body("max_tokens is too large: 9. Choose 4 at most."))
    assert "max_tokens is too large: 9. Choose 4 at most; check" in str(failure)


async def test_neither_keys_nor_the_prompt_are_reported(model: FakeModel) -> None:
    said = f"key my-own-key-1 or sk-proj-abcdef123456 cannot read: {TEXT} Try 'Mrs. Dashwood'"
    failure = str(await failed(model, 400, body(said)))
    assert "cannot read" in failure
    for secret in ("my-own-key-1", "abcdef123456", "Dashwood", "4711"):
        assert secret not in failure


async def test_words_are_bounded_and_one_line(model: FakeModel) -> None:
    failure = str(await failed(model, 400, body("a\n\x1b[31m" + "long " * 10_000)))
    assert len(failure) < MAX_WORDS_CHARACTERS + 250
    assert failure.isprintable()


async def test_a_package_that_is_missing_is_the_deployments(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = LitellmTransport(Config(model_base_url=model.url))
    await transport.warm()

    async def missing(**_: object) -> None:
        raise ImportError("No module named 'google.auth'")

    monkeypatch.setattr(transport._litellm, "acompletion", missing)
    with pytest.raises(ModelFailure) as caught:
        await transport.complete(ASK, "vertex_ai/x")
    assert caught.value.fault is Fault.PACKAGE_MISSING
    assert "google.auth" in str(caught.value)


@pytest.mark.parametrize("start", range(9))
def test_an_echo_is_found_wherever_it_begins(start: int) -> None:
    said = "x" * start + " the secret of the harbour is deep " + "y"
    found = without_echo(said, ["1", "What is the secret of the harbour is deep down?"])
    assert "secret" not in found
    assert found.startswith("x" * start)
