"""The Go client: its own tests, against a real server where they need one, and its README."""

import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from shutil import copy, which

import pytest

from tests import ROOT, proto
from tests.clients.conftest import Services
from tests.clients.drivers import PROGRAM_FOLDERS

CLIENT = ROOT / "clients/go"
GO = which("go", path=os.pathsep.join([os.environ["PATH"], *PROGRAM_FOLDERS]))
#: What `make test-clients` builds, and `make setup-ci`.
STATICCHECK = proto.GO_PLUGINS / "staticcheck"

pytestmark = pytest.mark.skipif(GO is None, reason="Go is not installed")


@pytest.fixture(scope="module")
async def address(services: Services) -> AsyncIterator[str]:
    async with services.of_kind("open") as service:
        yield service.direct


def go(*arguments: str, folder: Path = CLIENT, **environment: str) -> str:
    """Returns what a command of Go printed."""
    return run(str(GO), *arguments, folder=folder, environment=environment)


def run(*command: str, folder: Path, environment: Mapping[str, str]) -> str:
    kept = {name: text for name, text in os.environ.items() if "PALIMPSEST" not in name}
    path = os.pathsep.join([str(Path(str(GO)).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PATH": path, "GOFLAGS": "-mod=readonly", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_its_own_tests_pass(address: str) -> None:
    said = go("test", "-count=1", "./...", PALIMPSEST_TEST_ADDRESS=address)
    assert "ok  \tpalimpsest.invalid/clients/go\t" in said


@pytest.mark.timeout(300)
def test_it_is_formatted_and_vetted() -> None:
    assert go("vet", "./...") == ""
    gofmt = str(Path(str(GO)).parent / "gofmt")
    assert run(gofmt, "-l", ".", folder=CLIENT, environment={}) == ""
    assert STATICCHECK.exists(), "make test-clients builds it"
    run(str(STATICCHECK), ".", "./conformance", folder=CLIENT, environment={})


def test_the_generated_code_is_that_of_the_proto() -> None:
    assert (proto.GO_PLUGINS / "protoc-gen-go-grpc").exists(), "make test-clients builds it"
    assert proto.stale_go() == []


@pytest.mark.timeout(300)
def test_the_program_of_its_readme_prints_what_it_remembers(address: str, tmp_path: Path) -> None:
    program = re.search(r"```go\n(package main\n.*?)```", (CLIENT / "README.md").read_text(), re.S)
    assert program is not None
    (tmp_path / "main.go").write_text(program[1])
    # The versions of the client, so that nothing is looked for.
    modules = (CLIENT / "go.mod").read_text()
    path = "palimpsest.invalid/clients/go"
    modules = modules.replace(f"module {path}", "module program")
    (tmp_path / "go.mod").write_text(
        f"{modules}\nrequire {path} v0.0.0\n\nreplace {path} => {CLIENT}\n"
    )
    copy(CLIENT / "go.sum", tmp_path)
    said = go("run", ".", folder=tmp_path, PALIMPSEST_ADDRESS=address)
    assert "Alice eats no nuts." in said
