"""The commands for curl of the README and of docs/guides/http.md, run as they are printed."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence

import pytest

from tests import ROOT
from tests.acceptance.access.serving import serving_both
from tests.support.guides import section
from tests.support.harness import absent, worker

README = (ROOT / "README.md").read_text()
#: Where `palimpsest up` serves HTTP, and all pages of ours call.
PRINTED = "http://127.0.0.1:50080"


@pytest.fixture
async def at(url: str) -> AsyncIterator[str]:
    """Yields the URL of a server over HTTP, with a worker beside it."""
    if shutil.which("curl") is None:
        absent("curl")
    async with serving_both(url, http_listen="127.0.0.1:0") as (_, served):
        working = worker(url)
        await asyncio.to_thread(working.__enter__)
        try:
            yield served
        finally:
            await asyncio.to_thread(working.__exit__, None, None, None)


async def run(at: str, commands: Sequence[str]) -> list[str]:
    """Returns what each command prints, in one shell."""
    script = "\n".join(f"{one}\nprintf '\\0'" for one in commands).replace(PRINTED, at)
    shell = await asyncio.create_subprocess_exec(
        "sh", "-ec", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, wrong = await shell.communicate()
    assert shell.returncode == 0, wrong.decode()
    return said.decode().split("\0")[:-1]


async def test_the_readme(at: str) -> None:
    page = README.partition("## From a shell\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^    (curl .*)$", page, re.MULTILINE)
    created, appended, recalled = [json.loads(one) for one in await run(at, commands)]
    assert created["id"] == "bob"
    assert appended["positions"] == {"first": "1", "last": "1"}
    assert "Bob eats no nuts." in recalled["text"], recalled


async def test_the_guide(at: str) -> None:
    page = section("http", "With curl") + section("http", "Streams")
    first = re.findall(r"^    (export .*)$", page, re.MULTILINE)
    text = "".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL))
    commands = [one.strip() for one in text.split("$ curl ")[1:]]
    found = await run(at, [*first, *(f"curl {one}" for one in commands)])
    created, appended, recalled, got = [json.loads(one) for one in found[1:5]]
    assert created["id"] == got["id"] == "alice"
    assert appended["positions"]["last"] == "1"
    assert "Alice eats no nuts." in recalled["text"]
    assert found[5].endswith("event: end\ndata: {}\n\n")
    assert "nuts" in found[5]
