"""What is heard of a provider's own answer."""

import json

import pytest

from service.llm.providers.failures import ModelFailure, failure_of
from service.llm.providers.library import litellm_library
from service.llm.providers.native import NativeAnswer

SECRET = "Anna has diabetes."


def choice(**fields: object) -> dict[str, object]:
    return {"index": 0, "message": {"role": "assistant", "content": SECRET}, **fields}


def heard(*, streamed: bool = False, **body: object) -> NativeAnswer:
    answer = NativeAnswer()
    answer.asked = True
    kind = "text/event-stream" if streamed else "application/json"
    answer.begin(200, {"content-type": kind})
    said = json.dumps({"id": "x", **body}).encode()
    answer.hear(b"data: " + said + b"\n\n" if streamed else said)
    answer.end()
    return answer


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "error", [None, "", {}, {"message": "", "type": "", "param": "", "code": None}, {"code": 0}]
)
def test_an_error_that_says_nothing_is_none(error: object, streamed: bool) -> None:
    answer = heard(streamed=streamed, choices=[choice(finish_reason="stop")], error=error)
    assert answer.error_status is None
    assert answer.reason == "stop"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": 502}},
        {"error": {"message": "It broke."}},
        {"error": "It broke."},
        {"object": "error", "message": "It broke."},
        {"type": "error", "detail": "It broke."},
    ],
)
def test_an_error_is_kept_without_the_reply_beside_it(
    body: dict[str, object], streamed: bool
) -> None:
    answer = heard(streamed=streamed, choices=[choice(finish_reason="error")], **body)
    assert answer.error_status == (502 if body == {"error": {"code": 502}} else 500)
    assert "It broke." in answer.error or "502" in answer.error
    assert SECRET not in answer.error


@pytest.mark.parametrize(
    ("reason", "native", "end"),
    [
        ("stop", "", "stop"),
        ("stop", "max_tokens", "max_tokens"),
        ("stop", "nobody knows", "stop"),
        ("content_filter", "stop", "content_filter"),
        ("content_filter", "refusal", "refusal"),
        ("length", "stop", "length"),
    ],
)
def test_the_nearer_reason_counts_where_it_says_more(reason: str, native: str, end: str) -> None:
    body = choice(finish_reason=reason, native_finish_reason=native)
    assert heard(choices=[body]).reason == end


def test_a_defect_is_no_outage() -> None:
    answer = NativeAnswer()
    answer.asked = True
    answer.begin(200, {"content-type": "text/event-stream"})
    defect = KeyError("who hears the text")
    assert failure_of(litellm_library(), defect, "m", native=answer) is defect
    from openai import OpenAIError  # takes a second

    lost = failure_of(litellm_library(), OpenAIError("gone"), "m", native=answer)
    assert isinstance(lost, ModelFailure)
