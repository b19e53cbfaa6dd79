"""The scripted model knows what its prompt says, and loses a given share of it."""

import http.client
import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx
import pytest

from evaluation.reliability.prompts import Step, answer_ask, read_step, step_ask
from evaluation.reliability.scripted import UNKNOWN, ScriptedModel
from evaluation.reliability.server import MAX_REQUEST_BYTES, MODEL, serving
from service.domain.log.chunks import LoggedChunk
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.compressing import compress_steps
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.llm.splitter import first_piece

BEGIN = "Goal: know it all. The red box holds the coin. The blue box holds the key."
SWAP = Step(
    observation="Step 1. Ann swaps what the red box and the blue box hold. It rains.",
    thought="I know of 2 boxes what is in them.",
    action="watch on",
)
ASKED = "The game is over. What does the red box hold now?"


def model(loss: float = 0.0, state_tokens: int = 200, seed: int = 1) -> ScriptedModel:
    return ScriptedModel(seed=seed, loss=loss, state_tokens=state_tokens)


def summary_prompt(current: str, step: Step, key: bytes = b"key") -> str:
    logged = LoggedChunk(
        position=1,
        chunk=step.chunk,
        producer_id="agent",
        producer_sequence=1,
        created_at=datetime.fromtimestamp(0, UTC),
    )
    flow = compress_steps(
        current,
        [SizedStep.of(logged)],
        spec=StateSpec(task=BEGIN, period=1, state_tokens=200),
        marker_key=key,
        count=estimate_tokens,
        window_tokens=32_768,
        cut=first_piece,
    )
    (ask,) = next(flow)
    flow.close()
    return ask.text


def test_it_answers_from_its_context_alone() -> None:
    assert model().reply(answer_ask([BEGIN, SWAP.text], ASKED).text) == "key"
    assert model().reply(answer_ask([BEGIN], ASKED).text) == "coin"
    assert model().reply(answer_ask([SWAP.text], ASKED).text) == UNKNOWN


def test_it_says_at_each_step_how_much_it_knows() -> None:
    reply = model().reply(step_ask([BEGIN], SWAP.observation).text)
    assert read_step(reply, SWAP.observation) == SWAP
    lost = model().reply(step_ask([], SWAP.observation).text)
    assert read_step(lost, "seen").thought == "I know of 0 boxes what is in them."


def test_it_summarizes_what_it_knows() -> None:
    for current in (BEGIN, "So far. The red box holds the coin. The blue box holds the key."):
        reply = model().reply(summary_prompt(current, SWAP))
        assert reply == "The blue box holds the coin. The red box holds the key."
    assert model().reply(summary_prompt("All is well.", SWAP)) == "Nothing is known of the boxes."


def test_what_does_not_fit_is_lost() -> None:
    reply = model(state_tokens=10).reply(summary_prompt(BEGIN, SWAP))
    assert reply == "The blue box holds the coin."


def test_an_empty_box_is_known_to_be_empty() -> None:
    moved = "Step 2. Ben empties the red box into the blue box, whose own is thrown away."
    assert model().reply(answer_ask([BEGIN, moved], ASKED).text) == "nothing"
    step = Step(observation=moved, thought="", action="")
    assert "The red box is empty." in model().reply(summary_prompt(BEGIN, step))


def test_facts_go_wrong_as_often_as_the_loss_says() -> None:
    games = 4000
    right = lost = 0
    for number in range(games):
        step = Step(observation=f"Step {number}. It rains.", thought="", action="")
        reply = model(loss=0.1).reply(summary_prompt(BEGIN, step))
        right += "red box holds the coin" in reply
        lost += "red box" not in reply
    assert 0.88 < right / games < 0.92
    assert 0.035 < lost / games < 0.065


def test_chances_depend_on_the_seed_and_not_on_the_marks() -> None:
    def replies(seed: int, key: bytes) -> list[str]:
        return [
            model(loss=0.5, seed=seed).reply(
                summary_prompt(BEGIN, Step(observation=f"Step {n}.", thought="", action=""), key)
            )
            for n in range(20)
        ]

    assert replies(1, b"one") == replies(1, b"two")
    assert replies(1, b"one") != replies(2, b"one")


def test_a_reply_of_another_form_leaves_empty_parts() -> None:
    assert read_step("Nothing of the kind.", "seen") == Step(
        observation="seen", thought="", action=""
    )
    reply = "<think>\nAction: no\n</think>\n**Thought:** all is well\n- Action: wait"
    assert read_step(reply, "seen") == Step(
        observation="seen", thought="all is well", action="wait"
    )


def test_it_is_served_as_an_openai_compatible_endpoint() -> None:
    prompt = answer_ask([BEGIN], ASKED).text
    with serving(model()) as url, httpx.Client(timeout=60) as client:
        content = [{"type": "text", "text": prompt[:50]}, {"type": "text", "text": prompt[50:]}]
        for form in (prompt, content):
            body = {"model": MODEL, "messages": [{"role": "user", "content": form}]}
            found = client.post(f"{url}/chat/completions", json=body).json()
            assert found["choices"][0]["message"]["content"] == "coin"
            assert found["usage"]["prompt_tokens"] == estimate_tokens(prompt)
            assert found["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"messages": [{}]}'])
def test_what_is_no_completion_is_refused(body: bytes) -> None:
    with serving(model()) as url:
        found = httpx.post(f"{url}/chat/completions", content=body, timeout=60)
    assert found.status_code == 400
    assert "no chat completion" in found.json()["error"]["message"]


def test_too_long_a_request_is_refused() -> None:
    with serving(model()) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Length", str(MAX_REQUEST_BYTES + 1))
        connection.endheaders()
        found = connection.getresponse()
        assert found.status == 400
        assert "too long" in json.load(found)["error"]["message"]
        connection.close()
