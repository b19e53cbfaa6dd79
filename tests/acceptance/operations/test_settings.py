"""Processes that are set up by files: a TOML file and files of secrets, children included."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import palimpsest
from tests.acceptance.app.test_signals import Command
from tests.acceptance.memories.kept_memory import SCHEMA, start
from tests.support.embedded import children_of
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, Servers, eventually

KEY = "sk-not-to-be-in-any-environment"


@dataclass
class Files:
    """A TOML file, and files of secrets with the variables that name them."""

    toml: Path
    variables: dict[str, str]
    secrets: list[str]
    model: FakeModel


@pytest.fixture
def files(folder: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    for name in [name for name in os.environ if name.startswith("PALIMPSEST_")]:
        monkeypatch.delenv(name)
    url = servers.new_database()
    values = {"DATABASE_URL": url, "MODEL_API_KEY": KEY, "LISTEN": "127.0.0.1:0"}
    variables = {f"PALIMPSEST_{name}_FILE": folder / name for name in values}
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    passwords = [str(urlsplit(one).password) for one in (url, servers.valkey.url)]
    toml = folder / "palimpsest.toml"
    with fake_model() as model:
        toml.write_text(
            f"""
            redis_url = "{servers.valkey.url}"
            redis_timeout_seconds = 60
            run_dir = "{folder}/run"
            model = "openai/fake"
            model_base_url = "{model.url}"
            [limits]
            max_memories = 1
            """
        )
        toml.chmod(0o600)
        yield Files(
            toml=toml,
            variables={name: str(path) for name, path in variables.items()},
            secrets=[KEY, *passwords],
            model=model,
        )


async def check_use(address: str, files: Files) -> None:
    """The database, the limit and the model are those of the files."""
    # Of a text that was read before there is a copy of the reply.
    memory, token = await start(address, [f"The files are in {files.toml.parent}."])
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        with pytest.raises(palimpsest.PalimpsestError, match="1 memor"):
            await session.create_memory("n", schema_source=SCHEMA)
        got = await session.memory(memory.id).get(after=token, timeout=150)
    assert "t1" in str(got.value)
    assert files.model.requests


def environment_of(pid: int) -> str:
    """Returns the variables that a process was started with, a NUL after each."""
    return Path(f"/proc/{pid}/environ").read_text(errors="replace")


def commands_of(folder: Path) -> dict[str, int]:
    """Returns what we run with files of a folder, by its command."""
    found = {}
    for pid in children_of(folder):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "service.cli" in words:
            found[words[words.index("service.cli") + 1]] = pid
    return found


def told_in(data_dir: Path) -> str:
    """Returns the settings that `up` passes to commands on the same machine."""
    return (data_dir / "run" / "settings.json").read_text()


def check_environments(folder: Path, files: Files, commands: set[str]) -> None:
    """Checks that no process has a secret in its environment."""
    eventually("all of them run", lambda: commands_of(folder).keys() == commands)
    for command, pid in commands_of(folder).items():
        held = environment_of(pid)
        assert "PALIMPSEST_DATABASE_URL_FILE=" in held, command
        assert not [one for one in files.secrets if one in held], command


@pytest.mark.prove
async def test_up_and_all_that_it_starts_read_the_files(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in files.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PALIMPSEST_CONFIG", str(files.toml))
    up = Command(folder, "up", standard_output=True)
    try:
        address = up.address()
        await check_use(address, files)
        check_environments(folder, files, {"up", "serve", "work", "executor"})
        assert not [one for one in files.secrets if one in told_in(folder / "data")]
        # What is started again reads them again.
        os.kill(commands_of(folder)["serve"], signal.SIGKILL)
        up.wait_for("the API died")
        check_environments(folder, files, {"up", "serve", "work", "executor"})
        async with palimpsest.connect(address, reach_seconds=150) as client:
            assert (await client.session("s").memory("m").get()).value
    finally:
        up.popen.terminate()
        assert up.end() == 0, up.said


@pytest.mark.prove
async def test_processes_that_are_named_a_file_hand_it_on(folder: Path, files: Files) -> None:
    with ExitStack() as held:
        serve, _ = (
            held.enter_context(
                closing(
                    Process(f"{command} --config {files.toml}", files.variables, ready, forks=False)
                )
            )
            for command, ready in (("serve", "listening on"), ("work", "working"))
        )
        await check_use(serve.ready_line.removeprefix("listening on "), files)
        check_environments(folder, files, {"serve", "work", "executor"})
        told = environment_of(commands_of(folder)["executor"])
        assert f"PALIMPSEST_CONFIG={files.toml}" in told.split("\0")


def test_a_command_says_what_is_wrong_with_a_file_in_one_line(folder: Path, files: Files) -> None:
    files.toml.write_text(f'redis_url = "{KEY}"\npool_sise = 3\n')
    command = Command(folder, "serve", "--config", str(files.toml))
    assert command.end() == 1
    assert command.said == (
        f"error: {files.toml}: pool_sise is no setting; the nearest is pool_size;"
        f" {files.toml}: redis_url: is no URL redis://:password@host:port/number\n"
    )
