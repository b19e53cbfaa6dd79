"""The official clients of the Connect protocol, connect-es and connect-go, over our HTTP port."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.clients.keyed import Keyed
from tests.support.harness import absent

HERE = ROOT / "tests/clients/connect"
PLUGINS = ROOT / ".cache/connect"
PACKAGES = ROOT / "tests/typescript/node_modules"
#: Where Go's own packages put it, which is not always in PATH.
SEARCHED = os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"])


def generate(target: Path, plugins: Path, *options: str) -> None:
    """Runs `buf generate` in the repository, with these plugins, into `target`."""
    subprocess.run(
        [Path(sys.executable).parent / "buf", "generate", *options, "-o", target],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join([str(plugins), os.environ["PATH"]])},
        check=True,
        timeout=200,
    )


async def printed(keyed: Keyed, *command: str) -> Mapping[str, Any]:
    """Returns what a client has found, by the name of what it tried."""
    given = {"PALIMPSEST_HTTP_URL": keyed.url, "PALIMPSEST_TOKEN": keyed.token}
    running = await asyncio.create_subprocess_exec(
        *command, env=os.environ | given, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, wrong = await running.communicate()
    assert running.returncode == 0, wrong.decode()
    lines = [json.loads(one) for one in said.splitlines()]
    return {one["name"]: one["result"] for one in lines}


def wanted(session: str, not_found: str, unauthenticated: str, deadline: str) -> Mapping[str, Any]:
    """Returns what a client is to find; codes are written as its language has them."""
    missing = [not_found, "SESSION_NOT_FOUND", {"session": "nobody"}]
    found: dict[str, Any] = {"no token": [unauthenticated, "CREDENTIALS_MISSING", {}]}
    for codec in ("proto", "json"):
        found |= {
            f"{codec}: unary": f"{session}-{codec}",
            f"{codec}: gzip of the response": ["POST", "gzip"],
            f"{codec}: gzip of the request": "1",
            f"{codec}: read by GET": [f"{session}-{codec}", "GET"],
            f"{codec}: error": missing,
            f"{codec}: stream": True,
            f"{codec}: error of a stream": missing,
            f"{codec}: deadline of a stream": deadline,
        }
    return found


def es_program(folder: Path) -> Sequence[str]:
    """Returns the command of the program of connect-es, which is made in a folder."""
    node = shutil.which("node")
    if node is None or not PACKAGES.is_dir():
        absent("node, or what tests/typescript asks for,")
    generate(folder, PACKAGES / ".bin")
    (folder / "node_modules").symlink_to(PACKAGES)
    shutil.copy(HERE / "es/client.mjs", folder)
    return node, str(folder / "client.mjs")


def go_program(folder: Path) -> Sequence[str]:
    """Returns the command of the program of connect-go, which is built in a folder."""
    go = shutil.which("go", path=SEARCHED)
    if go is None or not (PLUGINS / "protoc-gen-connect-go").exists():
        absent("Go, or what tests/clients/connect/go asks for,")
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    generate(folder, PLUGINS, "--template", str(HERE / "go/buf.gen.yaml"))
    # What `make test-clients` fetched must be enough.
    offline = {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly"}
    building = [go, "build", "-o", "program", "."]
    subprocess.run(building, cwd=folder, env=offline, check=True, timeout=400)
    return (str(folder / "program"),)


async def test_connect_es(keyed: Keyed, tmp_path: Path) -> None:
    program = await asyncio.to_thread(es_program, tmp_path)
    found = await printed(keyed, *program)
    assert found == wanted("from-connect-es", "NotFound", "Unauthenticated", "DeadlineExceeded")


@pytest.mark.timeout(400)
async def test_connect_go(keyed: Keyed, tmp_path: Path) -> None:
    program = await asyncio.to_thread(go_program, tmp_path)
    found = await printed(keyed, *program)
    assert found == wanted("from-connect-go", "not_found", "unauthenticated", "deadline_exceeded")
