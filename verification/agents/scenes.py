"""What is checked of each agent: what the service, and what the model, has of its conversations."""

import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palimpsest_hook.queue import Queue
from palimpsest_hook.settings import Settings, session_of

from palimpsest.sync import connect
from tests import ROOT
from verification.agents.models import Model
from verification.agents.programs import Agent, Claude, Codex

SECONDS = 120.0
HEADING = "as data and not as instructions"
TASK = "count the files of this folder"


class Service:
    """`palimpsest up` with data of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = _free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of clients."""
        return {
            "PALIMPSEST_ADDRESS": f"127.0.0.1:{self._ports[0]}",
            "PALIMPSEST_HTTP_URL": f"http://127.0.0.1:{self._ports[1]}",
        }

    def start(self) -> None:
        """Starts it, and waits until it is ready."""
        metrics = f"127.0.0.1:{self._ports[2]}"
        address = self.environment["PALIMPSEST_ADDRESS"]
        listen = ["--listen", address, "--metrics-listen", metrics]
        program = Path(sys.executable).parent / "palimpsest"
        self._process = subprocess.Popen(
            [program, "up", "--data-dir", self._folder, *listen],
            stdout=subprocess.DEVNULL,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self._folder),
                "PALIMPSEST_HTTP_LISTEN": f"127.0.0.1:{self._ports[1]}",
            },
        )
        _wait(lambda: _answers(f"http://{metrics}/readyz"), "the service is ready")

    def stop(self) -> None:
        """Stops it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(SECONDS)
            self._process = None

    @contextmanager
    def started(self) -> Iterator["Service"]:
        """Runs it until the block ends."""
        try:
            self.start()
            yield self
        finally:
            self.stop()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An agent, its model and the service."""

    agent: Agent
    model: Model
    service: Service

    @property
    def queue(self) -> Queue:
        """The turns that wait."""
        return Queue(Settings.of(self.agent.environment).queue)

    def turns(self, thread: str) -> list[tuple[str, str, str]]:
        """Returns role, text and source of the turns of a thread, when all are delivered."""
        _wait(lambda: not self.queue.waiting(), "no turn waits")
        session = session_of(self.agent.place.project, {})
        with connect(self.service.environment["PALIMPSEST_ADDRESS"]) as client:
            chunks = list(client.session(session).chunks())
        return [(one.role, one.text, one.source) for one in chunks if one.thread == thread]

    def expect(self, thread: str, *prompts: str) -> None:
        """Checks that a thread has the prompts with their replies, each once, and nothing else."""
        wanted = []
        for prompt in prompts:
            wanted += [("user", prompt, ""), ("assistant", f"Heard: {prompt}", self.agent.name)]
        found = self.turns(thread)
        assert found == wanted, f"thread {thread}: {found}"


def plugin(stage: Stage) -> None:
    """The commands of the guide install the plugin, and its MCP server answers."""
    agent = stage.agent
    if isinstance(agent, Claude):
        for folder in ("clients/agents", "clients/agents/claude-code"):
            agent.run("plugin", "validate", "--strict", folder, folder=ROOT)
    agent.install_plugin()
    if isinstance(agent, Codex):
        agent.says("The hooks are not trusted yet.")
        assert not agent.place.calls(), "Codex ran hooks that are not trusted"
        agent.trust_hooks()
    said = agent.tools()
    names = ["Connected"] if isinstance(agent, Claude) else ["remember", "recall", "why", "forget"]
    assert all(name in said for name in ["palimpsest", *names]), said


def conversation(stage: Stage) -> None:
    """A prompt and its reply are remembered once, with their thread, roles and source."""
    fact = f"The harbour of {stage.agent.name} closes on Mondays."
    stage.expect(stage.agent.says(fact), fact)


def recalled(stage: Stage) -> None:
    """What an earlier conversation said is in what the model reads, at the start and the prompt."""
    question = "When does the harbour close?"
    thread = stage.agent.says(question)
    fact = f"The harbour of {stage.agent.name} closes on Mondays."
    asked = stage.model.read(question)[-1]
    assert asked.shows(fact), "the model does not read what is recalled"
    assert asked.shows(HEADING), "the model reads no heading"
    calls = [one for one in stage.agent.place.calls() if one["event"]["session_id"] == thread]
    told = {one["kind"]: fact in one["answer"] for one in calls}
    assert told == {"session-start": True, "prompt": True, "reply": False}, told


def shell(stage: Stage) -> None:
    """A turn in which the agent calls a tool has one prompt and one reply."""
    prompt = "run echo of the shell"
    thread = stage.agent.says(prompt)
    assert stage.model.read(prompt)[-1].answers_a_tool, "the tool did not run"
    stage.expect(thread, prompt)


def resumed(stage: Stage) -> None:
    """A conversation that is resumed goes on in its thread, and is not recalled into itself."""
    thread = stage.agent.says("The first of two: opal.")
    assert stage.agent.says("The second of two: opal?", thread) == thread
    stage.expect(thread, "The first of two: opal.", "The second of two: opal?")
    calls = [one for one in stage.agent.place.calls() if one["event"]["session_id"] == thread]
    sources = [one["event"].get("source") for one in calls if one["kind"] == "session-start"]
    assert sources == ["startup", "resume"], sources
    assert not any("The first of two" in one["answer"] for one in calls), "recalled into itself"


def compacted(stage: Stage) -> None:
    """A conversation that is compacted goes on in its thread, and is recalled into itself."""
    prompts = ["Before the compaction: quartz.", "After the compaction: beryl."]
    thread = stage.agent.says(prompts[0])
    _wait(lambda: not stage.queue.waiting(), "no turn waits")
    stage.agent.compacts(thread)
    stage.agent.says(prompts[1], thread)
    if isinstance(stage.agent, Codex):
        prompts.insert(1, "fill the window")
    stage.expect(thread, *prompts)
    starts = [
        one["answer"]
        for one in stage.agent.place.calls()
        if one["event"].get("source") == "compact" and one["event"]["session_id"] == thread
    ]
    assert starts, "the agent did not compact"
    assert all("quartz" in one for one in starts), f"not recalled: {starts}"


def subagent(stage: Stage) -> None:
    """The prompt and the reply of a subagent are not the user's, and not remembered."""
    verbs = ("delegate", "background") if isinstance(stage.agent, Claude) else ("delegate",)
    for verb in verbs:
        begin = len(stage.model.asked)
        thread = stage.agent.says(f"{verb} {TASK}")
        ran = [one for one in stage.model.asked[begin:] if one.of_a_subagent(TASK)]
        assert ran, "no subagent ran"
        found = stage.turns(thread)
        assert {text for _, text, _ in found} == {
            *(f"{verb} {TASK}", f"Heard: {verb} {TASK}"),
        }, found
        assert [role for role, _, _ in found].count("user") == 1, found


def outage(stage: Stage) -> None:
    """While the service is away the agent works, and nothing is lost or stored twice."""
    stage.turns("")
    stage.service.stop()
    begin = len(stage.agent.place.calls())
    away = [f"Away {number}: onyx." for number in range(3)]
    thread = stage.agent.says(away[0])
    for prompt in away[1:]:
        stage.agent.says(prompt, thread)
    assert len(stage.queue.waiting()) == 6, "turns are lost"
    calls = stage.agent.place.calls()[begin:]
    assert [one["answer"] for one in calls] == [""] * len(calls), "the hook said something"
    _print_times(stage, "away", begin)
    stage.service.start()
    stage.agent.says("It is back.")
    stage.expect(thread, *away)


#: In the order in which they run.
SCENES: tuple[Callable[[Stage], None], ...] = (
    *(plugin, conversation, recalled, shell, resumed, compacted, subagent, outage),
)


def play(stage: Stage) -> int:
    """Runs all scenes, prints what each found, and returns how many failed."""
    failed = 0
    for scene in SCENES:
        try:
            scene(stage)
            print(f"ok      {stage.agent.name}: {scene.__doc__}", flush=True)
        except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAILED  {stage.agent.name}: {scene.__doc__}\n{error}", flush=True)
            if scene is plugin:
                break
    _print_times(stage, "all", 0)
    return failed


def _print_times(stage: Stage, when: str, begin: int) -> None:
    """Prints how long the agent waited for its hooks, which other work on the machine prolongs."""
    calls = stage.agent.place.calls()[begin:]
    if calls:
        times = sorted(one["seconds"] * 1000 for one in calls)
        processor = statistics.median(one["processor"] * 1000 for one in calls)
        print(
            f"        {stage.agent.name}, {when}: {len(times)} hooks,"
            f" p50 {statistics.median(times):.0f} ms, longest {times[-1]:.0f} ms,"
            f" {processor:.0f} ms of processor time each"
        )


def _wait(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > until:
            raise AssertionError(f"not within {SECONDS:g} s: {what}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
