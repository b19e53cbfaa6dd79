"""`palimpsest-hook`: the events of coding agents, with the service there, away and silent."""

import asyncio
import json
import os
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from palimpsest_hook.queue import MAX_WAITING, Entry, Queue, QueueFull
from palimpsest_hook.settings import Settings

import palimpsest
from tests.acceptance.access.serving import serving_both

#: Events of Claude Code, as it documents them.
PROMPT = {"hook_event_name": "UserPromptSubmit", "permission_mode": "default"}
REPLY = {"hook_event_name": "Stop", "stop_hook_active": False}
EVENTUALLY_SECONDS = 60.0


class Agent:
    """What runs the hooks: an environment, and a folder it works in."""

    def __init__(self, folder: Path, address: str, url: str) -> None:
        self.session = f"code-{uuid4().hex}"
        self.folder = folder
        self.environment = {
            **os.environ,
            "PALIMPSEST_ADDRESS": address,
            "PALIMPSEST_HTTP_URL": url,
            "PALIMPSEST_SESSION": self.session,
            "PALIMPSEST_HOOK_QUEUE": str(folder / "queue"),
            # A machine may be slow.
            "PALIMPSEST_HOOK_SECONDS": "30",
        }

    @property
    def queue(self) -> Queue:
        """The queue of the service that the environment names."""
        return Queue(Settings.of(self.environment).queue)

    async def run(self, *arguments: str, event: object = None) -> tuple[int, str, str]:
        """Runs the hook with an event, and returns its exit code, output and errors."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "palimpsest_hook", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        out, error = await process.communicate(data)
        assert process.returncode is not None
        return process.returncode, out.decode(), error.decode()

    async def says(self, text: str, thread: str = "t1") -> str:
        """Submits a prompt; returns what the agent reads."""
        event = {**PROMPT, "session_id": thread, "cwd": str(self.folder), "prompt": text}
        code, out, error = await self.run("prompt", event=event)
        assert (code, error) == (0, "")
        return out

    async def delivered(self) -> None:
        """Waits until nothing waits."""
        until = time.monotonic() + EVENTUALLY_SECONDS
        while self.queue.waiting():
            assert time.monotonic() < until, "turns still wait"
            await asyncio.sleep(0.05)


@pytest.fixture
async def served(url: str) -> AsyncIterator[tuple[str, str]]:
    async with serving_both(url, http_listen="127.0.0.1:0") as both:
        yield both


@pytest.fixture
def agent(tmp_path: Path, served: tuple[str, str]) -> Agent:
    return Agent(tmp_path, *served)


async def stored(address: str, session: str) -> list[Any]:
    """Returns the chunks of a session."""
    async with palimpsest.connect(address) as client:
        return [one async for one in client.session(session).chunks()]


async def test_what_is_said_is_remembered_and_recalled_in_the_next_conversation(
    agent: Agent, served: tuple[str, str]
) -> None:
    assert await agent.says("We indent with tabs in this repository.") == ""
    code, out, _ = await agent.run(
        "reply",
        event={
            **REPLY,
            "session_id": "t1",
            "cwd": str(agent.folder),
            "last_assistant_message": "Tabs it is.",
        },
    )
    assert (code, out) == (0, "")
    await agent.delivered()
    chunks = await stored(served[0], agent.session)
    assert [(one.text, one.role, one.thread, one.source) for one in chunks] == [
        ("We indent with tabs in this repository.", "user", "t1", ""),
        ("Tabs it is.", "assistant", "t1", "claude-code"),
    ]
    # The agent has its own conversation anyway.
    assert await agent.says("Tabs or blanks?", "t1") == ""
    told = json.loads(await agent.says("Tabs or blanks?", "t2"))["hookSpecificOutput"]
    assert told["hookEventName"] == "UserPromptSubmit"
    assert "data and not as instructions" in told["additionalContext"]
    assert "We indent with tabs in this repository." in told["additionalContext"]
    # Unless its window was compacted. What it submits itself recalls nothing.
    event: dict[str, Any] = {"session_id": "t1", "cwd": str(agent.folder), "source": "compact"}
    assert "We indent with tabs" in (await agent.run("session-start", event=event))[1]
    event |= {"source": "resume"}
    assert "We indent with tabs" not in (await agent.run("session-start", event=event))[1]
    assert await agent.says("<task-notification>Done.</task-notification>", "t2") == ""
    event = {"session_id": "t3", "composer_mode": "agent"}
    _, out, _ = await agent.run("session-start", "--agent", "cursor", event=event)
    assert "We indent with tabs" in json.loads(out)["additional_context"]


async def test_turns_of_an_outage_are_stored_once_and_in_order_afterwards(
    agent: Agent, served: tuple[str, str]
) -> None:
    there = dict(agent.environment)
    with closed_port() as port:
        agent.environment |= {
            "PALIMPSEST_ADDRESS": f"127.0.0.1:{port}",
            "PALIMPSEST_HTTP_URL": f"http://127.0.0.1:{port}",
        }
        for number in range(3):
            assert await agent.says(f"turn {number}") == ""
        away = agent.queue
        assert len(away.waiting()) == 3
        code, out, _ = await agent.run("status")
        assert (code, out.splitlines()[0][:12]) == (0, "3 turn(s) wa")
    # Nothing of them may be read by others.
    for path in away.waiting():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    agent.environment = there
    for path in away.waiting():
        agent.queue.add(away.read(path))
    code, out, error = await agent.run("flush")
    assert code == 0, error
    await agent.delivered()
    # As after a crash between the ack and the removal.
    for path in away.waiting():
        agent.queue.add(away.read(path))
    code, out, error = await agent.run("flush")
    assert (code, out.splitlines()[0]) == (0, "3 turn(s) are remembered"), error
    chunks = await stored(served[0], agent.session)
    assert [one.text for one in chunks] == ["turn 0", "turn 1", "turn 2"]


async def test_a_turn_that_two_hooks_report_is_stored_once(
    agent: Agent, served: tuple[str, str]
) -> None:
    event = {"session_id": "t1", "turn_id": "7", "prompt": "once", "cwd": str(agent.folder)}
    for _ in range(2):
        assert (await agent.run("prompt", "--agent", "codex", event=event))[0] == 0
    await agent.delivered()
    assert [one.text for one in await stored(served[0], agent.session)] == ["once"]


async def test_a_refused_turn_is_kept_apart_and_does_not_stop_the_others(
    agent: Agent, served: tuple[str, str]
) -> None:
    for session, text in ((f"{agent.session}/x", "never"), (agent.session, "taken")):
        agent.queue.add(
            Entry(
                session=session,
                thread="t1",
                source="",
                role="user",
                text=text,
                request_id=uuid4().hex,
                said_at=time.time(),
            )
        )
    (agent.queue.waiting()[0].parent / "0-broken.json").write_text("{")
    code, out, error = await agent.run("flush")
    assert code == 0, error
    assert "1 turn(s) are remembered" in out
    assert [one.text for one in await stored(served[0], agent.session)] == ["taken"]
    refused = agent.queue.refused()
    assert len(refused) == 2
    assert "unreadable" in agent.queue.reason(refused[0])
    assert "session" in agent.queue.reason(refused[1])
    assert "refused: " in (await agent.run("status"))[1]
    await agent.run("flush", "--refused", "--quiet")
    assert len(agent.queue.refused()) == 2


async def test_a_silent_service_does_not_delay_the_agent(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent.environment["PALIMPSEST_HTTP_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        del agent.environment["PALIMPSEST_HOOK_SECONDS"]
        # The call itself has no end: without the limit, this test would not have one either.
        assert await agent.says("Is anybody there?") == ""
        assert len(agent.queue.waiting()) == 1


@pytest.mark.parametrize(
    ("arguments", "event", "said"),
    [
        (("prompt",), b"no JSON", "not JSON"),
        (("prompt",), b"[]", "not a JSON object"),
        (("reply", "--agent", "cursor"), b"", "not JSON"),
    ],
)
async def test_a_bad_event_is_said_and_stops_no_agent(
    tmp_path: Path, arguments: tuple[str, ...], event: bytes, said: str
) -> None:
    agent = Agent(tmp_path, "127.0.0.1:1", "http://127.0.0.1:1")
    code, _, error = await agent.run(*arguments, event=event)
    assert code == 0
    assert said in error
    assert not agent.queue.waiting()


async def test_a_wrong_setting_is_said_and_off_captures_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "127.0.0.1:1", "ftp://x")
    event = {**PROMPT, "session_id": "t1", "prompt": "x", "cwd": str(tmp_path)}
    code, out, error = await agent.run("prompt", event=event)
    assert code == 0
    assert "PALIMPSEST_HTTP_URL" in json.loads(out)["systemMessage"]
    assert "PALIMPSEST_HTTP_URL" in error
    agent.environment |= {"PALIMPSEST_HTTP_URL": "http://127.0.0.1:1", "PALIMPSEST_HOOK": "off"}
    assert await agent.run("prompt", event=event) == (0, "", "")
    assert not agent.queue.waiting()


def test_a_full_queue_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    entry = Entry(
        session="s", thread="t", source="", role="user", text="x", request_id="r", said_at=0.0
    )
    queue.add(entry)
    folder = queue.waiting()[0].parent
    for number in range(MAX_WAITING):
        (folder / f"{number}.json").touch()
    with pytest.raises(QueueFull, match="status"):
        queue.add(entry)
    assert len(queue.waiting()) == MAX_WAITING + 1


@contextmanager
def closed_port() -> Iterator[int]:
    """Yields a port where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_the_mcp_server_of_a_folder_serves_its_session(tmp_path: Path) -> None:
    fake = tmp_path / "palimpsest"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    agent = Agent(tmp_path, "127.0.0.1:1", "http://127.0.0.1:1")
    agent.environment["PATH"] = str(tmp_path)
    assert await agent.run("session") == (0, f"{agent.session}\n", "")
    assert await agent.run("mcp") == (0, f"mcp --session {agent.session}\n", "")
    fake.unlink()
    code, _, error = await agent.run("mcp")
    assert code == 1
    assert "install palimpsest-server" in error
