"""What comes from between us and a provider, and from the network."""

import gzip
import json
import socket
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.providers.gateway import Gateway, answer, gateway
from tests.providers.provider import KEY
from tests.unit.calls.providers.test_requests import ASK

NGINX = (
    b"<html>\r\n<head><title>503 Service Temporarily Unavailable</title></head>\r\n<body>\r\n"
    b"<center><h1>503 Service Temporarily Unavailable</h1></center>\r\n<hr>nginx\r\n</body></html>"
)
LOGIN = b"<!DOCTYPE html><html><head><title>Log in &middot; Corp</title></head><body/></html>"
#: At OpenAI litellm takes the provider's own library, at Anthropic its own client.
MODELS = ("openai/gpt-4.1-mini", "anthropic/claude-sonnet-4-5")
REPLY = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "A ship."},
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
).encode()
ERROR = json.dumps({"error": {"message": "Slow down.", "type": "rate_limit_error"}}).encode()


@pytest.fixture(scope="module")
def between() -> Iterator[Gateway]:
    with gateway() as found:
        yield found


@pytest.fixture(scope="module")
def transports(between: Gateway) -> dict[str, LitellmTransport]:
    return {model: _transport(model, between.url) for model in MODELS}


def _transport(model: str, url: str) -> LitellmTransport:
    one = Deployment(name="there", model=model, api_base=url, api_key=SecretStr(KEY))
    return LitellmTransport(Config(model=model, deployments=(one,), model_timeout_seconds=20))


async def came_of(calls: LitellmTransport, model: str, streams: bool) -> Completion | ModelFailure:
    plan = CallPlan(deployment="there", on_text=(lambda _: None) if streams else None)
    try:
        return await calls.complete(ASK, model, plan)
    except ModelFailure as failure:
        return failure


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("said", "fault", "words"),
    [
        pytest.param(
            answer("503 Service Unavailable", NGINX),
            Fault.FAILING,
            "failed (status 503): 503 Service Temporarily Unavailable;",
            id="503 with a page",
        ),
        pytest.param(
            answer("502 Bad Gateway"),
            Fault.FAILING,
            "failed (status 502): Bad Gateway;",
            id="502 without a body",
        ),
        pytest.param(
            answer("504 Gateway Time-out", b"<html><body>stream timeout</body></html>"),
            Fault.UNREACHABLE,
            "could not be reached (status 504): stream timeout;",
            id="504",
        ),
        pytest.param(
            answer("413 Request Entity Too Large", b"<html><h1>413 Too Large</h1></html>"),
            Fault.TOO_LONG,
            "does not take so long a text (status 413): 413 Too Large;",
            id="413",
        ),
        pytest.param(
            answer("407 Proxy Authentication Required"),
            Fault.KEY_REFUSED,
            "(status 407): Proxy Authentication Required;",
            id="407",
        ),
        pytest.param(
            answer("200 OK", LOGIN),
            Fault.NO_REPLY,
            "holds no reply (status 200, no JSON): Log in · Corp;",
            id="200 with a page",
        ),
        pytest.param(
            answer("200 OK", content_type="application/json"),
            Fault.NO_REPLY,
            "(status 200, no JSON): the body is empty;",
            id="200 without a body",
        ),
        pytest.param(
            answer("200 OK", b"{}", content_type="application/json"),
            Fault.NO_REPLY,
            "gave a response that holds no reply",
            id="200 with nothing",
        ),
        pytest.param(
            answer("429 Too Many Requests", gzip.compress(ERROR), content_encoding="gzip"),
            Fault.RATE_LIMITED,
            "(status 429): Slow down;",
            id="compressed",
        ),
        pytest.param(
            answer(
                "200 OK",
                b"40\r\n" + REPLY[:64] + b"\r\n",
                content_type="application/json",
                content_length="",
                transfer_encoding="chunked",
            ),
            Fault.UNREACHABLE,
            "could not be reached (its answer broke off);",
            id="a body that breaks off",
        ),
        pytest.param(b"", Fault.UNREACHABLE, "could not be reached", id="no answer"),
        pytest.param(
            answer("400 Bad Request", b"Bad Request: no route", content_type="text/plain"),
            Fault.REQUEST_REFUSED,
            "(status 400): Bad Request: no route;",
            id="400 in plain words",
        ),
    ],
)
async def test_answers_of_what_stands_between(
    between: Gateway,
    transports: dict[str, LitellmTransport],
    model: str,
    streams: bool,
    said: bytes,
    fault: Fault,
    words: str,
) -> None:
    between.answers = [said]
    came = await came_of(transports[model], model, streams)
    assert isinstance(came, ModelFailure)
    assert (came.fault, words in str(came)) == (fault, True), str(came)
    assert "litellm" not in str(came).lower()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after_ms": "1500", "retry_after": "2"}, 1.5),
        ({"retry_after": "12"}, 12.0),
        (
            {
                "retry_after": "Mon, 23 Nov 2026 00:01:10 GMT",
                "date": "Mon, 23 Nov 2026 00:00:30 GMT",
            },
            40.0,
        ),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-3"}, None),
        (
            {
                "x_ratelimit_remaining_tokens": "0",
                "x_ratelimit_reset_tokens": "1m2.5s",
                "x_ratelimit_remaining_requests": "9",
                "x_ratelimit_reset_requests": "900ms",
            },
            62.5,
        ),
        ({"x_ratelimit_reset_requests": "20s", "x_ratelimit_remaining_requests": "3"}, None),
        (
            {
                "x_ratelimit_remaining": "0",
                "x_ratelimit_reset": "1795392045000",
                "date": "Mon, 23 Nov 2026 00:00:30 GMT",
            },
            15.0,
        ),
    ],
)
async def test_a_delay_is_read_wherever_it_stands(
    between: Gateway,
    transports: dict[str, LitellmTransport],
    headers: dict[str, str],
    seconds: float | None,
) -> None:
    between.answers = [answer("429 Too Many Requests", ERROR, **headers)]
    for model in MODELS:
        came = await came_of(transports[model], model, False)
        assert isinstance(came, ModelFailure)
        assert (came.fault, came.retry_after_seconds) == (Fault.RATE_LIMITED, seconds)


async def test_a_redirect_is_followed_with_the_request(
    between: Gateway, transports: dict[str, LitellmTransport]
) -> None:
    between.asked.clear()
    moved = answer("308 Permanent Redirect", location=f"{between.url}/moved")
    between.answers = [moved, answer("200 OK", REPLY, content_type="application/json")]
    came = await came_of(transports[MODELS[0]], MODELS[0], False)
    assert isinstance(came, Completion)
    assert (came.end, came.text) == (End.COMPLETE, "A ship.")
    assert [line.split()[0] for line in between.asked] == ["POST", "POST"]


async def test_a_redirect_to_a_page_is_no_reply(
    between: Gateway, transports: dict[str, LitellmTransport]
) -> None:
    moved = answer("302 Found", location=f"{between.url}/login")
    between.answers = [moved, answer("200 OK", LOGIN)]
    came = await came_of(transports[MODELS[0]], MODELS[0], False)
    assert isinstance(came, ModelFailure)
    assert came.fault is Fault.NO_REPLY
    assert "Log in · Corp" in str(came)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        # A name that is never found, by its RFC.
        ("http://nowhere.invalid/v1", "nowhere.invalid"),
        ("https://127.0.0.1:{port}", "SSL"),
        ("http://127.0.0.1:{closed}/v1", "127.0.0.1:{closed}"),
    ],
)
async def test_the_networks_words_are_reported(
    between: Gateway, model: str, url: str, words: str
) -> None:
    between.answers = [answer("400 Bad Request")]
    # Bound, without listening: no other process can have it meanwhile.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        closed = bound.getsockname()[1]
        at = url.format(port=between.port, closed=closed)
        came = await came_of(_transport(model, at), model, False)
    assert isinstance(came, ModelFailure)
    assert came.fault is Fault.UNREACHABLE
    assert words.format(closed=closed) in str(came)
    assert "litellm" not in str(came).lower()
