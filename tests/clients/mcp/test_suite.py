"""The protocol's own suite, `@modelcontextprotocol/conformance`, against the tools over HTTP."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from tests.acceptance.access.serving import serving_both

HERE = Path(__file__).parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SECONDS = 120

#: Why a check fails that needs a server made for the suite: this one has no tools, resources and
#: prompts of the names that it asks for, and none of logging, completion, sampling, elicitation and
#: tasks. Any other reason fails the test.
KNOWN = re.compile(
    "|".join(
        (
            # `test_simple_text` and 20 others.
            r"unknown tool: the tools are remember,",
            r"^Tool 'json_schema_2020_12_tool' not found",
            # `test://static-text` and four others, two of which it subscribes to.
            r"no such resource: resources/list names all",
            # prompts, logging/setLevel and completion/complete.
            r"Method not found",
            r"^Not testable: server does not list the diagnostic tool",
            r"^Not testable: server exposes no tool with x-mcp-header annotations",
            # Of tools that ask the client for input.
            r"^Expected InputRequiredResult",
            r"^Prerequisite failed: could not get initial InputRequiredResult",
        )
    )
)
#: Scenarios that pass as a whole, by version.
PASSING = {
    "2025-11-25": {
        *("server-initialize", "ping", "tools-list", "resources-list"),
        *("dns-rebinding-protection", "server-sse-multiple-streams", "server-session-lifecycle"),
    },
    "2026-07-28": {
        *("tools-list", "resources-list", "sep-2164-resource-not-found"),
        *("http-header-validation", "dns-rebinding-protection"),
    },
}


@pytest.mark.parametrize("version", list(PASSING))
async def test_the_protocol_s_suite(url: str, tmp_path: Path, version: str) -> None:
    if not SUITE.exists():
        pytest.skip("`make test-clients` installs the suite where there is npm")
    async with serving_both(url, http_listen="127.0.0.1:0") as (address, at):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("conformance")
            await session.create_memory("default", "class Facts:\n    notes: dict[str, str]\n")
        await _run(f"{at}/mcp/conformance", version, tmp_path)
    found = _checks(tmp_path)
    failed = {name: _failed(checks) for name, checks in found.items()}
    unknown = [said for one in failed.values() for said in one if not KNOWN.search(said)]
    assert unknown == []
    for name in PASSING[version]:
        assert failed[name] == [], name
        assert any(one["status"] == "SUCCESS" for one in found[name]), name


async def _run(url: str, version: str, into: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "npm has installed the suite"
    options = ("--suite", "all", "--spec-version", version, "--output-dir", str(into))
    process = await asyncio.create_subprocess_exec(
        *(node, "--import", str(HERE / "older_node.mjs"), str(SUITE), "server", "--url", url),
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


def _checks(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the checks of each scenario."""
    return {
        re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", one.parent.name): json.loads(one.read_text())
        for one in folder.glob("*/checks.json")
    }


def _failed(checks: list[dict[str, Any]]) -> list[str]:
    return [str(one.get("errorMessage", "")) for one in checks if one["status"] == "FAILURE"]
