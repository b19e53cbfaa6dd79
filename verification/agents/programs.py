"""Installs Claude Code and Codex, and runs prompts in them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.support.guides import GUIDES

#: Where the programs are installed.
INSTALLED = ROOT / ".cache/agents"
LOCKED = Path(__file__).parent
SECONDS = 120.0

#: Records each call of the hook, what it answered, and what time it took.
RECORDER = """#!{python} -IS
import json, os, resource, subprocess, sys, time
HOOK = {hook!r}
if sys.argv[1:] == ["mcp"]:
    os.execv(HOOK, [HOOK, "mcp"])
data = sys.stdin.buffer.read()
begin = time.perf_counter()
done = subprocess.run([HOOK, *sys.argv[1:]], input=data, stdout=subprocess.PIPE)
seconds = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
call = {{"kind": sys.argv[1], "event": json.loads(data), "answer": done.stdout.decode(),
    "code": done.returncode, "seconds": seconds, "processor": used.ru_utime + used.ru_stime}}
with open({log!r}, "a") as file:
    file.write(json.dumps(call) + "\\n")
sys.stdout.buffer.write(done.stdout)
"""


class NotInstalled(Exception):
    """The programs cannot be installed here."""


def install() -> None:
    """Installs the locked versions, once. Raises NotInstalled."""
    lock = LOCKED / "package-lock.json"
    done = INSTALLED / "package-lock.json"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is not installed")
    shutil.rmtree(INSTALLED, ignore_errors=True)
    INSTALLED.mkdir(parents=True)
    for name in ("package.json", ".npmrc", "package-lock.json"):
        shutil.copy(LOCKED / name, INSTALLED / name)
    # The programs are the packages of the platforms, which need no scripts.
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
    print("installing Claude Code and Codex (800 MB)", file=sys.stderr, flush=True)
    try:
        subprocess.run([npm, "ci", *options], cwd=INSTALLED, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        done.unlink()
        raise NotInstalled(f"npm cannot install them: {error}") from error


def _program(pattern: str) -> str:
    for found in sorted((INSTALLED / "node_modules").glob(pattern)):
        if os.access(found, os.X_OK):
            return str(found)
    raise NotInstalled(f"no program for this platform: {pattern}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The files of a run: a home of the agents, and a repository that they work in."""

    folder: Path

    @property
    def home(self) -> Path:
        """The home of all agents."""
        return self.folder / "home"

    @property
    def project(self) -> Path:
        """What the agents work in."""
        return self.folder / "project"

    @property
    def log(self) -> Path:
        """The calls of the hook."""
        return self.folder / "hooks.jsonl"

    def prepare(self) -> None:
        """Makes the folders, and the hook that records its calls."""
        for one in (self.home, self.project, self.folder / "bin"):
            one.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        hook = self.folder / "bin/palimpsest-hook"
        real = str(Path(sys.executable).parent / "palimpsest-hook")
        hook.write_text(RECORDER.format(python=sys.executable, hook=real, log=str(self.log)))
        hook.chmod(0o755)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Returns the whole environment of an agent: nothing of the caller's own is in it."""
        own = Path(sys.executable).parent
        return {
            "PATH": f"{self.folder / 'bin'}:{own}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / ".local/state"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # A machine may be slow.
            "MCP_TIMEOUT": "120000",
            **more,
        }

    def calls(self) -> list[dict[str, Any]]:
        """Returns the calls of the hook, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


class Agent:
    """One program, at a place, with a model and a service."""

    name: str
    program: str

    def __init__(self, place: Place, environment: Mapping[str, str]) -> None:
        self.place = place
        self.environment = place.environment(environment)

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        """Runs the program, and returns its output. Raises an error with what it said."""
        done = subprocess.run(
            [self.program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=folder or self.place.project,
            timeout=SECONDS,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"{self.name} {' '.join(arguments)}: {done.returncode}\n{said}")
        return done.stdout

    def install_plugin(self) -> None:
        """Runs the commands of the guide, in the repository."""
        word = self.name.partition("-")[0]
        guide = (GUIDES / "hooks.md").read_text()
        commands = re.findall(rf"`{word} (plugin [^`]+)`", guide)
        assert len(commands) == 2, f"the guide has two commands for {self.name}: {commands}"
        for command in commands:
            self.run(*command.split(), folder=ROOT)

    def says(self, prompt: str, thread: str = "") -> str:
        """Submits a prompt, in a new conversation or in one that is resumed; returns its id."""
        raise NotImplementedError

    def compacts(self, thread: str) -> None:
        """Compacts a conversation."""
        raise NotImplementedError

    def tools(self) -> str:
        """Returns what the program says of the MCP servers of its plugins."""
        raise NotImplementedError


class Claude(Agent):
    """Claude Code."""

    name = "claude-code"

    def __init__(self, place: Place, environment: Mapping[str, str], model: str) -> None:
        key = {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "none"}
        super().__init__(place, {**environment, **key})
        self.program = _program("@anthropic-ai/claude-code-*/claude")

    def says(self, prompt: str, thread: str = "") -> str:
        """Submits a prompt."""
        resumed = ["--resume", thread] if thread else []
        output = self.run(
            *("-p", prompt, "--output-format", "json", "--allowedTools", "Bash", *resumed)
        )
        return str(json.loads(output.splitlines()[-1])["session_id"])

    def compacts(self, thread: str) -> None:
        """Runs the command that a user types."""
        self.says("/compact", thread)

    def tools(self) -> str:
        """Lists the servers, which it connects to."""
        return self.run("mcp", "list")


class Codex(Agent):
    """Codex."""

    name = "codex"

    def __init__(self, place: Place, environment: Mapping[str, str], model: str) -> None:
        super().__init__(place, {**environment, "MODEL_KEY": "none"})
        self.program = _program("@openai/codex-*/vendor/*/bin/codex")
        config = place.home / ".codex/config.toml"
        config.parent.mkdir()
        config.write_text(
            'model = "gpt-5.5-codex"\nmodel_provider = "ours"\n'
            '[model_providers.ours]\nname = "ours"\nenv_key = "MODEL_KEY"\n'
            f'base_url = "{model}/v1"\nwire_api = "responses"\n'
            "[features]\nmulti_agent_v2 = true\n"
            f'[projects."{place.project}"]\ntrust_level = "trusted"\n'
        )

    def says(self, prompt: str, thread: str = "") -> str:
        """Submits a prompt."""
        resumed = ["resume", thread] if thread else []
        output = self.run("exec", "--json", *resumed, prompt)
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return next(str(one["thread_id"]) for one in events if one["type"] == "thread.started")

    def compacts(self, thread: str) -> None:
        """Fills the window: the next prompt compacts it."""
        self.says("fill the window", thread)

    def tools(self) -> str:
        """Lists the tools of the servers, which it connects to."""
        with self._served() as call:
            return json.dumps(call("mcpServerStatus/list", {}))

    def trust_hooks(self) -> None:
        """Trusts the hooks, as `/hooks` does when the user has read them."""
        with self._served() as call:
            (listed,) = call("hooks/list", {"cwds": [str(self.place.project)]})["data"]
            state = {one["key"]: {"trusted_hash": one["currentHash"]} for one in listed["hooks"]}
            edit = {"keyPath": "hooks.state", "value": state, "mergeStrategy": "upsert"}
            call("config/batchWrite", {"edits": [edit]})

    @contextmanager
    def _served(self) -> Iterator[Any]:
        """Yields a function that calls a method of `codex app-server`."""
        with subprocess.Popen(
            [self.program, "app-server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
            cwd=self.place.project,
        ) as process:
            sent, read = process.stdin, process.stdout
            assert sent is not None
            assert read is not None

            def send(message: Mapping[str, Any]) -> None:
                sent.write(json.dumps(message) + "\n")
                sent.flush()

            def call(method: str, parameters: Mapping[str, Any]) -> Any:
                send({"id": method, "method": method, "params": parameters})
                for line in read:
                    reply = json.loads(line)
                    if reply.get("id") == method:
                        return reply["result"]
                raise RuntimeError(f"codex app-server ended at {method}")

            call("initialize", {"clientInfo": {"name": "palimpsest", "version": "0.1.0"}})
            send({"method": "initialized"})
            try:
                yield call
            finally:
                sent.close()
