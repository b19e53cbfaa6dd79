"""Commands beside a running `up`, without any of its variables."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.local import running
from service.settings.config import Config
from service.settings.deployments import Deployment
from tests.support import forking
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import EVENTUALLY_SECONDS

KEY = "sk-not-to-be-logged"


class Up:
    """`palimpsest up`, running in a folder of its own."""

    def __init__(self, folder: Path, model: FakeModel) -> None:
        self.folder = folder / "data"
        command = ["up", "--data-dir", str(self.folder), "--listen", "127.0.0.1:0"]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "service.cli", *command],
            env={**os.environ, **model.settings, "PALIMPSEST_EMBEDDING_MODEL": "openai/words"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._popen.stdout is not None
        #: What it says when it is ready.
        self.said = [next(self._popen.stdout).strip() for _ in range(4)]
        self.pid = self._popen.pid

    def end(self) -> None:
        """Stops it."""
        self._popen.send_signal(signal.SIGTERM)
        self._popen.communicate(timeout=EVENTUALLY_SECONDS)


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def palimpsest(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns a command with none of our variables."""
    environment = {name: one for name, one in os.environ.items() if "PALIMPSEST" not in name}
    return forking.run(arguments, environment=environment, seconds=EVENTUALLY_SECONDS)


@pytest.mark.prove
def test_doctor_and_verify_find_what_runs(folder: Path, model: FakeModel) -> None:
    up = Up(folder, model)
    try:
        address = up.said[0].removeprefix("Palimpsest listens at ").partition(";")[0]
        assert up.said[1].startswith("Over HTTP: http://127.0.0.1:")
        assert up.said[2] == (
            "Clients need no key and act for the default tenant: only this machine reaches it"
        )
        assert up.said[3] == f"The model is openai/fake at {model.url}; vectors by openai/words"
        told = up.folder / "run" / "settings.json"
        assert stat.S_IMODE(told.stat().st_mode) == 0o600
        assert KEY not in told.read_text()
        looked = palimpsest("doctor", "--json", "--data-dir", str(up.folder))
        found = {one["name"]: one for one in map(json.loads, looked.stdout.splitlines())}
        assert looked.returncode == 0, looked.stdout + looked.stderr
        assert "Valkey" in found["redis"]["said"] or "Redis" in found["redis"]["said"]
        assert found["api"]["said"] == f"{address} serves"
        at = up.said[1].removeprefix("Over HTTP: ")
        assert found["http"]["said"] == f"{at} serves, with the methods of this release"
        assert f"process {up.pid}" in looked.stdout
        assert any("openai/fake" in one for one in looked.stdout.splitlines())
        assert model.url in found["model"]["said"]
        # A port may have these digits as well.
        assert "401" not in found["model"]["said"].replace(model.url, "")
        missing = palimpsest("verify", "nosuch", "--data-dir", str(up.folder))
        assert missing.returncode == 1
        assert missing.stderr == "error: there is no session 'nosuch'\n"
    finally:
        up.end()
    assert not told.exists()
    stopped = palimpsest("doctor", "--data-dir", str(up.folder))
    assert stopped.returncode == 1
    assert "no network is needed" in stopped.stdout


def test_the_written_settings_have_no_secret_and_read_back_the_same(tmp_path: Path) -> None:
    place = Deployment(
        name="one",
        model="openai/m",
        api_base="http://host/v1",
        api_key=SecretStr("secret-word"),
    )
    config = Config.model_validate(
        {
            "database_url": "postgresql://u:secret-word@db/d",
            "redis_url": "redis://:secret-word@cache/0",
            "model": "openai/m",
            "models": "a/*,b/c",
            "model_base_url": "https://host/v1",
            "model_api_key": "secret-word",
            "model_settings": {"openai/*": {"extra_body": {"token": "secret-word"}}},
            "model_prices": {"openai/*": {"read": 0.1}},
            "deployments": (place,),
            "worker_concurrency": 3,
            "limits": {"max_memories": 7},
        }
    )
    overrides = {"PALIMPSEST_LISTEN": "127.0.0.1:77", "PALIMPSEST_INSECURE": "False"}
    assert running.find(tmp_path) is None
    with running.told(tmp_path, config, overrides, redis_place=None):
        assert "secret-word" not in (tmp_path / "run" / "settings.json").read_text()
        found = running.find(tmp_path)
        assert found is not None
        read = Config.model_validate(dict(found.settings))
        assert (read.model, read.models, read.listen) == (
            "openai/m",
            ("a/*", "b/c"),
            "127.0.0.1:77",
        )
        assert (read.worker_concurrency, read.limits.max_memories) == (3, 7)
        assert (read.model_base_url, read.model_prices) == ("https://host/v1", config.model_prices)
        assert (read.deployments[0].name, read.deployments[0].api_base) == ("one", "http://host/v1")
        assert found.hidden == {"database_url", "redis_url", "model_api_key", "deployment one"}
    assert running.find(tmp_path) is None


def test_one_that_was_killed_is_not_taken_for_one_that_runs(tmp_path: Path) -> None:
    with running.told(tmp_path, Config(), {}, redis_place=None):
        told = tmp_path / "run" / "settings.json"
        gone = subprocess.Popen(["true"])
        gone.wait()
        told.write_text(json.dumps({**json.loads(told.read_text()), "pid": gone.pid}))
        assert running.find(tmp_path) is None
        told.write_text("{")
        assert running.find(tmp_path) is None
