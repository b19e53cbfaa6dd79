"""Our transport reads every provider in every scenario through litellm, whole and streamed.

`USUAL` and `THEIRS` say what is right. `MISREAD` says where something else comes out so far; a
fix there makes the test fail until its line is removed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers import recording
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion, LitellmTransport
from tests.providers.exchange import Json, Request
from tests.providers.provider import KEY, Provider
from tests.providers.scenarios import DELAY_SECONDS, REFUSAL, THOUGHT, Scenario, Turn, half
from tests.providers.server import PROVIDERS, REPLY, Emulators

ASK = ModelRequest(
    purpose=Purpose.ANSWER,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=2_000,
)

Outcome = End | Fault | str

#: What is right nearly everywhere.
USUAL: Mapping[Scenario, Outcome] = {
    Scenario.OK: End.COMPLETE,
    Scenario.REFUSAL: End.REFUSAL,
    Scenario.LENGTH: End.LENGTH,
    Scenario.LENGTH_EMPTY: End.THINKING,
    Scenario.FILTER: End.FILTER,
    Scenario.PROMPT_FILTERED: Fault.CONTENT_REFUSED,
    Scenario.EMPTY: End.EMPTY,
    Scenario.THINKING: End.COMPLETE,
    Scenario.THINKING_ONLY: End.THINKING,
    Scenario.TOOL_CALL: End.TOOL_CALL,
    Scenario.ODD_END: End.UNKNOWN,
    Scenario.SCHEMA_400: Fault.REQUEST_REFUSED,
    Scenario.RATE_LIMIT: Fault.RATE_LIMITED,
    Scenario.RATE_LIMIT_DELAY: Fault.RATE_LIMITED,
    Scenario.QUOTA: Fault.QUOTA_EXHAUSTED,
    Scenario.OVERLOADED: Fault.FAILING,
    Scenario.ERROR_WITH_200: Fault.FAILING,
    Scenario.CUT_STREAM: Fault.FAILING,
    Scenario.STREAM_ERROR: Fault.FAILING,
    Scenario.TOO_LONG: Fault.TOO_LONG,
    Scenario.KEY_REFUSED: Fault.KEY_REFUSED,
}

#: What is right for one provider, by the scenario or the native end.
THEIRS: Mapping[tuple[str, str], Outcome] = {
    # An error of its own.
    ("anthropic", Scenario.FILTER): Fault.CONTENT_REFUSED,
    # Ends without an error.
    ("gemini", Scenario.PROMPT_FILTERED): End.FILTER,
    ("bedrock", Scenario.PROMPT_FILTERED): End.FILTER,
    # It cannot be known: the prompt lost its middle.
    ("ollama", Scenario.TOO_LONG): End.COMPLETE,
    ("openai", "could not finish"): End.THINKING,
    ("azure", "could not finish"): End.THINKING,
    ("anthropic", "model_context_window_exceeded"): End.LENGTH,
    ("bedrock", "model_context_window_exceeded"): End.LENGTH,
    ("gemini", "RECITATION"): End.FILTER,
    ("mistral", "model_length"): End.LENGTH,
    ("ollama", "load"): End.EMPTY,
    ("ollama", "unload"): End.EMPTY,
}

WHOLE, STREAMED = "whole", "streamed"
BOTH = (WHOLE, STREAMED)
#: What comes out in place of what is right.
MISREAD: Mapping[tuple[str, str, str], Outcome] = {}


def turns(name: str) -> Iterator[Turn]:
    """Yields everything that a provider does."""
    for scenario in PROVIDERS[name]().scenarios:
        natives = PROVIDERS[name].natives if scenario is Scenario.ODD_END else ("",)
        for native in natives:
            yield Turn(scenario=scenario, native=native)


CASES = [
    pytest.param(name, turn, how, id=f"{name}-{turn.native or turn.scenario.value}-{how}")
    for name in PROVIDERS
    for turn in turns(name)
    for how in BOTH
]


@pytest.fixture(scope="module")
def transports(servers: Emulators) -> dict[str, LitellmTransport]:
    """Returns one for each provider: litellm keeps every router."""
    return {name: LitellmTransport(servers.endpoint(name).config()) for name in servers}


def right(name: str, turn: Turn, how: str) -> Outcome:
    """Returns the required result of a turn."""
    if (turn.scenario, how) == (Scenario.CUT_STREAM, WHOLE):
        # It breaks the connection: no answer is no error of the provider's.
        return Fault.UNREACHABLE
    return THEIRS.get((name, turn.native or turn.scenario), USUAL[turn.scenario])


async def outcome(
    servers: Emulators, transports: Mapping[str, LitellmTransport], name: str, turn: Turn, how: str
) -> tuple[Outcome, Completion | ModelFailure | None, str]:
    """Returns the outcome of a turn, what was returned or raised, and the text of a stream."""
    end = servers.endpoint(name)
    servers[name].script = [turn]
    heard: list[str] = []
    plan = CallPlan(deployment=end.deployment, on_text=heard.append if how == STREAMED else None)
    try:
        done = await transports[name].complete(ASK, end.model, plan)
    except ModelFailure as failure:
        return failure.fault, failure, "".join(heard)
    except Exception as error:
        return type(error).__name__, None, "".join(heard)
    return done.end, done, "".join(heard)


@pytest.mark.parametrize(("name", "turn", "how"), CASES)
async def test_every_provider_and_scenario(
    servers: Emulators,
    transports: dict[str, LitellmTransport],
    name: str,
    turn: Turn,
    how: str,
) -> None:
    came, what, heard = await outcome(servers, transports, name, turn, how)
    emulator = servers[name]
    assert emulator.refusals == [], "our requests are right"
    assert emulator.prompts == [ASK.text], "it was asked once"
    assert emulator.script == []
    assert came == MISREAD.get((name, turn.native or turn.scenario, how), right(name, turn, how))
    if isinstance(what, ModelFailure):
        assert KEY not in str(what)
        assert_words(emulator.provider, turn.scenario, str(what))
        delay = turn.scenario is Scenario.RATE_LIMIT_DELAY
        assert what.retry_after_seconds == (DELAY_SECONDS if delay else None)
    if not isinstance(what, Completion):
        return
    assert THOUGHT not in what.text, "thoughts are no reply"
    if how == STREAMED:
        assert heard == what.text
    if came is End.COMPLETE and turn.scenario in (Scenario.OK, Scenario.THINKING):
        assert what.text == REPLY
        assert what.input_tokens == len(ASK.text.split()), "as the provider counts"
        assert what.output_tokens >= len(REPLY.split())
    elif turn.scenario is Scenario.LENGTH:
        assert what.text == half(REPLY)
    elif came is End.REFUSAL:
        # Bedrock has its name alone.
        said = "refusal" if name == "bedrock" else REFUSAL.rstrip(".")
        assert what.said == said, "a part of a sentence of ours"
    elif came is End.UNKNOWN:
        assert what.said == turn.native


def assert_words(provider: Provider, scenario: Scenario, said: str) -> None:
    """A failure has the provider's own words, and none of litellm's."""
    for word in ("litellm", "model group", "fallback", "Exception", "Traceback"):
        assert word.lower() not in said.lower()
    if scenario in (Scenario.CUT_STREAM, Scenario.STREAM_ERROR):
        return
    body = provider.failed(scenario, Request(path="", query={}, headers={}, body={})).body
    words = _words(json.loads(body)).rstrip(".")
    if scenario is Scenario.KEY_REFUSED:
        # What looks like a key is not repeated.
        words = words[:12]
    assert " ".join(words.split()) in said


def _words(body: Json) -> str:
    """Returns the message in an error's body."""
    error = body.get("error", body)
    return str(error.get("message", error.get("detail")) if isinstance(error, dict) else error)


def test_what_is_misread_is_not_right() -> None:
    known = {
        (name, turn.native or turn.scenario, how): right(name, turn, how)
        for name in PROVIDERS
        for turn in turns(name)
        for how in BOTH
    }
    assert set(MISREAD) <= set(known), "of something that is tested"
    assert [key for key, came in MISREAD.items() if came == known[key]] == []


@pytest.mark.parametrize("name", PROVIDERS)
async def test_thoughts_are_counted_where_the_provider_says(
    servers: Emulators, transports: dict[str, LitellmTransport], name: str
) -> None:
    turn = Turn(scenario=Scenario.THINKING)
    _, what, _ = await outcome(servers, transports, name, turn, WHOLE)
    assert isinstance(what, Completion)
    # Of Claude's litellm has an estimate of its own.
    is_said = name not in ("mistral", "ollama")
    assert bool(what.reasoning_tokens) == is_said


async def test_a_test_says_what_is_answered(
    servers: Emulators, transports: dict[str, LitellmTransport]
) -> None:
    one, end = servers["openai"], servers.endpoint("openai")
    answers: dict[str, str | Turn] = {
        "first": "A first reply.",
        "second": Turn(scenario=Scenario.LENGTH, text="A second reply."),
    }
    one.answer = lambda prompt: answers[prompt]
    one.script = [Turn(text="A scripted reply.")]
    said = []
    for text in ("first", "first", "second"):
        segment = Segment(kind=SegmentKind.TASK, text=text)
        ask = ModelRequest(
            purpose=Purpose.ANSWER,
            template="t/1",
            segments=(segment,),
            max_output_tokens=9,
        )
        plan = CallPlan(deployment=end.deployment)
        said.append((await transports["openai"].complete(ask, end.model, plan)).text)
    one.answer = lambda prompt: REPLY
    assert said == ["A scripted reply.", "A first reply.", half("A second reply.")]
    assert one.prompts == ["first", "first", "second"]
    assert one.seen[0].request.body["max_tokens"] == 9


def test_what_a_provider_does_not_do_cannot_be_scripted(servers: Emulators) -> None:
    body = {"model": "qwen3", "messages": [{"role": "user", "content": "?"}], "stream": False}
    request = Request(path="/api/chat", query={}, headers={}, body=body)
    with pytest.raises(ValueError, match="ollama has no 'key refused'"):
        servers["ollama"].provider.respond(Turn(scenario=Scenario.KEY_REFUSED), REPLY, request)


def _only(folder: Path) -> recording.RecordedExchange:
    (file,) = folder.iterdir()
    return recording.read(file)


@pytest.mark.parametrize(
    ("name", "scenario", "how"),
    [
        ("anthropic", Scenario.ERROR_WITH_200, WHOLE),
        ("openai", Scenario.STREAM_ERROR, STREAMED),
        ("deepseek", Scenario.CUT_STREAM, STREAMED),
        ("xai", Scenario.PROMPT_FILTERED, WHOLE),
        ("openai", Scenario.REFUSAL, STREAMED),
    ],
)
async def test_a_recorded_exchange_gives_the_same(
    servers: Emulators, tmp_path: Path, name: str, scenario: Scenario, how: str
) -> None:
    calls = LitellmTransport(servers.endpoint(name).config(record=tmp_path))
    turn = Turn(scenario=scenario)
    came, what, _ = await outcome(servers, {name: calls}, name, turn, how)
    assert came == right(name, turn, how)
    recorded = _only(tmp_path)
    if isinstance(what, Completion):
        assert await calls.replay(recorded) == what
        return
    with pytest.raises(ModelFailure) as caught:
        await calls.replay(recorded)
    assert caught.value.fault == came
    assert str(caught.value).split(": ")[1:] == str(what).split(": ")[1:]
