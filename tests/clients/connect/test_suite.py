"""The Connect protocol's own conformance suite against our HTTP server."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc

from tests import ROOT
from tests.clients.connect.suite_server import suite_servers
from tests.support.harness import absent

SUITE = ROOT / "tests/clients/connect/suite"
PROGRAM = ROOT / ".cache/connect/connectconformance"
#: Where Go's own packages put it, which is not always in PATH.
SEARCHED = os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"])
PROTOS = ("config", "service", "server_compat")
#: Cases that the suite makes of config.yaml; a config that leaves some out is noticed.
MIN_CASES = 500


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Returns a folder with Python of the suite's proto."""
    go = shutil.which("go", path=SEARCHED)
    if go is None or not PROGRAM.exists():
        absent("Go, or the suite that `make test-clients` builds,")
    listed = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", "connectrpc.com/conformance"],
        cwd=SUITE,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    proto = Path(listed.stdout.strip()) / "proto"
    names = [f"connectrpc/conformance/v1/{one}.proto" for one in PROTOS]
    made = tmp_path / "modules"
    made.mkdir()
    roots = (proto, Path(grpc_tools.__file__).parent / "_proto")
    command = ["protoc", *(f"-I{one}" for one in roots), f"--python_out={made}", *names]
    assert protoc.main(command) == 0
    return made


@pytest.mark.timeout(300)
async def test_the_suite_passes(modules: Path, tmp_path: Path) -> None:
    at = tmp_path / "servers"
    async with suite_servers(modules, at):
        running = await asyncio.create_subprocess_exec(
            *(PROGRAM, "--mode", "server", "--conf", SUITE / "config.yaml", "--max-servers", "2"),
            *("--", sys.executable, "-S", SUITE / "relay.py", at),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = (await running.communicate())[0].decode()
    passed, failed = re.findall(r"(\d+) passed, (\d+) failed", said)[-1]
    assert (running.returncode, failed) == (0, "0"), said[-20_000:]
    assert int(passed) >= MIN_CASES
