"""What answers say of themselves, by every reader, through real sockets: none, a guess, cut off."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from evaluation.asking import ask, request_of
from evaluation.datasets import Question
from palimpsest import Answer, Session
from tests.support import forking
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker

#: Processes that start and import litellm take minutes on a machine with much else to do.
pytestmark = pytest.mark.timeout(600)
#: No test waits so long: what waits fails.
SECONDS = 180.0
ADD = '[OBJECTS FOR ADD]\n{"$.topics.ship": {"add": "The Maria lies in the harbour."}}'
NONE = "The memory does not say."
OPTIONS = ["in the harbour", "at sea", "42"]
QUERY = "Where does the Maria lie?"
#: How each reader is asked.
READERS: dict[str, dict[str, Any]] = {
    "prism": {"memory": "prism"},
    "memwalker": {"memory": "tree"},
    "levels": {"memory": "state", "navigate": True},
    "pcc": {"memory": "state"},
    "dciso": {"reader": "dciso"},
    "whole": {"reader": "whole"},
    "auto": {},
    "auto of a memory": {"memory": "prism", "reader": "auto"},
}
#: Those that end with a guess where options are given and nothing says which.
GUESSING = {"memwalker", "levels", "dciso", "auto of a memory"}


@pytest.fixture(scope="module")
def service(servers: Servers) -> Iterator[tuple[str, FakeModel]]:
    """Yields the address of a service, and its model."""
    url = servers.new_database()
    with fake_model() as model:
        with api(url, **model.settings) as (_, address), worker(url, **model.settings):
            yield address, model


@pytest.fixture
async def session(service: tuple[str, FakeModel]) -> AsyncIterator[Session]:
    """Yields a session with a short log, and a memory of each kind that has read it."""
    address, model = service
    model.reply = lambda number: ADD
    async with palimpsest.connect(address) as client:
        made = await client.create_session(f"s-{uuid4().hex}")
        await made.create_memory("prism", "class A:\n    topics: dict[str, str]\n")
        await made.create_tree("tree")
        await made.create_state("state")
        ack = await made.append("The Maria is a ship. She lies in the harbour.")
        await made.memory("prism").get(after=ack.read_token, timeout=SECONDS)
        await made.tree("tree").get(after=ack.read_token, timeout=SECONDS)
        yield made


def says(service: tuple[str, FakeModel], reply: Callable[[str], str]) -> None:
    """Makes the model reply so to each prompt from now on."""
    model = service[1]
    model.reply = lambda number: reply(model.prompts[number - 1])


def answers(text: str) -> Callable[[str], str]:
    """Returns a model that answers so, in the form that each prompt asks for."""

    def reply(prompt: str) -> str:
        if "You convert an answer into a JSON value" in prompt:
            return json.dumps(OPTIONS[0])
        if "[ANSWER]" in prompt:
            rests = {"[PATHS]": "$.topics.ship", "[STEPS]": "1"}
            named = "".join(f"{name}\n{one}\n" for name, one in rests.items() if name in prompt)
            return f"[ANSWER]\n{text}\n{named}"
        if "-2" in prompt:
            return f"Reasoning: so\nAction: -2\nAnswer: {text}"
        return json.dumps({"action": "answer", "text": text})

    return reply


def is_none(answer: Answer) -> bool:
    """Returns whether it says that there is no answer, in every way that it can."""
    assert answer.state == "done"
    assert answer.no_answer in ("not_found", "unreadable")
    assert answer.cause.startswith("There is no answer")
    assert (answer.text, answer.citations, answer.has_value) == ("", (), False)
    return not (answer.guessed or answer.truncated)


@pytest.mark.parametrize("reply", [lambda prompt: NONE, answers(NONE)], ids=["bare", "in form"])
@pytest.mark.parametrize("reader", READERS)
async def test_an_answer_that_says_there_is_none_is_none(
    service: tuple[str, FakeModel], session: Session, reader: str, reply: Callable[[str], str]
) -> None:
    says(service, reply)
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    said = await session.ask(QUERY, response_schema=schema, timeout=SECONDS, **READERS[reader])
    assert is_none(said)
    assert await session.answer(said.id) == said
    pieces = [
        piece.text async for piece in session.stream_ask(QUERY, timeout=SECONDS, **READERS[reader])
    ]
    assert "".join(pieces) == "", "nothing of it is told as a text"


@pytest.mark.parametrize("reader", READERS)
async def test_of_options_the_answer_is_one_or_none(
    service: tuple[str, FakeModel], session: Session, reader: str
) -> None:
    asked: dict[str, Any] = {"options": OPTIONS, "timeout": SECONDS, **READERS[reader]}
    says(service, answers("In the harbour."))
    said = await session.ask(QUERY, **asked)
    assert (said.text, said.guessed, said.no_answer) == ("in the harbour", False, None)
    assert said.citations
    says(service, answers(NONE))
    nothing = await session.ask(QUERY, **asked)
    if reader in GUESSING:
        assert (nothing.text in OPTIONS, nothing.guessed) == (True, True)
        assert (nothing.no_answer, nothing.citations) == (None, ())
    else:
        assert is_none(nothing)
    listed = [one async for one in session.answers()]
    assert [one.guessed for one in listed] == [nothing.guessed, False]


@pytest.mark.parametrize("reader", ["prism", "pcc", "dciso", "whole", "auto"])
async def test_an_answer_in_other_words_is_mapped_to_an_option(
    service: tuple[str, FakeModel], session: Session, reader: str
) -> None:
    for shaped, wanted in (('"in the harbour"', "in the harbour"), ("42", "42"), ("null", "")):

        def reply(prompt: str, shaped: str = shaped) -> str:
            if "You convert an answer into a JSON value" in prompt:
                return shaped
            return answers("She is moored at the quay.")(prompt)

        says(service, reply)
        said = await session.ask(QUERY, options=OPTIONS, timeout=SECONDS, **READERS[reader])
        assert (said.text, said.guessed) == (wanted, False)
        assert said.no_answer == (None if wanted else "not_found")
        assert bool(said.citations) == bool(wanted)
        events = [one async for one in session.trajectory(said.id)]
        assert events[-1].kind == "shaping"


async def test_options_and_a_schema_are_two_things(
    service: tuple[str, FakeModel], session: Session
) -> None:
    shaped = iter(['"at sea"', '{"place": "far away"}'])

    def reply(prompt: str) -> str:
        if "You convert an answer into a JSON value" in prompt:
            return next(shaped)
        return answers("On the waves.")(prompt)

    says(service, reply)
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    said = await session.ask(
        QUERY, memory="prism", options=OPTIONS, response_schema=schema, timeout=SECONDS
    )
    assert (said.text, said.value) == ("at sea", {"place": "far away"})
    events = [one async for one in session.trajectory(said.id)]
    assert [(one.ordinal, one.kind, one.text) for one in events] == [
        (1, "shaping", '"at sea"'),
        (2, "shaping", '{"place":"far away"}'),
    ]


@pytest.mark.parametrize("reader", ["prism", "pcc", "whole", "auto"])
async def test_an_answer_that_is_cut_off_says_so(
    service: tuple[str, FakeModel], session: Session, reader: str
) -> None:
    says(service, answers("She lies"))
    model = service[1]
    status, headers, body = model.respond({"model": "fake", "messages": [{"content": "[ANSWER]"}]})
    cut = (status, headers, body.replace('"stop"', '"length"'))
    model.script = [cut, cut]
    said = await session.ask(QUERY, timeout=SECONDS, **READERS[reader])
    assert (said.text, said.truncated, said.no_answer) == ("She lies …", True, None)
    says(service, answers("She lies in the harbour."))
    whole = await session.ask(QUERY, timeout=SECONDS, **READERS[reader])
    assert (whole.text, whole.truncated) == ("She lies in the harbour.", False)


async def test_the_command_line_and_the_evaluation_distinguish_them(
    service: tuple[str, FakeModel], session: Session
) -> None:
    def run(*arguments: str) -> str:
        variables = {**os.environ, "PALIMPSEST_ADDRESS": service[0]}
        words = (*arguments, "-s", session.id)
        done = forking.run(words, environment=variables, seconds=SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    says(service, answers(NONE))
    bare = run("ask", QUERY, "-m", "prism")
    assert bare.splitlines()[0] == "There is no answer in the memory."
    given = [one for option in OPTIONS for one in ("--option", option)]
    guess = run("ask", QUERY, "--reader", "dciso", *given)
    assert guess.splitlines()[0].removeprefix("a guess: ") in OPTIONS
    assert guess.startswith("a guess: ")
    streamed = run("ask", QUERY, "--reader", "dciso", "--stream", *given)
    assert streamed.splitlines()[0].removesuffix(" (a guess)") in OPTIONS
    assert streamed.splitlines()[0].endswith(" (a guess)")
    told = json.loads(run("ask", QUERY, "-m", "prism", "--json", *given))
    assert (told["text"], told["no_answer"], told["guessed"]) == ("", "not_found", False)
    assert [line.split("done")[1][:9] for line in run("answer", "list").splitlines()[1:]] == [
        ", no answ",
        ", a guess",
        ", a guess",
        ", no answ",
    ]

    async with palimpsest.connect(service[0]) as client:
        question = Question(number=1, text=QUERY, golds=("at sea",), options=tuple(OPTIONS))
        asked = {"session": session.id, "memory": "tree"}
        found = await ask(client, request_of(question, **asked), SECONDS)
        outcome = found.outcome(seen=None, cited=frozenset())
        assert (outcome.text in OPTIONS, outcome.guessed) == (True, True)
        asked["memory"] = "prism"
        found = await ask(client, request_of(question, **asked), SECONDS)
        outcome = found.outcome(seen=None, cited=frozenset())
        assert (outcome.text, outcome.no_answer, outcome.guessed) == ("", "not_found", False)
