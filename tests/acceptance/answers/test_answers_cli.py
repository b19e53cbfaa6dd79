"""Commands for answers: interrupted, resumed, cancelled, rated, listed."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from service.domain.answers.answer_updates import TextPiece
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from storage.answers import texts
from storage.engine.database import Database
from tests.acceptance.state.test_state_cli import run, succeed
from tests.support import forking
from tests.support.harness import Servers, api, eventually, worker

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def url(servers: Servers) -> str:
    return servers.new_database()


@pytest.fixture(scope="module")
def address(url: str) -> Iterator[str]:
    """Yields a service without a worker: its answers stay pending."""
    with api(url) as (_, address):
        yield address


@pytest.fixture
def pending(address: str) -> str:
    """Returns an answer that is being made in the session `s`, by its id."""
    run("session", "create", "s", PALIMPSEST_ADDRESS=address)
    run(
        *("memory", "create", "state", "state", "-s", "s"),
        PALIMPSEST_ADDRESS=address,
    )
    # On a busy machine the time may be up before the question is stored.
    for seconds in (0.5, 2, 8, 32):
        query = f"When is {uuid4()}?"
        late = run(
            *("ask", query, "-s", "s", "-m", "state", "--timeout", str(seconds)),
            PALIMPSEST_ADDRESS=address,
        )
        assert late.returncode == 1
        listed = succeed("answer", "list", "-s", "s", "--json", PALIMPSEST_ADDRESS=address)
        for told in map(json.loads, listed.splitlines()):
            if told["query"] == query:
                assert (told["state"], told["memory"]) == ("pending", "state")
                return str(told["id"])
    raise AssertionError("no question is stored")


@pytest.mark.prove
def test_an_interrupted_question_prints_how_to_resume(url: str, address: str, pending: str) -> None:
    query = f"When is {uuid4()}?"
    asking = subprocess.Popen(
        [
            *(forking.python(), "-m", "service.cli", "ask", query, "-s", "s", "-m", "state"),
            *("--stream", "--timeout", "300"),
        ],
        env={**os.environ, "PALIMPSEST_ADDRESS": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert asking.stdout is not None
    try:
        answer_id = _asked(address, query)
        asyncio.run(_write(url, answer_id, "On Mon"))
        assert asking.stdout.read(6) == b"On Mon"
        asking.send_signal(signal.SIGINT)
        _, raw = asking.communicate(timeout=200)
    finally:
        asking.kill()
    said = raw.decode()
    assert asking.returncode == 130
    assert f"`palimpsest ask --resume {answer_id} -s s`" in said
    cancel = re.findall(r"`palimpsest (answer cancel [^`]+)`", said)
    assert cancel == [f"answer cancel {answer_id} -s s"]
    assert "Traceback" not in said
    assert succeed(*cancel[0].split(), PALIMPSEST_ADDRESS=address) == f"{answer_id} is cancelled\n"
    refused = run("ask", "--resume", answer_id, "-s", "s", PALIMPSEST_ADDRESS=address)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == f"error: answer {answer_id} was cancelled: ask again"


def _asked(address: str, query: str) -> str:
    """Returns the id of the answer to a question that another process asks."""
    found: list[str] = []

    def look() -> bool:
        listed = succeed("answer", "list", "-s", "s", "--json", PALIMPSEST_ADDRESS=address)
        told = map(json.loads, listed.splitlines())
        found.extend(one["id"] for one in told if one["query"] == query)
        return bool(found)

    eventually("the question is stored", look)
    return found[0]


async def _write(url: str, answer_id: str, text: str) -> None:
    """Writes the first piece of the answer's text, as a worker would."""
    database = Database.connect(url, pool_size=1, name="test")
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = (session_key(DEFAULT_TENANT, "s"), UUID(answer_id))
        assert await texts.append(tx, key, [TextPiece(ordinal=1, text=text)])
    await database.close()


def test_what_cannot_be_is_one_clear_line(address: str, pending: str) -> None:
    unknown = str(uuid4())
    for arguments, said in (
        (("ask", "-s", "s"), "give a question"),
        (("ask", "What?", "--resume", pending, "-s", "s"), "give a question, or --resume"),
        (("ask", "--resume", pending, "--stream", "-s", "s"), "--resume waits for an answer as"),
        (("ask", "--resume", pending, "--reader", "dciso", "-s", "s"), "--resume waits for an"),
        (("ask", "--resume", unknown, "-s", "s"), "session 's' has no answer"),
        (("ask", "What?", "--schema", "none.json", "-s", "s"), "cannot read none.json"),
        (("answer", "rate", pending, "-s", "s"), "give --good or --bad"),
        (("answer", "rate", pending, "--good", "-s", "s"), f"answer {pending} is pending"),
        (("answer", "rate", unknown, "--bad", "-s", "s"), "session 's' has no answer"),
        (("answer", "rate", "no-id", "--bad", "-s", "s"), "answer: "),
        (("answer", "cancel", unknown, "-s", "s"), "session 's' has no answer"),
        (("answer", "list", "-s", "none"), "there is no session 'none'"),
        (("answer", "list", "-s", "s", "-m", "none"), "session 's' has no memory 'none'"),
    ):
        done = run(*arguments, PALIMPSEST_ADDRESS=address)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr.startswith(f"error: {said}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_an_answer_is_resumed_rated_and_listed(url: str, address: str, pending: str) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    waiting = succeed("answer", "show", pending, "-s", "s", **at)
    assert waiting == f"{pending} is pending\n"
    with worker(url):
        text = succeed("ask", "--resume", pending, "-s", "s", PALIMPSEST_ADDRESS=address)
    assert text.splitlines()[-1].startswith("  by offline/extractive at revision 0")
    done = run("answer", "cancel", pending, "-s", "s", PALIMPSEST_ADDRESS=address)
    assert done.stderr == f"error: answer {pending} had ended before: it is done\n"
    assert succeed("answer", "show", pending, "-s", "s", **at) == text
    told = json.loads(succeed("answer", "show", pending, "-s", "s", "--json", **at))
    assert (told["id"], told["state"]) == (pending, "done")
    rated = succeed(
        *("answer", "rate", pending, "--bad", "--comment", "[bold]too late", "--expected", "noon"),
        *("-s", "s"),
        PALIMPSEST_ADDRESS=address,
    )
    assert rated == f"{pending} is rated bad\n"
    listed = succeed(
        *("answer", "list", "-s", "s", "-m", "state", "--state", "done", "--json"),
        PALIMPSEST_ADDRESS=address,
    )
    told = [one for one in map(json.loads, listed.splitlines()) if one["id"] == pending]
    assert told[0]["rating"]["comment"] == "[bold]too late"
    assert told[0]["rating"]["expected"] == "noon"
    shown = succeed("answer", "list", "-s", "s", "--limit", "1", PALIMPSEST_ADDRESS=address)
    assert [one.group() for line in shown.splitlines() if (one := ID.match(line))] == [pending]
