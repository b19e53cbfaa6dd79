"""The end of a worker's pod, with the processes that the chart describes, as Kubernetes ends it."""

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from service.app import health
from tests.acceptance.memories.kept_memory import HeldReplies, finish, start
from tests.deployment.chart import (
    MINIMAL,
    PRODUCTION,
    Manifest,
    by_kind,
    containers,
    environment,
    manifests,
    pods,
)
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, Servers, api, eventually

pytestmark = pytest.mark.timeout(400)
#: What each kind of process says when it works.
READY = {"executor": "calling", "work": "working"}
#: How long a busy machine may take besides.
SLACK_SECONDS = 150


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def fetched(process: Process, path: str) -> tuple[int, str]:
    """Returns what a process says by HTTP, where its log says that it listens."""
    (said,) = re.findall(r'"listen": ?"([^"]+)"', process.log())
    try:
        with urllib.request.urlopen(f"http://{said}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


class Pod:
    """The processes of a worker's pod, in a folder in place of its volumes."""

    def __init__(self, values: Path, secrets: dict[str, str], folder: Path) -> None:
        self._manifests = manifests(values)
        pod = pods(self._manifests)["worker"]
        self._containers = containers(pod)
        #: What is mounted where in a container, and where that is here.
        self._places = {"/etc/palimpsest/secrets": folder / "s", "/run/palimpsest": folder / "r"}
        for place in self._places.values():
            place.mkdir()
        for name, value in secrets.items():
            (folder / "s" / name).write_text(value)
        self._stack = ExitStack()
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> "Pod":
        # A sidecar, which is an init container, has to be there before the next one starts.
        for name, container in self._containers.items():
            self.processes[name] = self._started(name, container)
        return self

    def _started(self, name: str, container: Manifest) -> Process:
        said = {
            key: self._here(value) for key, value in environment(container, self._manifests).items()
        }
        # Any that is free: another pod has addresses of its own.
        said["PALIMPSEST_METRICS_LISTEN"] = "127.0.0.1:0"
        command = " ".join(map(self._here, container["args"]))
        process = Process(command, said, READY[container["args"][0]])
        self._stack.callback(process.close)
        for kind in ("startup", "readiness", "liveness"):
            path = container[f"{kind}Probe"]["httpGet"]["path"]
            eventually(f"{name} answers {path}", lambda path=path: fetched(process, path)[0] == 200)
        return process

    def _here(self, value: str) -> str:
        for there, here in self._places.items():
            value = value.replace(there, str(here))
        return value

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def test_what_workers_are_scaled_by_is_measured_by_the_api(servers: Servers) -> None:
    (scaled,) = by_kind(manifests(PRODUCTION), "ScaledObject").values()
    queries = " ".join(one["metadata"]["query"] for one in scaled["spec"]["triggers"])
    wanted = set(re.findall(r"palimpsest_\w+", queries))
    assert len(wanted) == 2
    with api(servers.new_database(), PALIMPSEST_METRICS_LISTEN="127.0.0.1:0") as (process, _):

        def found() -> set[str]:
            return set(re.findall(r"^(\w+)[{ ]", fetched(process, "/metrics")[1], re.MULTILINE))

        eventually("the queue is measured", lambda: wanted <= found())
        # `sum(max by (state) (…))` needs the label.
        assert 'palimpsest_queue_items{state="queued"}' in fetched(process, "/metrics")[1]


def test_the_end_of_a_pod_finishes_a_model_call_and_it_is_paid_once(
    servers: Servers, model: FakeModel, tmp_path: Path, folder: Path
) -> None:
    url = servers.new_database()
    settings = dict(model.settings)
    secrets = {"database-url": url, "model-api-key": settings.pop("PALIMPSEST_MODEL_API_KEY")}
    values = yaml.safe_load(MINIMAL.read_text())
    values["secrets"]["modelApiKey"] = {"existingSecret": "models"}
    # Another worker takes over at once, or not at all.
    values["settings"] = {
        **settings,
        "PALIMPSEST_DEAD_AFTER_SECONDS": "3600",
        "PALIMPSEST_HEARTBEAT_SECONDS": "600",
    }
    # The call takes longer than the worker's patience, and not longer than the executor's.
    values["worker"] = {"stopSeconds": 1}
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    held = HeldReplies(model)
    with api(url) as (_, address):
        first, second = folder / "1", folder / "2"
        first.mkdir()
        second.mkdir()
        with Pod(path, secrets, first) as pod:
            _, token = asyncio.run(start(address, ["only chunk"]))
            assert held.asked.wait(SLACK_SECONDS)
            # `palimpsest health` sees both from either container.
            found = health.ask(first / "r/health")
            assert [(one.kind, one.cause) for one in found] == [("executor", ""), ("work", "")]
            # Sidecars are stopped when all other containers have ended.
            assert pod.processes["worker"].stop() == 0
            executor = pod.processes["executor"]
            assert executor.is_running()
            executor._popen.terminate()
            held.go.set()
            assert executor.wait(SLACK_SECONDS) == 0, executor.log()
        with Pod(path, secrets, second):
            assert asyncio.run(finish(address, token))[:2] == (1, 1)
    assert len(model.prompts) == 1
